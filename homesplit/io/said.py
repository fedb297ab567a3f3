"""Figures in what a box printed, which may be anything at all."""

from __future__ import annotations

import re

_COUNT = re.compile(r"[0-9]{1,18}")


def count(text: str) -> int | None:
    """The whole number that `text` is; None for anything else, however long."""
    return int(text) if _COUNT.fullmatch(text) else None

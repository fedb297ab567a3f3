"""What tools say where they tell nothing, and figures read so that these stay unknown."""

from __future__ import annotations

import re
from typing import Optional

MIB = 1 << 20
_NO_FIGURE = {
    *("", "-", "n/a", "none", "unknown", "unknown!", "err!", "error"),
    *("[n/a]", "[unknown error]", "[gpu is lost]", "[gpu requires reset]"),
    *("not supported", "[not supported]", "[insufficient permissions]"),
    "[requested functionality has been deprecated]",
}


def is_told(text: str) -> bool:
    """Whether a tool's words say anything."""
    return text.strip().lower() not in _NO_FIGURE


def told(text: str) -> Optional[str]:
    """A tool's words, None where they say nothing."""
    return text.strip() if is_told(text) else None


def number(text: str) -> Optional[float]:
    """A tool's figure; `[N/A]`, `[Not Supported]` and nothing at all are None."""
    found = re.match(r"-?\d{1,18}(\.\d{1,18})?(?![\d.]*[\dxX:])", text.strip())
    return float(found.group()) if found else None


def size(text: str) -> Optional[float]:
    """As `number`, for what can't be below nothing."""
    value = number(text)
    return value if value is not None and value >= 0 else None

"""The measured link between two boxes, where there is one."""

from __future__ import annotations

from homesplit.core.link import LinkProfile
from homesplit.stages.context import Context


def saved_link(ctx: Context, boxes: tuple[str, ...]) -> LinkProfile | None:
    """The last measured link between `boxes`, None when it was never measured."""
    return None

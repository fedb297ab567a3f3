"""Whether a mode's setting can be meant for the boxes that are here."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from homesplit_engine.router.errors import bad_request


def check_setting(setting: ModeSetting, boxes: Sequence[str]) -> None:
    """Raise ApiError 400 when a setting can't be meant for these boxes."""
    for name, box in (("prefill_box", setting.prefill_box), ("decode_box", setting.decode_box)):
        if box is not None and box not in boxes:
            raise bad_request(
                f"There is no box {box[:80]!r} here; the boxes are {', '.join(boxes)}.", param=name
            )
    if not 1 <= setting.chunk_tokens <= 2**20:
        raise bad_request("chunk_tokens must be at least 1.", param="chunk_tokens")
    if setting.mode == "split" and len(boxes) < 2:
        raise bad_request("split needs two boxes, and this deployment has one.", param="mode")
    if (
        setting.mode == "split"
        and setting.prefill_box is not None
        and setting.prefill_box == setting.decode_box
    ):
        raise bad_request("split needs two different boxes.", param="decode_box")

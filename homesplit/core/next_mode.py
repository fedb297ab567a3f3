"""The order in which the lesson goes through the arrangements, and the boxes each takes."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.core.plan import ModePrediction


def following(
    setting: ModeSetting, boxes: Sequence[str], predicted: Sequence[ModePrediction] = ()
) -> ModeSetting:
    """The arrangement after `setting` on these deployed boxes.

    `predicted`, best first, says which box serves alone and which way a split goes; without it
    the first box reads and the last one writes.
    """
    usable = _order(tuple(boxes), predicted)
    place = next((number for number, one in enumerate(usable) if _alike(one, setting)), -1)
    chosen = usable[(place + 1) % len(usable)]
    return replace(chosen, chunk_tokens=setting.chunk_tokens)


def _order(boxes: tuple[str, ...], predicted: Sequence[ModePrediction]) -> list[ModeSetting]:
    known = [one for one in predicted if set(one.boxes) <= set(boxes) and one.why_not is None]
    first, last = (boxes[0], boxes[-1]) if boxes else (None, None)
    alone = next((one.decode_box for one in known if one.mode == "colocated"), None) or last
    ways = ((one.prefill_box, one.decode_box) for one in known if one.mode == "split")
    reads, writes = next(ways, (first, last))
    whole = ModeSetting(mode="colocated", prefill="whole", prefill_box=reads, decode_box=alone)
    found = [whole, replace(whole, prefill="chunked")]
    if len(boxes) > 1:
        pair = replace(whole, prefill="chunked", decode_box=writes)
        found += [replace(pair, mode=mode) for mode in ("replica", "split", "auto")]
    return found


def _alike(one: ModeSetting, setting: ModeSetting) -> bool:
    """Whether both are the same arrangement to the eye."""
    return one.mode == setting.mode and (
        setting.mode != "colocated" or one.prefill == setting.prefill
    )

"""Whether a split should send its KV with less precision than it has, because the link is slow.

That may change texts, so it has to be worth it: only where a split is best as it is and its link
is slower than the prefill, and where the gain is one that would decide between two modes.
"""

from __future__ import annotations

from collections.abc import Callable

from homesplit_engine.records import KvWire
from msgspec import structs

from homesplit.core.choose import Choice, about_as_good
from homesplit.core.plan import RuleResult
from homesplit.core.predict import Outlook
from homesplit.core.scene import KV_WIRE_BYTES, Arrangement
from homesplit.core.shape import DTYPE_BYTES
from homesplit.core.workload import Targets

_LEAST_LOSS_FIRST: tuple[KvWire, ...] = ("fp16", "int8")


def with_wire(
    choice: Choice,
    link: RuleResult,
    kv_dtype: str,
    targets: Targets,
    look: Callable[[Arrangement], Outlook],
) -> Choice:
    """The choice, its split sending KV with as little loss as takes the link out of the way."""
    best = choice.best
    if best.arrangement.mode != "split" or link.verdict != "fail":
        return choice
    for wire in _LEAST_LOSS_FIRST:
        if KV_WIRE_BYTES[wire] >= DTYPE_BYTES[kv_dtype]:
            continue
        exact = choice.best.arrangement
        made = look(structs.replace(exact, setting=structs.replace(exact.setting, kv_wire=wire)))
        if best not in about_as_good((best, made), targets):
            best = made
    return structs.replace(choice, best=best)


def sentence(wire: KvWire, kv_dtype: str) -> str:
    """Why KV is sent so, what it may cost, and where that is measured."""
    return (
        f"The link is the limit, so KV goes over it as {wire} in place of {kv_dtype}: texts may "
        f"differ from those of the other modes. How often, and after how many tokens, is measured "
        f"in tests/bench/results/quality.md, and on these boxes by homesplit compare --modes "
        f"colocated,split:{wire}."
    )

"""Who reads a prompt and who writes the answer: a pure function of what is known now.

The router and the simulator run this same code. No clock, no I/O, no randomness: `turn`,
a counter of decisions, breaks ties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from homesplit_engine.records import ModeSetting, PrefillStyle


class BoxView(Struct, frozen=True, kw_only=True):
    """One usable box as the router knows it; rates are None until they were measured."""

    box: str
    requests: int = 0
    """Requests placed there that have not ended: waiting, reading or writing."""
    decoding: int = 0
    """Of these, how many are writing."""
    pending_prefill_tokens: int = 0
    """Prompt tokens placed there and not yet read."""
    cached_tokens: int = 0
    """Leading tokens of this prompt whose KV it probably holds."""
    prefill_tokens_per_s: float | None = None
    decode_step_s: float | None = None
    handing_over_tokens: int = 0
    """Prompt tokens whose KV it still has to send, before this request's."""
    free_tokens: int | None = None
    """Tokens that its free KV blocks hold; None when it has not told yet."""


class Question(Struct, frozen=True, kw_only=True):
    """The request to place."""

    prompt_tokens: int
    max_tokens: int
    expected_output_tokens: float | None = None
    """Mean answer length so far; None before any answer has ended."""
    kv_bytes_per_token: int | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """The answer: boxes, prefill style, and the reason in words with numbers."""

    kind: Literal["colocated", "split"]
    prefill_box: str
    decode_box: str
    prefill: PrefillStyle
    chunk_tokens: int | None
    """None is whole prefill."""
    why: str


LinkRates = Mapping[tuple[str, str], float]
"""(from, to) to measured hand-off bytes per second; pairs never measured are absent."""


def decide(
    setting: ModeSetting,
    boxes: Sequence[BoxView],
    links: LinkRates,
    question: Question,
    turn: int,
    *,
    told: bool = True,
) -> Decision | None:
    """Place one request under `setting` on the usable `boxes`; None when there is none.

    A simulator, which nobody asks why, saves the words with `told` False.
    """
    if not boxes:
        return None
    match setting.mode:
        case "colocated":
            return _colocated(setting, boxes)
        case "replica":
            return _replica(setting, boxes, turn, told)
        case "split":
            return _split(setting, boxes, question)
        case "auto":
            return _auto(setting, boxes, links, question, turn, told)


def resume(
    setting: ModeSetting, boxes: Sequence[BoxView], reason: str, avoid: str | None = None
) -> Decision | None:
    """Place a request that lost its box on one that lives; `avoid` only if there is no other."""
    if not boxes:
        return None
    able = [view for view in boxes if view.box != avoid] or list(boxes)
    best = min(able, key=lambda view: (view.requests, -view.cached_tokens, view.box))
    return _on_one_box(setting, best.box, f"{reason}; resumed on {best.box}")


def _on_one_box(setting: ModeSetting, box: str, why: str) -> Decision:
    return Decision(
        kind="colocated",
        prefill_box=box,
        decode_box=box,
        prefill=setting.prefill,
        chunk_tokens=_chunk(setting),
        why=why,
    )


def _chunk(setting: ModeSetting) -> int | None:
    return setting.chunk_tokens if setting.prefill == "chunked" else None


def _by_name(boxes: Sequence[BoxView], name: str | None) -> BoxView | None:
    return next((view for view in boxes if view.box == name), None)


def _colocated(setting: ModeSetting, boxes: Sequence[BoxView]) -> Decision:
    wanted = setting.decode_box or setting.prefill_box
    if wanted is None:
        return _on_one_box(setting, boxes[0].box, f"colocated: {boxes[0].box} serves everything")
    if _by_name(boxes, wanted):
        return _on_one_box(setting, wanted, f"colocated: {wanted} serves everything")
    other = boxes[0].box
    return _on_one_box(setting, other, f"colocated: {wanted} can't take it now, so {other} serves")


def _replica(setting: ModeSetting, boxes: Sequence[BoxView], turn: int, told: bool) -> Decision:
    order = {view.box: (place - turn) % len(boxes) for place, view in enumerate(boxes)}
    best = min(boxes, key=lambda view: (view.requests, -view.cached_tokens, order[view.box]))
    if not told:
        return _on_one_box(setting, best.box, "")
    loads = ", ".join(f"{view.box} {view.requests}" for view in boxes)
    cached = f", {best.cached_tokens} prompt tokens cached" if best.cached_tokens else ""
    why = f"replica: {best.box} has the fewest requests ({loads}{cached})"
    return _on_one_box(setting, best.box, why)


def _split(setting: ModeSetting, boxes: Sequence[BoxView], question: Question) -> Decision:
    prefill, decode = _roles(setting, boxes)
    if prefill is None or decode is None:
        left = prefill or decode or boxes[0]
        missing = "the prefill box" if prefill is None else "the decode box"
        return _on_one_box(
            setting, left.box, f"split: {missing} can't take it now, so {left.box} does both"
        )
    if question.max_tokens <= 1:
        return _on_one_box(
            setting, prefill.box, "split: one token is asked for, so there is nothing to hand over"
        )
    return _handed_over(
        setting, prefill.box, decode.box, f"split: {prefill.box} reads, {decode.box} writes"
    )


def _roles(setting: ModeSetting, boxes: Sequence[BoxView]) -> tuple[BoxView | None, BoxView | None]:
    """The prefill and the decode box: as named, else in the order of the settings file."""
    named = {setting.prefill_box, setting.decode_box}
    spare = [view for view in boxes if view.box not in named]
    prefill = _by_name(boxes, setting.prefill_box)
    if prefill is None and setting.prefill_box is None and spare:
        prefill = spare.pop(0)
    decode = _by_name(boxes, setting.decode_box)
    if decode is None and setting.decode_box is None and spare:
        decode = spare.pop(0)
    if prefill is not None and decode is not None and prefill.box == decode.box:
        return prefill, None
    return prefill, decode


def _handed_over(setting: ModeSetting, prefill: str, decode: str, why: str) -> Decision:
    return Decision(
        kind="split",
        prefill_box=prefill,
        decode_box=decode,
        prefill=setting.prefill,
        chunk_tokens=_chunk(setting),
        why=why,
    )


# ------------------------------------------------------------------ auto


class Cost(Struct, frozen=True, kw_only=True):
    """What one placement would cost, in seconds."""

    prefill_box: str
    decode_box: str
    wait_s: float
    """Prompts already queued before this one."""
    prefill_s: float
    exposed_s: float
    """The hand-off's part that prefill does not hide."""
    disturbed_s: float
    """Seconds that this prefill takes from others' answers on the same box, summed over them."""
    held_up_s: float
    """Prompts queued on another box that writes, which its steps will read in between."""
    decode_s: float
    """Writing the expected answer on the decode box."""

    @property
    def total_s(self) -> float:
        """What is compared."""
        before_s = self.wait_s + self.prefill_s + self.exposed_s
        return before_s + self.disturbed_s + self.held_up_s + self.decode_s


def _auto(
    setting: ModeSetting,
    boxes: Sequence[BoxView],
    links: LinkRates,
    question: Question,
    turn: int,
    told: bool,
) -> Decision:
    if len(boxes) == 1:
        only = boxes[0].box
        return _on_one_box(setting, only, f"auto: only {only} can take it now")
    unknown = [view for view in boxes if view.prefill_tokens_per_s is None]
    if unknown:
        trial = min(unknown, key=lambda view: (view.requests, view.box))
        why = f"auto: {trial.box} has not read a prompt yet, so its rate gets measured"
        return _on_one_box(setting, trial.box, why)
    unmeasured = _unmeasured_pair(boxes, links, turn)
    if unmeasured and question.max_tokens > 1:
        why = f"auto: no hand-off {unmeasured[0]} to {unmeasured[1]} has been measured yet"
        return _handed_over(setting, unmeasured[0], unmeasured[1], why)
    costs = _costs(boxes, links, question)
    if not told:
        return _cheapest(setting, [min(costs, key=_total_s)], told)
    return _cheapest(setting, sorted(costs, key=_total_s), told)


def _total_s(cost: Cost) -> float:
    return cost.total_s


def _unmeasured_pair(
    boxes: Sequence[BoxView], links: LinkRates, turn: int
) -> tuple[str, str] | None:
    """A direction never tried, offered on every eighth decision so that traffic isn't held up."""
    if turn % 8:
        return None
    pairs = [(a.box, b.box) for a in boxes for b in boxes if a.box != b.box]
    return next((pair for pair in pairs if pair not in links), None)


def _costs(boxes: Sequence[BoxView], links: LinkRates, question: Question) -> list[Cost]:
    answer = min(question.max_tokens, question.expected_output_tokens or question.max_tokens)
    ways = [_cost(view, view, None, question, answer) for view in boxes]
    if question.max_tokens > 1 and question.kv_bytes_per_token is not None:
        pairs = [(a, b, links.get((a.box, b.box))) for a in boxes for b in boxes if a.box != b.box]
        ways += [_cost(a, b, rate, question, answer) for a, b, rate in pairs if rate]
    room = [view.box for view in boxes if _has_room(view, question.prompt_tokens + answer)]
    return [cost for cost in ways if cost.decode_box in room] or ways


def _has_room(view: BoxView, tokens: float) -> bool:
    """Whether prompt and expected answer fit into the KV blocks that are free now."""
    return view.free_tokens is None or view.free_tokens >= tokens - view.cached_tokens


def _cost(
    prefill: BoxView,
    decode: BoxView,
    link_bytes_per_s: float | None,
    question: Question,
    answer: float,
) -> Cost:
    """The cost of reading on one box and writing on another (or the same, without a link).

    `answer` are the tokens that the answer will probably have.
    """
    rate = prefill.prefill_tokens_per_s or 1.0
    prefill_s = max(1, question.prompt_tokens - prefill.cached_tokens) / rate
    wait_s = prefill.pending_prefill_tokens / rate
    exposed_s = 0.0
    if link_bytes_per_s is not None:
        sent = max(0, question.prompt_tokens - decode.cached_tokens) + prefill.handing_over_tokens
        wire_s = sent * (question.kv_bytes_per_token or 0) / link_bytes_per_s
        # What is queued on the link drains while this prompt waits and is read.
        exposed_s = max(0.0, wire_s - prefill_s - wait_s)
    return Cost(
        prefill_box=prefill.box,
        decode_box=decode.box,
        wait_s=wait_s,
        prefill_s=prefill_s,
        exposed_s=exposed_s,
        disturbed_s=prefill_s * prefill.decoding,
        # Prompts still to be read on the box that writes hold this answer up as well.
        held_up_s=0.0
        if prefill.box == decode.box
        else decode.pending_prefill_tokens / (decode.prefill_tokens_per_s or rate),
        decode_s=answer * (decode.decode_step_s or 0.0),
    )


def _cheapest(setting: ModeSetting, costs: Sequence[Cost], told: bool) -> Decision:
    best = costs[0]
    why = f"auto: {_told(best)}" if told else ""
    if told and len(costs) > 1:
        why += f"; next best {_told(costs[1])}"
    if best.prefill_box == best.decode_box:
        return _on_one_box(setting, best.prefill_box, why)
    return _handed_over(setting, best.prefill_box, best.decode_box, why)


def _told(cost: Cost) -> str:
    """One placement's cost in words."""
    who = (
        f"{cost.prefill_box} alone"
        if cost.prefill_box == cost.decode_box
        else f"{cost.prefill_box} reads and {cost.decode_box} writes"
    )
    return (
        f"{who} {cost.total_s:.2f} s (queue {cost.wait_s:.2f}, prefill {cost.prefill_s:.2f}, "
        f"hand-off exposed {cost.exposed_s:.2f}, disturbs others {cost.disturbed_s:.2f}, "
        f"held up {cost.held_up_s:.2f}, answer {cost.decode_s:.2f})"
    )

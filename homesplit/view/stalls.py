"""Why answers waited: the one thing whose own time covers most of the wait, or none."""

from __future__ import annotations

from itertools import islice
from statistics import median

from homesplit.core.engine_state import Engine
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, crop, line, width_of
from homesplit.view.watch import Stall, Step, Wait, Watch, moved_transfers

MOST = 0.5
"""What explains less than this share of a wait is not its cause."""
USUAL_STEPS = 200
BECAUSE = ": "


def sentence(stall: Stall | None, watch: Watch, engine: Engine) -> Line:
    """The stall in words: who waited how long, and for what."""
    if stall is None:
        return line(Span("No answer waits: every token comes within its target.", "dim"))
    told, why = explained(stall, watch, engine)
    who = "1 answer" if len(told) == 1 else f"{len(told)} answers"
    length_s = stall.end_s - min(wait.since_s for wait in told)
    return line(
        Span("✗ ", "bad"),
        f"{who} on {stall.box} waited ",
        Span(numbers.seconds(length_s), "strong"),
        f"{BECAUSE}{why}",
    )


def sentence_lines(stall: Stall | None, watch: Watch, engine: Engine, width: int) -> Lines:
    """The sentence; its cause on a line of its own where both do not fit one."""
    whole = sentence(stall, watch, engine)
    if width_of(whole) <= width:
        return (whole,)
    *who, why = whole
    if not why.text.startswith(BECAUSE):
        return (crop(whole, width),)
    cause = line("  ", why.text.removeprefix(BECAUSE))
    return crop((*who, Span(BECAUSE)), width), crop(cause, width)


def explained(stall: Stall, watch: Watch, engine: Engine) -> tuple[tuple[Wait, ...], str]:
    """The waits that have a common cause, the most of the stall's, and the cause in words."""
    handed = _handed_over(stall, engine)
    rest = tuple(wait for wait in stall.waits if wait.request_id not in handed)
    if len(handed) > len(rest):
        told = tuple(wait for wait in stall.waits if wait.request_id in handed)
        tokens, box_from = handed[told[0].request_id]
        return told, (
            f"the KV of {numbers.count(tokens)} tokens was on its way "
            f"from {box_from} to {stall.box}"
        )
    start_s = min(wait.since_s for wait in rest)
    return rest, _box_cause(stall, start_s, rest, watch)


def _handed_over(stall: Stall, engine: Engine) -> dict[str, tuple[int, str]]:
    """The waiting requests whose own KV was on its way for most of the wait: tokens, sender."""
    since = {wait.request_id: wait.since_s for wait in stall.waits}
    found: dict[str, tuple[int, str]] = {}
    for event, begin_s, end_s in moved_transfers(engine, stall.start_s):
        since_s = since.get(event.request_id)
        if since_s is None or event.box_to != stall.box:
            continue
        covered_s = min(end_s, stall.end_s) - max(begin_s, since_s)
        if covered_s >= MOST * (stall.end_s - since_s):
            found[event.request_id] = (event.tokens, event.box_from)
    return found


def _box_cause(stall: Stall, start_s: float, waits: tuple[Wait, ...], watch: Watch) -> str:
    """What the box itself did meanwhile."""
    box, length_s = stall.box, stall.end_s - start_s
    steps = [
        step
        for step in watch.steps_since(box, start_s)
        if step.start_s < stall.end_s and step.end_s > start_s
    ]
    usual_s = _usual_s(watch, box)
    if sum(_reading_s(step, start_s, stall.end_s, usual_s) for step in steps) >= MOST * length_s:
        return f"{box} was reading {_prompts(steps)}"
    longest = max(steps, key=lambda step: _overlap_s(step, start_s, stall.end_s), default=None)
    if longest is not None and _overlap_s(longest, start_s, stall.end_s) >= MOST * length_s:
        took = numbers.seconds(longest.end_s - longest.start_s)
        return f"{box} itself was slow: one step for {_answers(longest.writes)} took {took}"
    busy_s = sum(_overlap_s(step, start_s, stall.end_s) for step in steps)
    if busy_s < MOST * length_s:
        elsewhere = {wait.box for wait in waits} - {box, ""}
        if elsewhere:
            return f"{box} took over from {', '.join(sorted(elsewhere))}"
        return f"{box} itself was held up: no step ran for {numbers.seconds(length_s - busy_s)}"
    return f"{len(steps)} steps of {box} for others came first"


def _usual_s(watch: Watch, box: str) -> float:
    """What a step without reading took on this box lately; 0 when none is known."""
    kept = islice(reversed(watch.steps.get(box, ())), USUAL_STEPS)
    alone = [step.end_s - step.start_s for step in kept if step.writes and not step.reads]
    return median(alone) if alone else 0.0


def _overlap_s(step: Step, start_s: float, end_s: float) -> float:
    return max(min(step.end_s, end_s) - max(step.start_s, start_s), 0.0)


def _reading_s(step: Step, start_s: float, end_s: float, usual_s: float) -> float:
    """The step's time within the wait that reading took: beside decode, what is beyond usual."""
    if not step.reads:
        return 0.0
    overlap_s = _overlap_s(step, start_s, end_s)
    return max(overlap_s - usual_s, 0.0) if step.writes else overlap_s


def _prompts(steps: list[Step]) -> str:
    read = {request for step in steps for request in step.prompts}
    tokens = numbers.count(sum(step.reads for step in steps))
    if len(read) != 1:
        return f"{len(read)} prompts, {tokens} tokens in all"
    in_pieces = any(step.pieces for step in steps)
    return f"{tokens} tokens of a prompt" if in_pieces else f"a prompt of {tokens} tokens"


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"

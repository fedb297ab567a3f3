"""An offered load in words, as the sentences of results and the notebook's pages say it."""

from __future__ import annotations

from homesplit.core.replay import REPLAY, pace_words
from homesplit.core.say import counted, rate
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload


def load_words(workload: Workload) -> str:
    """The beginning of a sentence: `At 2 requests/s of Demo`, `With 1 user of Chat`."""
    arrivals, name = workload.arrivals, workload.name
    if workload.source == REPLAY:
        pace = "" if workload.speed is None else f" at {pace_words(workload.speed)}"
        return f"Replaying {name}{pace} ({_rate(workload)} on average)"
    if arrivals.kind == "closed":
        return f"With {counted(arrivals.users or 0, 'user')} of {name}"
    turns = f" of {workload.turns} turns" if workload.turns > 1 else ""
    said = _rate(workload)
    bursts = " in bursts" if arrivals.burstiness > 1 else ""
    # What is said in between ends where the name begins.
    between = arrivals.pattern == "on_off" or workload.turns > 1 or bursts
    head = said[0].upper() + said[1:] if arrivals.pattern == "ramp" else f"At {said}"
    return f"{head}{turns}{bursts}{',' if between else ''} of {name}"


def _rate(workload: Workload) -> str:
    """How fast requests come in an open loop: a rate that may change, or one of conversations."""
    arrivals = workload.arrivals
    what = "request" if workload.turns == 1 else "conversation"
    start = arrivals.rate_requests_per_s
    if start is None:
        return "a rate not told"
    if arrivals.pattern == "ramp":
        return f"from {start:g} to {rate(arrivals.ramp_to_requests_per_s or start, what)}"
    if arrivals.pattern == "on_off":
        return f"{rate(start, what)} for {arrivals.on_s:g} s, none for {arrivals.off_s:g} s in turn"
    return rate(start, what)


def asked_words(workload: Workload, seconds: float | None) -> str:
    """All of the load in sentences: how requests come, how long they are, and the targets."""
    alone = len(workload.classes) == 1
    kinds = "; ".join(
        _lengths(kind) if alone else f"{kind.name} (share {kind.share:.3g}): {_lengths(kind)}"
        for kind in workload.classes
    )
    said = [f"{_how(workload)}{_lasting(workload, seconds)}: {kinds}.", *_extras(workload)]
    return " ".join([*said, f"Targets: {targets_words(workload.targets) or 'none'}."])


def _how(workload: Workload) -> str:
    arrivals = workload.arrivals
    if workload.source == REPLAY:
        return f"Replay of {workload.name}, {_rate(workload)} on average"
    if arrivals.kind == "closed":
        return f"{counted(arrivals.users or 0, 'user')} at a time, closed loop{_pause(arrivals)}"
    return f"Open loop, {_rate(workload)} ({_shape(arrivals.burstiness)})"


def _pause(arrivals: Arrivals) -> str:
    if not arrivals.think_s:
        return ", each asking again at once"
    return f", each asking again {arrivals.think_s:g} s after an answer"


def _shape(burstiness: float) -> str:
    named = {1.0: "Poisson", 0.0: "evenly spaced"}
    return named.get(burstiness, f"gaps gamma distributed, variation {burstiness:g}")


def _lasting(workload: Workload, seconds: float | None) -> str:
    if not seconds:
        return ""
    within = workload.arrivals.kind == "open" and workload.arrivals.pattern == "ramp"
    return f" within {seconds:.4g} s" if within else f", for {seconds:.4g} s"


def _lengths(kind: LengthClass) -> str:
    if kind.pairs:
        return f"prompt and answer drawn together from {counted(len(kind.pairs), 'pair')}"
    prompt = _span(kind.prompt_tokens_low, kind.prompt_tokens_high, "prompt token")
    output = _span(kind.output_tokens_low, kind.output_tokens_high, "answer token")
    return f"{prompt}, {output}"


def _span(low: int, high: int, what: str) -> str:
    return counted(low, what) if low == high else f"{low} to {high} {what}s"


def _extras(workload: Workload) -> list[str]:
    told = workload.description
    said = [f"{told[:1].upper()}{told[1:]}."] if workload.source == REPLAY else []
    if workload.shared_prefix_tokens:
        tokens = counted(workload.shared_prefix_tokens, "token")
        groups = counted(workload.shared_prefix_groups, "group")
        said.append(f"The first {tokens} shared within {groups}.")
    if workload.turns > 1:
        pause = f"{workload.turn_think_s:g} s after the answer before it"
        said.append(f"Conversations of {workload.turns} turns, each question {pause}.")
    if workload.cancel_share:
        patience = f"after {workload.cancel_after_s:g} s on average"
        said.append(f"{workload.cancel_share:.0%} of the users give up, {patience}.")
    return said


def targets_words(targets: Targets) -> str:
    """`TTFT 1 s, TPOT 0.1 s`; empty where there is none."""
    named = (("TTFT", targets.ttft_s), ("TPOT", targets.tpot_s))
    return ", ".join(f"{name} {value:g} s" for name, value in named if value is not None)

"""The eight rules, in the order in which they are asked; each with its number and threshold.

A rule passes when it speaks for a split. Rules explain; the simulation decides.
"""

from __future__ import annotations

from msgspec import Struct

from homesplit.core import say
from homesplit.core.candidates import Asked, Room
from homesplit.core.ledger import LedgerRow, PromptClass, ledger_row
from homesplit.core.link import LinkProfile
from homesplit.core.plan import RuleResult, Verdict
from homesplit.core.predict import Outlook
from homesplit.core.scene import Arrangement, Scene

SOMEONE = 1.5
PREFILL_SHARE = 0.30
CLEARLY_MORE = 1.5
AS_QUICK = 1.25
HELD = 0.90


class Known(Struct, frozen=True, kw_only=True):
    """What the rules look at: the question, what fits, and the outlook of each arrangement."""

    asked: Asked
    rooms: tuple[Room, ...]
    scene: Scene
    outlooks: tuple[Outlook, ...]
    kind: PromptClass
    """The load's mean request."""

    def best(self, mode: str, prefill: str | None = None) -> Outlook | None:
        """The best arrangement of a mode (and prefill style); None when there is none."""
        found = [
            o
            for o in self.outlooks
            if o.arrangement.mode == mode
            and (prefill is None or o.arrangement.setting.prefill == prefill)
        ]
        return max(found, key=lambda o: (o.goodput, -o.latency_s), default=None)


def rule(
    name: str,
    verdict: Verdict,
    sentence: str,
    value: float | None,
    threshold: float | None,
    unit: str,
) -> RuleResult:
    """One rule's result."""
    return RuleResult(
        id=name, verdict=verdict, value=value, threshold=threshold, unit=unit, sentence=sentence
    )


def not_asked(name: str, unit: str, why: str) -> RuleResult:
    """A rule that has no meaning here."""
    return rule(name, "n/a", why, None, None, unit)


def fits(rooms: tuple[Room, ...]) -> RuleResult:
    """Rule 1: weights and one longest conversation fit each box."""
    fitting = [room for room in rooms if room.fits]
    least = min(rooms, key=lambda room: room.needed)
    need, loads = least.needed, least.needed > least.weights + least.kv_needed
    what = "To load the weights before they are made int8 takes" if loads else ""
    takes = f"{what or 'Weights and one conversation need'} {say.size(need)}"
    largest = max((room.memory for room in rooms if room.memory is not None), default=None)
    parts = ", ".join(
        f"{room.box} {say.size(room.memory) if room.memory is not None else 'unknown'}"
        for room in rooms
    )
    if not fitting:
        said = (
            f"{takes}; usable memory: {parts}. It fits "
            f"neither box, and a prefill/decode split is not a capacity technique: each box "
            f"holds the whole model."
            if len(rooms) > 1
            else f"{takes}; usable memory: {parts}."
        )
        return rule("fits", "fail", said, need, largest, "bytes")
    if any(room.memory is None for room in rooms):
        return rule(
            "fits",
            "unknown",
            f"{takes}; usable memory: {parts}.",
            need,
            largest,
            "bytes",
        )
    if len(fitting) < len(rooms):
        only = fitting[0].box
        said = (
            f"The model fits {only} alone (it needs {say.size(need)}; usable memory: {parts}), "
            f"so {only} serves it colocated."
        )
        return rule("fits", "fail", said, need, largest, "bytes")
    where = "both boxes" if len(rooms) > 1 else fitting[0].box
    said = f"{takes}; that fits {where} ({parts})."
    said += _beside_weights(rooms)
    return rule("fits", "pass", said, need, largest, "bytes")


def _beside_weights(rooms: tuple[Room, ...]) -> str:
    """What the engine takes of each box's memory beside the weights, where it will run there."""
    told = [
        f"{room.box} {say.size(room.kv_room)}"
        + (f" beside a second copy of the weights ({say.size(room.copy)})" if room.copy else "")
        for room in rooms
        if room.free is not None
    ]
    return f" For KV the engine takes {', '.join(told)}." if told else ""


def real_link(asked: Asked, scene: Scene | None) -> RuleResult:
    """Rule 2: there are two boxes and a link that is one."""
    link = asked.link
    if len(asked.boxes) < 2:
        return rule(
            "real_link", "fail", "There is one box, so there is no link.", None, None, "bytes/s"
        )
    if link is None:
        said = "Nothing is known of the link: probe it, or name one with --link."
        return rule("real_link", "unknown", said, None, None, "bytes/s")
    rate = _link_rate(link, scene)
    if link.loopback:
        said = "Both ends are one machine: loopback teaches the mechanism, measures no network."
        return rule("real_link", "fail", said, rate, None, "bytes/s")
    if rate is None:
        said = f"The link's rate is not known ({link.source})."
        return rule("real_link", "unknown", said, None, None, "bytes/s")
    said = f"The link carries {say.bit_rate(rate)} of payload ({link.source})."
    if link.label_bytes_per_s:
        said = (
            f"The link carries {say.bit_rate(rate)} of payload where its label says "
            f"{say.bit_rate(link.label_bytes_per_s)} ({link.source})."
        )
    return rule("real_link", "pass", said, rate, None, "bytes/s")


def _link_rate(link: LinkProfile, scene: Scene | None) -> float | None:
    """Of the slower direction: as a hand-off gets it, or, where nothing fits, as it was told."""
    if scene is not None and scene.wires:
        return min(wire.bytes_per_s for wire in scene.wires.values())
    return min((way.value for way in (link.a_to_b, link.b_to_a) if way.value), default=None)


def someone(known: Known) -> RuleResult:
    """Rule 3: prefill meets answers being written."""
    arrivals = known.asked.workload.arrivals
    alone = known.best("colocated")
    if arrivals.kind == "closed" and (arrivals.users or 1) == 1:
        said = "One user at a time: there is nobody for a prompt to interrupt."
        return rule("someone_to_interrupt", "fail", said, 1.0, SOMEONE, "requests at once")
    if alone is None:
        return not_asked("someone_to_interrupt", "requests at once", "No box serves alone.")
    if not any(record.timeline.token_s for record in alone.result.records):
        said = "On one box no request is answered in time, so there is no answer to interrupt."
        return not_asked("someone_to_interrupt", "requests at once", said)
    value = _at_once(alone)
    verdict: Verdict = "pass" if value >= SOMEONE else "fail"
    said = f"On one box {value:.1f} requests would be under way at once: " + (
        "prompts interrupt answers." if verdict == "pass" else "prompts rarely meet answers."
    )
    return rule("someone_to_interrupt", verdict, said, value, SOMEONE, "requests at once")


def _at_once(made: Outlook) -> float:
    """Requests under way on average (Little's law over the simulated time)."""
    result = made.result
    inside = sum(
        r.timeline.token_s[-1] - r.timeline.start_s for r in result.records if r.timeline.token_s
    )
    return inside / result.window_s if result.window_s > 0 else 0.0


def prefill_heavy(known: Known, row: LedgerRow) -> RuleResult:
    """Rule 4: reading takes a good part of what a request takes."""
    writes_s = row.first_decode_s * max(known.kind.output_tokens - 1, 0)
    share = row.prefill_s / (row.prefill_s + writes_s) if row.prefill_s + writes_s else 0.0
    verdict: Verdict = "pass" if share >= PREFILL_SHARE else "fail"
    said = (
        f"Reading {known.kind.prompt_tokens} tokens takes {say.seconds(row.prefill_s)}, writing "
        f"{known.kind.output_tokens} takes {say.seconds(writes_s)}: prefill is "
        f"{say.percent(share)} of the work."
    )
    return rule("prefill_heavy", verdict, said, share, PREFILL_SHARE, "share")


def machines_differ(known: Known) -> RuleResult:
    """Rule 5: one reads clearly faster, and the other writes about as fast or faster."""
    name = "machines_differ"
    if len(known.scene.boxes) < 2:
        return not_asked(name, "ratio", "There is one box.")
    first, second = known.scene.boxes
    tokens = known.kind.prompt_tokens
    reads = {b.name: b.cost.prefill_s(tokens).mid for b in (first, second)}
    writes = {b.name: b.cost.decode_step_s(4, 4 * tokens).mid for b in (first, second)}
    quick = min(reads, key=lambda box: reads[box])
    other = second.name if quick == first.name else first.name
    ratio = reads[other] / reads[quick]
    slower = writes[other] / writes[quick]
    ok = ratio >= CLEARLY_MORE and slower <= AS_QUICK
    if ratio < CLEARLY_MORE:
        said = (
            f"The boxes read alike ({quick} {ratio:.1f} times as fast as {other}): "
            f"two replicas come before a split."
        )
    else:
        pace = f"{1 / slower:.1f} times as fast" if slower < 1 else f"{slower:.1f} times slower"
        said = f"{quick} reads {ratio:.1f} times as fast as {other}; {other} writes {pace}."
    return rule(name, "pass" if ok else "fail", said, ratio, CLEARLY_MORE, "ratio")


def link_quick(known: Known, split: LedgerRow | None) -> RuleResult:
    """Rule 6: the prompt's KV is over in less time than its prefill takes."""
    if split is None or not split.prefill_s or not known.scene.wires:
        return not_asked("link", "hand-off / prefill", "There is no hand-off between these boxes.")
    kv = known.scene.shape.handoff_bytes(split.prompt_tokens, known.scene.kv_dtype)
    rate = min(wire.bytes_per_s for wire in known.scene.wires.values())
    wire_s = kv / rate
    ratio = wire_s / split.prefill_s
    verdict: Verdict = "pass" if ratio < 1.0 else "fail"
    said = (
        f"The KV of {split.prompt_tokens} tokens is {say.size(kv)} and takes "
        f"{say.seconds(wire_s)} over the link, prefill takes {say.seconds(split.prefill_s)}; sent "
        f"layer by layer, {say.seconds(split.handoff_exposed_s)} stay exposed, of which "
        f"{say.seconds(_overhead_s(known))} for the commit however few the bytes."
    )
    return rule("link", verdict, said, ratio, 1.0, "hand-off / prefill")


def _overhead_s(known: Known) -> float:
    """What every hand-off of the best split costs that no quicker link takes away."""
    best = known.best("split")
    setting = best.arrangement.setting if best else None
    wire = known.scene.wires.get(
        ((setting.prefill_box or ""), (setting.decode_box or "")) if setting else ("", "")
    )
    return wire.commit_s + wire.round_trip_s / 2.0 if wire else 0.0


def decode_memory(known: Known) -> RuleResult:
    """Rule 7: all conversations in flight fit the decode box."""
    split = known.best("split")
    if split is None:
        return not_asked("decode_memory", "bytes", "No split can be run on these boxes.")
    writes = split.arrangement.setting.decode_box or ""
    room = next(room for room in known.rooms if room.box == writes)
    tokens = (known.kind.prompt_tokens + known.kind.output_tokens) * max(1.0, _at_once(split))
    need = known.scene.shape.kv_bytes(int(tokens), known.scene.kv_dtype)
    if room.memory is None:
        said = f"About {say.size(need)} of KV are in flight; {writes}'s memory is not known."
        return rule("decode_memory", "unknown", said, need, None, "bytes")
    verdict: Verdict = "pass" if need <= room.kv_room else "fail"
    said = (
        f"About {say.size(need)} of KV are in flight on {writes}, which has room for "
        f"{say.size(room.kv_room)} beside the weights."
    )
    return rule("decode_memory", verdict, said, need, room.kv_room, "bytes")


def chunked_first(known: Known) -> RuleResult:
    """Rule 8: chunked prefill on one box does not hold the targets already."""
    chunked = known.best("colocated", "chunked")
    targets = known.asked.targets
    if chunked is None or (targets.ttft_s is None and targets.tpot_s is None):
        return not_asked("chunked_first", "attainment", "No target was given to be held.")
    value = chunked.attainment
    holds = value >= HELD
    box = chunked.arrangement.first
    said = (
        f"Chunked prefill on {box} alone keeps {say.percent(value)} of the requests inside the "
        f"targets" + (": that is enough." if holds else ".")
    )
    return rule("chunked_first", "fail" if holds else "pass", said, value, HELD, "attainment")


def all_rules(known: Known) -> tuple[RuleResult, ...]:
    """The eight rules in order, for boxes of which at least one fits the model."""
    alone = known.best("colocated")
    alone_row = _row(known, alone.arrangement) if alone else None
    split = known.best("split")
    two = len(known.asked.boxes) > 1
    return (
        fits(known.rooms),
        real_link(known.asked, known.scene),
        someone(known),
        prefill_heavy(known, alone_row)
        if alone_row
        else not_asked("prefill_heavy", "share", "No box serves alone."),
        machines_differ(known)
        if two
        else not_asked("machines_differ", "ratio", "There is one box."),
        link_quick(known, _row(known, split.arrangement) if split else None),
        decode_memory(known),
        chunked_first(known),
    )


def _row(known: Known, arrangement: Arrangement) -> LedgerRow:
    return ledger_row(known.scene, arrangement, known.kind)


def mean_kind(asked: Asked) -> PromptClass:
    """The load's mean request, by the classes' shares."""
    classes = asked.workload.classes
    total = sum(kind.share for kind in classes)
    prompt = sum(k.share * k.mean_prompt_tokens for k in classes)
    output = sum(k.share * k.mean_output_tokens for k in classes)
    return PromptClass(
        name="mean",
        prompt_tokens=asked.workload.first_prompt_tokens(round(prompt / total)),
        output_tokens=max(1, round(output / total)),
    )

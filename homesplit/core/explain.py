"""The advice in sentences: why this arrangement, by how much, and what is only guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homesplit_engine.records import ModeSetting

from homesplit.core import say
from homesplit.core.candidates import Asked, commit_of, kv_dtype, longest_tokens
from homesplit.core.choose import ABOUT_AS_GOOD, SIMPLICITY, Choice
from homesplit.core.cost import placed
from homesplit.core.handoff import COMMIT_S
from homesplit.core.handoff_fit import HandoffFit
from homesplit.core.machine import BUSY_WORDS, FOREIGN_GPUS, UNUSED_WORDS, BoxProfile
from homesplit.core.plan import BoxBatch, ModePrediction, RuleResult
from homesplit.core.predict import Outlook
from homesplit.core.scene import MAX_BATCH, MAX_STEP_TOKENS, Scene

UNSTEADY = 0.30
"""Samples of one figure that lie further apart, beside their median, were disturbed."""
SAME = 0.005
"""Rates that differ by less are told as equal."""
ALIKE = 1.0 - ABOUT_AS_GOOD
"""A lead up to this is a tie whatever the fits are off by."""
ROUGH = 0.08
"""A calibration that misses its own steps by more in the median was disturbed."""


def verdict(
    asked: Asked,
    choice: Choice,
    modes: Sequence[ModePrediction],
    sustainable: bool | None,
    rules: Sequence[RuleResult],
    measured: str | None = None,
    users: str | None = None,
) -> str:
    """The recommendation in one to four sentences."""
    best = choice.best
    parts = [f"{_capital(best.arrangement.words())}: {_figures(best, asked)}."]
    if measured:
        parts.append(measured)
    reason = _reason(choice, rules)
    if reason:
        parts.append(reason)
    if choice.tie and choice.runner_up:
        parts.append(_tie(best, choice.runner_up))
    if best.arrangement.mode == "colocated" and len(asked.boxes) > 1 and choice.runner_up:
        other = next(b.name for b in asked.boxes if b.name != best.arrangement.first)
        told = "" if _ahead(choice.runner_up, best) <= ALIKE else " that could be told"
        parts.append(f"Under this load {other} adds nothing{told}.")
    if sustainable is False:
        parts.append(users or _unsustainable(asked, modes))
    if asked.link is not None and asked.link.loopback:
        parts.append("Both boxes are one machine, so this says nothing of a network.")
    return " ".join(parts)


def _tie(best: Outlook, other: Outlook) -> str:
    ahead, mode = _ahead(other, best), other.arrangement.mode
    if ahead <= ALIKE:
        return f"It is a tie with {mode}, so the simpler one is taken."
    return (
        f"It is a tie with {mode}: its lead of {say.percent(ahead)} is less than the "
        f"{say.percent(best.doubt)} that the boxes' calibration is off by, so the simpler one is "
        "taken."
    )


def _ahead(one: Outlook, other: Outlook) -> float:
    """The share of one's goodput that the other lacks."""
    return 1.0 - other.goodput / one.goodput if one.goodput > 0 else 0.0


def _reason(choice: Choice, rules: Sequence[RuleResult]) -> str | None:
    """The sentence of the rule that weighs most for this answer."""
    by_id = {rule.id: rule for rule in rules}
    mode = choice.best.arrangement.mode
    if by_id["fits"].verdict == "fail":
        return by_id["fits"].sentence
    if mode == "split":
        order = ("machines_differ", "link")
        said = [by_id[name].sentence for name in order if by_id[name].verdict == "pass"]
        return " ".join(said) or None
    against = ("someone_to_interrupt", "link", "chunked_first", "prefill_heavy", "machines_differ")
    if by_id["machines_differ"].verdict == "pass":
        # Boxes made for a split, which one user alone would win by too: then it is the link.
        against = ("link", *against)
    failed = [by_id[name].sentence for name in against if by_id[name].verdict == "fail"]
    return failed[0] if failed else None


def _figures(made: Outlook, asked: Asked) -> str:
    figures, targets = made.figures, asked.targets
    said: list[str] = []
    if targets.ttft_s is not None or targets.tpot_s is not None:
        said.append(f"{say.percent(made.attainment)} of the requests inside the targets")
    if figures.ttft_s.p50 is not None:
        said.append(f"TTFT {say.seconds(figures.ttft_s.p50)}")
    if figures.tpot_s.p50 is not None:
        said.append(f"TPOT {say.seconds(figures.tpot_s.p50)}")
    said.append(say.request_rate(made.goodput))
    return ", ".join(said)


def _unsustainable(asked: Asked, modes: Sequence[ModePrediction]) -> str:
    able = [
        m.capacity_requests_per_s
        for m in modes
        if m.mode != "auto" and m.capacity_requests_per_s is not None
    ]
    most = max(able, default=0.0)
    if most <= 0:
        return "The targets are not sustainable on these boxes at any rate."
    which = next(m for m in modes if m.capacity_requests_per_s == most and m.mode != "auto")
    return (
        f"Not sustainable at this rate; {say.offered_rate(most, asked.workload.turns)} would be, "
        f"with {which.mode}"
        f"{f' ({which.prefill} prefill)' if which.mode != 'split' else ''}."
    )


def batching(asked: Asked, scene: Scene, setting: ModeSetting) -> tuple[BoxBatch, ...]:
    """The batch policy of each box that an arrangement uses, by its role."""
    split, longest = setting.mode == "split", longest_tokens(asked.workload)
    only = setting.decode_box if setting.mode == "colocated" else None
    found: list[BoxBatch] = []
    for box in scene.boxes:
        if only not in (None, box.name):
            continue
        reads = not split or box.name == setting.prefill_box
        writes = not split or box.name == setting.decode_box
        chunked = setting.prefill == "chunked"
        tokens = (setting.chunk_tokens if chunked else None) or MAX_STEP_TOKENS
        answers = max(1, min(MAX_BATCH, box.kv_tokens // longest))
        how = (
            f"reads up to {tokens:,} prompt tokens beside the answers of each step"
            if chunked
            else f"reads whole prompts, up to {tokens:,} tokens in a step of their own"
        )
        told = [how] if reads else []
        told += [f"writes up to {answers} answers at once"] if writes else []
        found.append(
            BoxBatch(
                box=box.name,
                reads=reads,
                writes=writes,
                prompt_tokens_a_step=tokens if reads else None,
                answers_at_once=answers if writes else None,
                sentence=f"{box.name} {' and '.join(told)}.",
            )
        )
    return tuple(found)


def runner_up(asked: Asked, choice: Choice) -> str:
    """The next best mode and by how much it is behind."""
    best, other = choice.best, choice.runner_up
    assert other is not None
    name = _capital(other.arrangement.words())
    if best.goodput <= 0 and other.goodput <= 0:
        return f"{name} comes next; neither brings a request inside the targets."
    harder = SIMPLICITY[other.arrangement.mode] > SIMPLICITY[best.arrangement.mode]
    rest = ", with more to run." if harder else ", and makes people wait longer."
    if best.goodput > 0 and abs(other.goodput / best.goodput - 1.0) < SAME:
        return f"{name} gets as many, {say.request_rate(other.goodput)}{rest}"
    if other.goodput >= best.goodput:
        ahead = f"{other.goodput / best.goodput - 1.0:.0%}" if best.goodput > 0 else "more"
        return f"{name} gets {say.request_rate(other.goodput)} ({ahead} more){rest}"
    behind = 1.0 - other.goodput / best.goodput
    return f"{name} gets {say.request_rate(other.goodput)}, {say.percent(behind)} less."


def guesses(asked: Asked, scene: Scene) -> tuple[str, ...]:
    """What the figures rest on that nobody measured here."""
    said: list[str] = []
    for box, sim in zip(asked.boxes, scene.boxes, strict=True):
        cost = sim.cost
        if box.source.startswith("profile"):
            said.append(
                f"{box.name}: step times come from maker figures; prefill may take "
                f"{cost.prefill_low:.2g} to {cost.prefill_high:.2g} times, a decode step "
                f"{cost.decode_low:.2g} to {cost.decode_high:.2g} times what is shown. Probe it."
            )
        elif cost.fit is None:
            said.append(
                f"{box.name}: step times come from probes, not from the engine itself; they may "
                f"be {cost.prefill_low:.2g} to {cost.prefill_high:.2g} times what is shown."
            )
        elif cost.fit.refitted:
            said.append(
                f"{box.name}: the engine was timed with other weights than these; what they "
                "change is by the cost model. Deploy so and calibrate again."
            )
        elif cost.fit.error_p50 > ROUGH:
            said.append(
                f"{box.name}: the engine's steps were timed while something else kept the box "
                f"busy (off by {say.percent(cost.fit.error_p50)} in the median). Calibrate again."
            )
        said += [f"{box.name}: {word}." for word in box.warnings if UNUSED_WORDS in word]
        if box.device in FOREIGN_GPUS:
            said.append(
                f"{box.name}: its GPU ({box.device}) is counted with, as an engine made for it "
                "would use it; homesplit's own runs on its processor."
            )
        if box.memory_bytes.value is None:
            said.append(f"{box.name}: memory is not known ({box.memory_bytes.why}).")
    link = asked.link
    if link is not None and not link.source.startswith("probe"):
        said.append(f"The link's rate was not measured between these boxes ({link.source}).")
    if link is not None and link.latency_s.p50.value is None:
        said.append(f"The link's latency is not known ({link.latency_s.p50.why}); 0 was taken.")
    if scene.wires and not any(fit.handoffs for fit in map(_commit(asked), scene.wires)):
        said.append(
            f"What a hand-off takes beside its bytes was not timed between these boxes; "
            f"{say.seconds(COMMIT_S)} was taken, as on two busy cores. Calibrate them."
        )
    if link is None and len(asked.boxes) > 1:
        said.append("No link was given, so no split was looked at.")
    if not asked.shape.counted:
        said.append(f"{asked.shape.name}: parameters as stated by its profile.")
    return tuple(said)


def busy(asked: Asked, scene: Scene) -> str | None:
    """Which boxes were busy when they were probed, where that is all that is known of them.

    A busy box gives rates that may be far too low, so that is said beside the advice itself.
    """
    boxes = [
        box.name
        for box, sim in zip(asked.boxes, scene.boxes, strict=True)
        if sim.cost.fit is None and box.source == "probe" and _disturbed(box)
    ]
    if not boxes:
        return None
    named = " and ".join(boxes)
    was, its = ("was", "its") if len(boxes) == 1 else ("were", "their")
    return (
        f"But {named} {was} busy or unsteady when probed: {its} figures may be far too low, and so "
        f"this advice wrong. Probe again at rest: homesplit probe "
        f"{' '.join(box.name for box in asked.boxes)}."
    )


def beyond_context(asked: Asked) -> str | None:
    """That the load asks for more tokens than the model takes, where its config tells how many."""
    most, longest = asked.shape.max_context, longest_tokens(asked.workload)
    if most is None or longest <= most:
        return None
    return (
        f"But {asked.shape.name} takes {most:,} tokens at most, prompt and answer together, "
        f"and this load asks for up to {longest:,}: a request that is longer will be refused."
    )


def _disturbed(box: BoxProfile) -> bool:
    """Whether a probe's own words or its samples tell of other work on the box."""
    read = (box.memory_bytes_per_s, *box.flops_per_s.values())
    scattered = any((reading.spread or 0.0) > UNSTEADY for reading in read if reading.known)
    return scattered or any(word.startswith(BUSY_WORDS) for word in box.warnings)


def _commit(asked: Asked) -> Callable[[tuple[str, str]], HandoffFit]:
    return lambda pair: commit_of(asked, pair)


def weights(asked: Asked) -> str:
    """The formats that are reckoned with: of the weights on each box, and of the KV cache."""
    told: dict[str, list[str]] = {}
    for box in asked.boxes:
        shape = placed(box, asked.shape, asked.weights, beside=asked.boxes)
        kept = f"int8, tables in {shape.dtype}" if shape.table_bytes else shape.dtype
        told.setdefault(f"{kept} ({say.size(shape.weights_bytes)})", []).append(box.name)
    each = [f"{kept} on {' and '.join(names)}" for kept, names in told.items()]
    return f"{asked.shape.name} in {', '.join(each)}; KV cache in {kv_dtype(asked)}"


def sources(asked: Asked, scene: Scene) -> tuple[str, ...]:
    """What the figures rest on: each box's step times, the link, the hand-off's own cost."""
    probed = {box.name: box.probed_at for box in asked.boxes}
    said = [f"{sim.name}: {_dated(sim.cost.source, probed.get(sim.name))}" for sim in scene.boxes]
    if asked.link is not None and scene.wires:
        said.append(f"link: {_dated(asked.link.source, asked.link.probed_at)}")
        fits = {commit_of(asked, pair) for pair in scene.wires}
        timed = [fit for fit in fits if fit.handoffs]
        said += sorted(
            f"hand-off {fit.sender} to {fit.receiver}: {say.seconds(fit.commit_s)} beside its "
            f"bytes, timed over {fit.handoffs} of them{f', {fit.at[:10]}' if fit.at else ''}"
            for fit in timed
        )
        if not timed:
            said.append(f"hand-off: {say.seconds(COMMIT_S)} beside its bytes, not timed here")
    return tuple(said)


def _dated(source: str, at: str | None) -> str:
    """With the time of a probe, which is saved and taken again until there is a newer one."""
    return f"{source}, {at[:16].replace('T', ' ')} UTC" if source == "probe" and at else source


def within(chosen: ModePrediction) -> tuple[str, ...]:
    """How far TTFT and TPOT of what is advised may lie apart, where both ends are known."""
    told = [
        f"{name} {say.seconds_span(found.low, found.high)}"
        for name, found in (("TTFT", chosen.ttft_s), ("TPOT", chosen.tpot_s))
        if found.low is not None and found.high is not None and found.low < found.high
    ]
    if not told:
        return ()
    ends = "with steps as short and as long as they may be"
    return (f"{_capital(chosen.mode)} may get {say.listed(told)}, {ends}.",)


def auto_ahead(modes: Sequence[ModePrediction], turns: int = 1) -> tuple[str, ...]:
    """A word about `auto` where it is predicted to do clearly better than what is advised."""
    best = modes[0].goodput_requests_per_s or 0.0
    auto = next((m.goodput_requests_per_s or 0.0 for m in modes if m.mode == "auto"), 0.0)
    if auto <= 1.05 * best or auto <= 0:
        return ()
    kept = " (a later turn goes where its conversation is cached)" if turns > 1 else ""
    return (
        f"Mode auto is predicted to get {say.request_rate(auto)}, more than what is advised{kept}; "
        f"it goes by rates that are only known while serving, so measure it: homesplit compare "
        f"--modes {modes[0].mode},auto.",
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

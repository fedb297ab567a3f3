"""The advice as lines of text: the verdict first, then rules, modes, ledger and flips."""

from __future__ import annotations

from collections.abc import Iterator

from homesplit.core import say
from homesplit.core.plan import LedgerRow, MeasuredFigures, ModePrediction, Plan, Suited

LEAST_NAME = 34
_MARKS = {"pass": "✓", "fail": "✗", "unknown": "?", "n/a": "–"}


def plan_lines(plan: Plan) -> Iterator[str]:
    """One plan, line by line."""
    yield plan.recommendation.sentence
    if plan.recommendation.runner_up_sentence:
        yield plan.recommendation.runner_up_sentence
    if plan.suited is not None and not plan.sustainable:
        yield plan.suited.sentence + _as_options(plan.suited)
    yield ""
    yield "Rules (✓ speaks for a split)"
    for number, rule in enumerate(plan.rules, 1):
        yield f"  {_MARKS[rule.verdict]} {number}. {rule.sentence}"
    if plan.modes:
        # Names of boxes are as long as they are, and what tells arrangements apart comes last.
        wide = max(LEAST_NAME, *(len(_name_of(mode)) for mode in plan.modes))
        yield ""
        yield f"  {'mode':{wide}} {'TTFT p50':>9} {'TPOT p50':>9} {'inside':>7} {'capacity':>18}"
        for mode in plan.modes:
            yield _mode_line(mode, wide)
            if mode.measured is not None and plan.measured_at:
                yield _measured_line(mode.measured, plan.measured_at, wide)
        yield ""
        yield f"  {'goodput for':{wide}} {'a box':>9} {'a Wh':>9} {'1,000 paid':>12}"
        yield from (_taken_line(mode, wide) for mode in plan.modes)
    if plan.ledger:
        yield ""
        yield "Where one request's time goes"
        yield (
            f"  {'mode':10} {'class':8} {'prompt':>7} {'queue':>8} {'router':>8} {'prefill':>8} "
            f"{'hand-off':>8} {'exposed':>8} {'decode':>8} {'TTFT':>8} {'TTST':>8}"
        )
        yield from (_ledger_line(row) for row in plan.ledger)
    for title, sentences in (
        ("What a step takes", [each.sentence for each in plan.recommendation.batching]),
        ("What would change it", [flip.sentence for flip in plan.flips]),
        ("What it rests on", [*([plan.weights] if plan.weights else []), *plan.sources]),
        ("What is guessed", list(plan.guesses)),
    ):
        if sentences:
            yield ""
            yield title
            yield from (f"  {sentence}" for sentence in sentences)


def _as_options(found: Suited) -> str:
    return (
        f" As options: --ttft {found.ttft_s:g} --tpot {found.tpot_s:g} "
        f"--rate {found.rate_requests_per_s / found.turns:g}"
    )


def _name_of(mode: ModePrediction) -> str:
    if mode.mode == "split":
        sent = f" ({mode.kv_wire})" if mode.kv_wire not in (None, "same") else ""
        return f"split {mode.prefill_box} > {mode.decode_box}{sent}"
    where = f" on {mode.boxes[0]}" if mode.mode == "colocated" else ""
    return f"{mode.mode}{where} {mode.prefill}"


def _mode_line(mode: ModePrediction, wide: int) -> str:
    inside = "–" if mode.attainment is None else say.percent(mode.attainment)
    most = mode.capacity_requests_per_s
    capacity = "–" if most is None else say.request_rate(most)
    ttft, tpot = _seconds(mode.ttft_s.p50), _seconds(mode.tpot_s.p50)
    return f"  {_name_of(mode):{wide}} {ttft:>9} {tpot:>9} {inside:>7} {capacity:>18}"


def _taken_line(mode: ModePrediction, wide: int) -> str:
    """Goodput by what it takes; a dash where no probe and no profile knows it."""
    hour, price = mode.goodput_per_watt_hour, mode.goodput_per_price
    told = (
        "–" if mode.goodput_per_box is None else f"{mode.goodput_per_box:.2g}/s",
        "–" if hour is None else f"{hour:.3g}",
        "–" if price is None else f"{1000 * price:.2g}/s",
    )
    return f"  {_name_of(mode):{wide}} {told[0]:>9} {told[1]:>9} {told[2]:>12}"


def _measured_line(seen: MeasuredFigures, at: str, wide: int) -> str:
    inside = "–" if seen.attainment is None else say.percent(seen.attainment)
    rate = seen.goodput_requests_per_s
    goodput = "–" if rate is None else f"got {say.request_rate(rate)}"
    name = f"  measured {at[:10]}, {seen.offered} asked"
    ttft, tpot = _seconds(seen.ttft_p50_s), _seconds(seen.tpot_p50_s)
    return f"  {name:{wide}} {ttft:>9} {tpot:>9} {inside:>7} {goodput:>18}"


def _ledger_line(row: LedgerRow) -> str:
    parts = (
        row.queue_s,
        row.tokenise_s,
        row.prefill_s,
        row.handoff_s,
        row.handoff_exposed_s,
        row.first_decode_s,
        row.ttft_s,
        row.ttst_s,
    )
    cells = " ".join(f"{_seconds(part):>8}" for part in parts)
    return f"  {row.mode:10} {row.class_[:8]:8} {row.prompt_tokens:>7} {cells}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else say.seconds(value)

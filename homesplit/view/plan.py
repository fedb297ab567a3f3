"""The Plan screen: the question, the verdict, the rules with numbers, the ledger, the flips."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from homesplit.core import say
from homesplit.core.choices import Choices
from homesplit.core.plan import LedgerRow, ModePrediction, Plan, RuleResult
from homesplit.view import numbers, plan_cost, plan_grounds
from homesplit.view.spans import EMPTY, Line, Lines, Span, clean, crop, fit, line, width_of, wrap

VERDICT_MARKS = {"pass": "✓", "fail": "✗", "unknown": "?", "n/a": "–"}
_VERDICT_ROLES = {"pass": "good", "fail": "bad", "unknown": "warn", "n/a": "dim"}
NO_PLAN = (
    "No advice yet. Choose what will be asked on the left, with ← and →; enter works it out.\n"
    "One box, a copy on each, or one box reading prompts and the other writing answers?"
)


# --------------------------------------------------------------------------- question


def question_rows(choices: Choices, width: int) -> tuple[tuple[str, Line], ...]:
    """The question's knobs: id and drawn row of each."""
    ttft, tpot = choices.targets.ttft_s, choices.targets.tpot_s
    own = choices.workload is None
    asked = "as in workload" if width >= 30 else "workload's"
    rows: list[tuple[str, str, str, bool]] = [
        ("boxes", "boxes", " + ".join(choices.boxes) or "none (see 1)", True),
        ("model", "model", choices.model, True),
        ("workload", "workload", choices.workload or "own lengths", True),
        (
            "prompt_tokens",
            "prompt",
            f"{numbers.count(choices.prompt_tokens)} tokens" if own else asked,
            own,
        ),
        (
            "output_tokens",
            "answer",
            f"{numbers.count(choices.output_tokens)} tokens" if own else asked,
            own,
        ),
        ("users", "users", numbers.count(choices.users) if own else asked, own),
        ("ttft", "1st token", numbers.seconds(ttft) if ttft else "no target", True),
        ("tpot", "each token", numbers.seconds(tpot) if tpot else "no target", True),
    ]
    return tuple(
        (
            key,
            crop(
                (
                    *fit(line(Span(label, "dim")), 15 if width >= 30 else 11),
                    Span("◂ " if turnable else "  ", "faint"),
                    Span(clean(text), "strong" if turnable else "dim"),
                    Span(" ▸" if turnable else "", "faint"),
                ),
                width,
            ),
        )
        for key, label, text, turnable in rows
    )


_STEPS_TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_STEPS_USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_STEPS_TTFT = (None, 0.1, 0.2, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_STEPS_TPOT = (None, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)


def turned(
    choices: Choices, knob: str, step: int, models: tuple[str, ...], workloads: tuple[str, ...]
) -> Choices:
    """The question with one knob turned by `step` notches; a knob at its end stays there."""
    match knob:
        case "model" if models:
            return replace(choices, model=_around(models, choices.model, step))
        case "workload" if workloads:
            name = _around((None, *workloads), choices.workload, step)
            return replace(choices, workload=name)
        case "prompt_tokens":
            notch = _notch(_STEPS_TOKENS, choices.prompt_tokens, step)
            return replace(choices, prompt_tokens=notch)
        case "output_tokens":
            notch = _notch(_STEPS_TOKENS, choices.output_tokens, step)
            return replace(choices, output_tokens=notch)
        case "users":
            return replace(choices, users=_notch(_STEPS_USERS, choices.users, step))
        case "ttft":
            ttft = _around(_STEPS_TTFT, choices.targets.ttft_s, step)
            own = ("", choices.targets_from[1])
            return replace(choices, targets=replace(choices.targets, ttft_s=ttft), targets_from=own)
        case "tpot":
            tpot = _around(_STEPS_TPOT, choices.targets.tpot_s, step)
            own = (choices.targets_from[0], "")
            return replace(choices, targets=replace(choices.targets, tpot_s=tpot), targets_from=own)
        case _:
            return choices


def _notch(steps: tuple[int, ...], value: int, step: int) -> int:
    nearest = min(range(len(steps)), key=lambda n: abs(steps[n] - value))
    return steps[max(0, min(len(steps) - 1, nearest + step))]


_T = TypeVar("_T")


def _around(items: tuple[_T, ...], value: _T, step: int) -> _T:
    place = items.index(value) if value in items else _place(items, value)
    return items[(place + step) % len(items)]


def _place(items: tuple[_T, ...], value: _T) -> int:
    """The nearest figure's place for one that lies between the notches; else the first."""
    if not isinstance(value, float):
        return 0
    near = [(abs(one - value), n) for n, one in enumerate(items) if isinstance(one, float)]
    return min(near)[1] if near else 0


# ---------------------------------------------------------------------------- verdict


def verdict(plan: Plan | None, width: int) -> Lines:
    """The advice in one sentence, the runner-up, and whether it is a tie."""
    if plan is None:
        return tuple(
            row for part in NO_PLAN.split("\n") for row in (*wrap(part, width, "dim"), EMPTY)
        )
    advice = plan.recommendation
    name = advice.mode or "none of the arrangements"
    style = f" ({advice.prefill} prefill)" if advice.mode and advice.prefill else ""
    lines: list[Line] = [
        *_badge(line(Span(f" {name}{style} ", "!key")), _roles_of(plan), _tie_of(plan), width),
        *_said(advice.sentence, width),
    ]
    if advice.runner_up_sentence or advice.runner_up:
        text = advice.runner_up_sentence or f"Runner-up: {advice.runner_up}."
        lines.extend(wrap(text, width, "dim"))
    lines.extend(plan_grounds.suited(plan, width))
    return tuple(crop(one, width) for one in lines)


def _said(advice: str, width: int) -> Lines:
    """The advice, its first sentence so that the eye finds it."""
    first, stop, rest = advice.partition(". ")
    return (*wrap(f"{first}{stop}", width, "strong"), *wrap(rest, width))


def _badge(name: Line, roles: Line, remarks: Line, width: int) -> Lines:
    """The arrangement's name, who does what, and remarks; below each other where they don't fit."""
    if width_of((*name, *roles, *remarks)) <= width:
        return ((*name, *roles, *remarks),)
    below = tuple((Span(one.text.strip(), one.role),) for one in remarks)
    if width_of((*name, *roles)) <= width:
        return ((*name, *roles), *below)
    return (name, tuple(roles[1:]), *below)


def _roles_of(plan: Plan) -> Line:
    advice = plan.recommendation
    if advice.mode == "split":
        return line(
            "  ",
            Span(f"{advice.prefill_box} reads", "prefill"),
            " ━▶ ",
            Span(f"{advice.decode_box} writes", "decode"),
        )
    if advice.mode == "colocated" and advice.decode_box:
        return line("  ", Span(f"on {advice.decode_box}", "strong"))
    return ()


def _tie_of(plan: Plan) -> Line:
    found: list[Span] = [*plan_grounds.remarks(plan)]
    if plan.tie:
        found.append(Span("  a tie: measure it with Compare", "warn"))
    if plan.sustainable is False:
        found.append(Span("  none holds the targets", "bad"))
    return tuple(found)


# ------------------------------------------------------------------------------ rules


def rules(plan: Plan, width: int) -> Lines:
    """Each rule with its tick, number against threshold, and sentence."""
    rows: list[Line] = []
    for number, rule in enumerate(plan.rules, start=1):
        rows.extend(_rule(number, rule, width))
    return tuple(rows)


def _rule(number: int, rule: RuleResult, width: int) -> Lines:
    mark = Span(VERDICT_MARKS[rule.verdict], _VERDICT_ROLES[rule.verdict])
    head = line(Span(f"{number} ", "dim"), mark, " ", Span(rule.id.replace("_", " "), "strong"))
    figure = _rule_figure(rule)
    indent = 25 if width >= 64 else 21
    told = wrap(rule.sentence, max(width - indent - 1, 20), "dim")
    first = (*fit(head, indent - 1), Span(" "), *figure)
    whole = (*fit(first, 2 * indent + 12), Span(clean(rule.sentence), "dim"))
    if figure and width_of(whole) <= width and width_of(first) < 2 * indent + 12:
        return (whole,)
    if not figure:
        rest = told[1:]
        return (
            crop((*fit(head, indent), *(told[0] if told else EMPTY)), width),
            *((Span(" " * indent), *more) for more in rest),
        )
    return (crop(first, width), *((Span(" " * indent), *more) for more in told))


def _rule_figure(rule: RuleResult) -> Line:
    if rule.value is None:
        return ()
    parts: list[Span] = [Span(_figure(rule.value, rule.unit), "strong")]
    if rule.threshold is not None:
        parts.append(Span(f" against {_figure(rule.threshold, rule.unit)}", "dim"))
    return tuple(parts)


_TIMES = ("ratio", "hand-off / prefill")


def _figure(value: float, unit: str) -> str:
    """A rule's number in the unit that people read."""
    if unit in _TIMES:
        return f"{numbers.significant(value)}×"
    if unit == "attainment":
        return numbers.share(value)
    if unit == "bytes":
        return say.size(value)
    if unit == "bytes/s":
        return numbers.link_rate(value)
    if unit == "requests at once":
        return f"{numbers.significant(value, 2)} at once"
    return numbers.with_unit(value, unit)


# ----------------------------------------------------------------------------- ledger

LEDGER_PARTS = (
    ("queue", "queue_s", "queue", "░"),
    ("tokenise", "tokenise_s", "dim", "t"),
    ("prefill", "prefill_s", "prefill", "█"),
    ("hand-off", "handoff_exposed_s", "handoff", "▒"),
    ("first decode", "first_decode_s", "decode", "▓"),
)


def ledger(plan: Plan, width: int, ttft_target_s: float | None) -> Lines:
    """Where the time to the second token goes, a stacked bar for each mode and class."""
    if not plan.ledger:
        return (line(Span("The plan holds no ledger.", "dim")),)
    label = 27 if width >= 70 else 18
    room = max(width - label - 10, 10)
    top = max(max(sum(_parts(row)), ttft_target_s or 0.0) for row in plan.ledger) or 1.0
    rows: list[Line] = [_ledger_legend()]
    previous = ""
    for row in plan.ledger:
        name = row.mode if row.mode != previous else ""
        previous = row.mode
        what = f"{row.class_} {row.prompt_tokens}+{row.output_tokens}"
        head = fit(line(Span(fit_text(name, 11), "strong"), Span(what, "dim")), label - 1)
        total = sum(_parts(row))
        drawn = stacked(_parts(row), top, room)
        rows.append(crop((*head, Span(" "), *drawn, Span(f" {numbers.seconds(total)}")), width))
    return tuple(rows)


def fit_text(text: str, width: int) -> str:
    """`text` in exactly `width` characters."""
    return text[:width].ljust(width)


def _parts(row: LedgerRow) -> tuple[float, ...]:
    return (
        row.queue_s,
        row.tokenise_s,
        row.prefill_s,
        row.handoff_exposed_s,
        row.first_decode_s,
    )


def stacked(parts: tuple[float | None, ...], top: float, width: int) -> Line:
    """Parts of one bar, each with its own glyph as well as its own hue; None takes no room."""
    spans: list[Span] = []
    used, reached = 0, 0.0
    for value, (_, _, role, glyph) in zip(parts, LEDGER_PARTS, strict=True):
        if not value or value <= 0:
            continue
        reached += value
        end = min(round(reached / top * width), width)
        if end > used:
            spans.append(Span(glyph * (end - used), role))
            used = end
    spans.append(Span(" " * (width - used)))
    return tuple(spans)


def _ledger_legend() -> Line:
    spans: list[Span] = []
    for name, _, role, glyph in LEDGER_PARTS:
        if name != "tokenise":
            spans.extend((Span(glyph, role), Span(f" {name}  ", "dim")))
    return (*spans, Span("to the second token", "dim"))


# --------------------------------------------------------------- predictions and flips


def predictions(plan: Plan, width: int) -> Lines:
    """Every arrangement's predicted figures in a table."""
    heads = ("TTFT p50", "TPOT p50", "stall p90", "inside", "goodput")
    first = 26
    cell = max(9, min(12, (width - first) // len(heads)))
    top = [*fit(line(Span("predicted", "dim")), first)]
    for head in heads:
        top.extend(fit(line(Span(head, "dim")), cell, right=True))
    rows: list[Line] = [tuple(top)]
    for mode in plan.modes:
        rows.append(_prediction(mode, plan, first, cell, width))
        if mode.measured is not None and plan.measured_at:
            rows.append(
                plan_grounds.measured_row(mode.measured, plan.measured_at, first, cell, width)
            )
    return tuple(rows)


def _prediction(mode: ModePrediction, plan: Plan, first: int, cell: int, width: int) -> Line:
    best = plan_cost.recommended(mode, plan)
    mark = Span("▸ " if best else "  ", "key")
    where = "+".join(mode.boxes) if mode.mode == "colocated" else ""
    style = mode.prefill if mode.mode in ("colocated", "replica") else ""
    name = line(
        mark,
        Span(mode.mode, "strong" if best else ""),
        Span(f" {style} {where}", "dim"),
    )
    if mode.why_not:
        return crop((*fit(name, first), Span(f"  {clean(mode.why_not)}", "dim")), width)
    figures = (
        numbers.seconds(mode.ttft_s.p50),
        numbers.seconds(mode.tpot_s.p50),
        numbers.seconds(mode.stall_s.p90),
        numbers.share(mode.attainment),
        numbers.per_second(mode.goodput_requests_per_s),
    )
    cells: list[Span] = []
    for figure in figures:
        cells.extend(fit(line(Span(figure, "strong" if best else "")), cell, right=True))
    return crop((*fit(name, first), *cells), width)


def flips(plan: Plan, width: int) -> Lines:
    """What would have to change for another arrangement to win."""
    if not plan.flips:
        return (line(Span("Nothing near would change the answer.", "dim")),)
    rows: list[Line] = []
    for flip in plan.flips:
        told = wrap(flip.sentence, width - 2)
        rows.extend((Span("⇄ " if n == 0 else "  ", "key"), *part) for n, part in enumerate(told))
    return tuple(rows)


def guesses(plan: Plan, width: int) -> Lines:
    """What the advice had to guess."""
    if not plan.guesses:
        return wrap("Nothing was guessed: every figure was measured or given.", width, "dim")
    rows: list[Line] = []
    for guess in plan.guesses:
        told = wrap(guess, width - 2, "dim")
        rows.extend((Span("~ " if n == 0 else "  ", "warn"), *part) for n, part in enumerate(told))
    return tuple(rows)

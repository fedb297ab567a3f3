"""What the plan rests on, what was measured against it, and what these boxes can hold."""

from __future__ import annotations

from homesplit.core.plan import MeasuredFigures, Plan
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, clean, crop, fit, line, wrap

TIMED, PROBED, STATED = ("●", "good"), ("◐", ""), ("○", "warn")
LEGEND = line(
    Span("● ", "good"),
    Span("timed  ", "dim"),
    Span("◐ ", ""),
    Span("probed  ", "dim"),
    Span("○ ", "warn"),
    Span("only stated", "dim"),
)
_PLAIN = {"typed": "typed in"}


def sources(plan: Plan, width: int) -> Lines:
    """Each box's, the link's and the hand-off's grounds, with a mark for how far to trust them."""
    told = [_parted(text) for text in plan.sources]
    label = max((len(what) for what, _ in told), default=0) + 1
    label = min(label, max(width // 3, 8))
    rows: list[Line] = list(wrap(plan.weights, width, "dim")) if plan.weights else []
    for what, ground in told:
        mark, role = _trust(what, ground)
        head = line(Span(f"{mark} ", role), *fit(line(Span(clean(what), "strong")), label))
        said = wrap(_plain(what, ground), max(width - label - 2, 16), "dim")
        rows.extend(
            crop((*(head if n == 0 else (Span(" " * (label + 2)),)), *part), width)
            for n, part in enumerate(said)
        )
    if told:
        rows.append(crop(LEGEND, width))
    rows.extend(wrap(_measured_words(plan), width, "good" if plan.overruled else "dim"))
    return tuple(rows)


def summary(plan: Plan) -> str:
    """The boxes' grounds in a few words, for a border."""
    named = {"●": "timed", "◐": "probed", "○": "stated"}
    told = [_parted(text) for text in plan.sources]
    return " · ".join(
        f"{clean(what)} {named[_trust(what, ground)[0]]}"
        for what, ground in told
        if what in plan.boxes
    )


def _parted(text: str) -> tuple[str, str]:
    """What a ground is of, and the ground; a hand-off's boxes go with the latter."""
    what, _, ground = text.partition(": ")
    if what.startswith("hand-off "):
        return "hand-off", f"{what.removeprefix('hand-off ')}: {ground}"
    return what, ground


def _trust(what: str, ground: str) -> tuple[str, str]:
    """Timed, probed, or only stated."""
    if ground.startswith("calibrated") or (what == "hand-off" and "timed over" in ground):
        return TIMED
    return PROBED if ground.startswith("probe") else STATED


def _plain(what: str, ground: str) -> str:
    if ground.startswith("probe"):
        words = "measured between these boxes" if what == "link" else "probes of the box"
        return words + ground.removeprefix("probe")
    if ground.startswith("profile: ") and what != "link":
        return f"its maker's figures ({ground.removeprefix('profile: ')})"
    return _PLAIN.get(ground, ground)


def _measured_words(plan: Plan) -> str:
    if plan.measured_at is None:
        return "Never measured here under this load, mode against mode: Compare does."
    day = plan.measured_at[:10]
    if plan.overruled:
        return (
            f"Compared on {day}: the measurement overrules the model, which expected "
            f"{plan.overruled} to be best."
        )
    return f"Compared on {day} under this very load: what was measured stands below the prediction."


def remarks(plan: Plan) -> Line:
    """That a comparison has the last word, to stand beside the arrangement's name."""
    if plan.overruled:
        return line(Span("  the measurement overrules the model", "good"))
    if plan.measured_at and plan.modes and plan.modes[0].measured is not None:
        return line(Span("  measured here", "good"))
    return ()


def measured_row(seen: MeasuredFigures, at: str, first: int, cell: int, width: int) -> Line:
    """What was measured of an arrangement, under the columns of its prediction."""
    name = line(Span(f"  measured {at[5:10]}, {seen.offered} sent", "good"))
    figures = (
        numbers.seconds(seen.ttft_p50_s),
        numbers.seconds(seen.tpot_p50_s),
        "",
        numbers.share(seen.attainment),
        numbers.per_second(seen.goodput_requests_per_s),
    )
    cells = [span for text in figures for span in fit(line(Span(text, "good")), cell, right=True)]
    return crop((*fit(name, first), *cells), width)


def suited(plan: Plan, width: int) -> Lines:
    """A load that these boxes hold, where the one asked about is beyond them or has no targets."""
    if plan.suited is None or plan.sustainable:
        return ()
    return wrap(f"{plan.suited.sentence} f asks with these targets.", width, "key")

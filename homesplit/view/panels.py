"""Monitor's panels: TTFT, TPOT and the longest wait, each against its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homesplit_engine.words import percentiles
from msgspec import Struct

from homesplit.core.state import Done
from homesplit.core.workload import Targets
from homesplit.view import numbers
from homesplit.view.history import FIGURES
from homesplit.view.prompt_classes import PromptClass, place_by_length
from homesplit.view.spans import Line, Lines, Span, crop, line, sparkline, width_of, wrap


class Panel(Struct, frozen=True, kw_only=True):
    """One figure over the last minute, against its target."""

    which: str
    target_s: float | None
    p50: float | None
    p90: float | None
    by_class: tuple[tuple[str, float | None], ...]
    history: tuple[float | None, ...]
    """The p50 of each of the last 30 ten-second slots, newest last."""


class Seen:
    """The figures of the requests that were completed of late, class by class."""

    def __init__(self, requests: Iterable[Done], classes: Sequence[PromptClass]) -> None:
        self.names = tuple(one.name for one in classes)
        place = place_by_length(classes)
        self._values: dict[str, list[list[float]]] = {
            which: [[] for _ in classes] for which in FIGURES
        }
        ttft, tpot, gap = self._values.values()
        for done in requests:
            if done.outcome == "completed":
                at = place(done.prompt_tokens)
                for values, value in (
                    (ttft[at], done.ttft_s),
                    (tpot[at], done.tpot_s),
                    (gap[at], done.longest_gap_s),
                ):
                    if value is not None:
                        values.append(value)

    def of(self, which: str) -> list[list[float]]:
        """TTFT (`ttft`), TPOT (`tpot`) or longest gap (`gap`), seconds, by class."""
        return self._values[which]


def panel(
    seen: Seen, which: str, targets: Targets, history: tuple[float | None, ...] = ()
) -> Panel:
    """One figure of the requests `seen` of late against its target."""
    apart = seen.of(which)
    whole = percentiles(value for values in apart for value in values)
    return Panel(
        which=which,
        target_s=targets.ttft_s if which == "ttft" else targets.tpot_s,
        p50=whole.p50,
        p90=whole.p90,
        by_class=tuple(
            (name, percentiles(values).p50) for name, values in zip(seen.names, apart, strict=True)
        ),
        history=history,
    )


MEANINGS = {
    "ttft": "time to the first token",
    "tpot": "time per token after the first",
    "gap": "longest gap within an answer",
    "goodput": "answers/s inside both targets",
}


def nothing_yet(which: str, width: int, height: int) -> Lines:
    """What a panel will tell, in place of figures that there are none of."""
    none = (line(Span("no answers yet", "dim")),) if height >= 4 else ()
    return (*wrap(MEANINGS[which], width, "dim", limit=2), *none)


def panel_lines(found: Panel, width: int, height: int, source: str = "") -> Lines:
    """A panel as lines: figure and tick, target and its source, classes, history."""
    if found.p50 is None:
        return nothing_yet(found.which, width, height)
    target = found.target_s
    ok = target is None or found.p50 <= target
    mark = Span("✓ ", "good") if ok else Span("✗ ", "bad")
    head = as_fits(
        line(mark, Span(numbers.seconds(found.p50), "strong")),
        f"  p90 {numbers.seconds(found.p90)}",
        width,
    )
    rows: list[Line] = [head]
    goal = f"target {numbers.seconds(target)}" if target is not None else "no target"
    rows.append(as_fits(line(Span(goal, "dim")), f" = {source}" if source else "", width, "dim"))
    classes = [(name, value) for name, value in found.by_class if value is not None]
    if height >= 4:
        rows.append(line(Span(_class_words(classes, width), "dim")))
    if height >= 4:
        known = [value for value in found.history if value is not None]
        top = max([*known, target or 0.0], default=1.0)
        rows.append(sparkline(found.history, min(width, 30), "decode", top))
    return tuple(crop(row, width) for row in rows)


LEAST_NAME = 3


def _class_words(classes: Sequence[tuple[str, float | None]], width: int) -> str:
    """Each class with its figure, the names shortened so far that all figures are seen."""
    longest = max((len(name) for name, _ in classes), default=0)
    told = ""
    for most in range(longest, LEAST_NAME - 1, -1):
        told = "  ".join(
            f"{name if len(name) <= most else name[: most - 1] + '…'} {numbers.seconds(value)}"
            for name, value in classes
        )
        if len(told) <= width:
            break
    return told


def as_fits(head: Line, more: str, width: int, role: str = "") -> Line:
    """`head`, with `more` behind it where there is room for all of it."""
    whole = (*head, Span(more, role))
    return whole if width_of(whole) <= width else head

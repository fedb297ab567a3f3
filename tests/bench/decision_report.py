"""What the measured cells of the decision grid say, as a page."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from homesplit.core.choose import ABOUT_AS_GOOD, MOST_DOUBT
from tests.bench.decision_cells import INSTALLED_OVER, LINKS, all_cells, mean

RESULTS = Path(__file__).with_name("results")
LINES, TABLE = RESULTS / "decisions.jsonl", RESULTS / "decisions.md"
ENOUGH, NEVER_BELOW = 0.95, 0.80
WORTH_COMPARING = 0.6
"""Modes with less of a cell's best goodput are out of the question there."""


def done_cells(since: str = "") -> dict[str, dict[str, Any]]:
    """The newest line of each measured cell, of those measured at `since` or later."""
    if not LINES.exists():
        return {}
    lines = [json.loads(line) for line in LINES.read_text().splitlines()]
    return {line["cell"]: line for line in lines if line["at"] >= since}


def regret(line: dict[str, Any]) -> float | None:
    """The recommended mode's goodput over the best one's; None where none had any."""
    best = max(mode["goodput"] for mode in line["modes"].values())
    return line["modes"][line["recommended"]]["goodput"] / best if best > 0 else None


def report() -> str:
    """The table of all measured cells."""
    lines = [done_cells()[name] for name in all_cells() if name in done_cells()]
    shares = [share for line in lines if (share := regret(line)) is not None]
    good = sum(share >= ENOUGH for share in shares)
    weights = " and ".join(sorted({line["weights"] for line in lines})) or "same"
    told = [
        "# The advice against the measurement",
        "",
        f"{len(lines)} of {len(all_cells())} cells measured, {len(shares)} with any goodput. "
        f"The recommended mode had at least {ENOUGH:.0%} of the best goodput in {good} of "
        f"{len(shares)}"
        + (
            f"; the lowest share was {min(shares):.0%} (aim: never below {NEVER_BELOW:.0%})."
            if shares
            else "."
        ),
        "",
        f"Made by `python -m tests.bench.decisions --weights {weights}` and `--report`, on two "
        "boxes of the lab on one machine. One row a cell; of each mode the arrangement that the "
        "advice puts first: measured goodput in requests/s (predicted). Bold: recommended. Where "
        "`--again` was run, advice and prediction are those of the code as it is now for the "
        "question as it was measured (boxes, calibration, link, requests).",
        "",
        "| boxes/link/load | share of best | load of the computer | modes |",
        "|---|---|---|---|",
    ]
    told += [_row(line) for line in lines]
    told += prediction_lines(lines)
    told += mode_lines(lines)
    told += lead_lines(lines)
    told += repeat_lines(lines)
    told += ["", "## How this grid came about", "", HISTORY]
    return "\n".join(told) + "\n"


ERRORS = {
    "ttft_p50": ("TTFT p50", 0.10),
    "ttft_p90": ("TTFT p90", 0.20),
    "tpot_p50": ("TPOT p50", 0.10),
    "tpot_p90": ("TPOT p90", 0.20),
    "attainment": ("attainment", 0.05),
    "goodput": ("goodput", 0.10),
}
"""What is predicted, and how far off it may be: relative, attainment in points."""


def prediction_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How far the predictions lay from the measurements, over all modes of all cells."""
    told = [
        "",
        "## Predicted beside measured",
        "",
        "Of every mode of every cell: (predicted - measured) / measured, of attainment the "
        "difference in points; mean and median without sign. Where a cell was measured over "
        "several rounds, against their mean.",
    ]
    for old, said in ((False, ""), (True, "Cells predicted for a load that goes on:")):
        chosen = [line for line in lines if ("predicted_of" not in line) == old]
        if not chosen:
            continue
        told += ["", *([said, ""] if said else [])]
        told += ["| figure | compared | mean | median | mean with sign | within the aim |"]
        told += ["|---|---|---|---|---|---|"]
        for key, (name, aim) in ERRORS.items():
            told.append(_error_row(name, errors_of(chosen, key), aim))
    return told


def errors_of(lines: Sequence[dict[str, Any]], key: str) -> list[float]:
    """The signed error of one figure in each mode that has both sides of it."""
    found: list[float] = []
    for line in lines:
        for mode in line["modes"].values():
            guess = mode["predicted"].get(key)
            seen = [r[key] for r in mode["rounds"] if r.get(key) is not None]
            if guess is None or not seen:
                continue
            measured = mean(seen)
            if key == "attainment":
                found.append(guess - measured)
            elif measured > 0:
                found.append(guess / measured - 1.0)
    return found


HISTORY = (
    "All cells were measured on 2026-12-01, the machine at rest, the boxes calibrated anew at each "
    "link. Equal boxes' quiet, chat and docs from 100 Mbit/s on between 05:55 and 06:03, their "
    "other cells between 03:47 and 04:12, unequal boxes' between 04:43 and 05:12. The first of "
    "them found a fault: the desk's SSH forwarding held tokens back for up to 40 ms (OpenSSH sets "
    "TCP_NODELAY only where a session began; `homesplit/io/ssh_box.py`). A client's first token "
    "came 37 ms after the router's, and comes 2 to 3 after it now. The 13 cells of before 04:30 "
    "have that in them. That a lead within what the calibration is off by is a tie was learnt from "
    "older cells like these. On 20 Mbit/s the router gives hand-offs of a queue up; the simulator "
    "asks its rule. By how much a box's words may be late there was taken from the equal boxes' "
    "bursts and answers, so these two cells don't prove it."
)
OF_BEFORE = (
    "{old} of the {all} cells are of before 2026-11-30 21:40: no calibration timed there what a "
    "client adds or what opening KV takes, and its fit lay below the middle of steps that "
    "scattered; the boxes were deployed "
    "over 1 Gbit/s, so that the router took slower links for broken ones and gave hand-offs up: "
    "there a split's TPOT is lower than predicted. Last row of the table: without those links."
)
NOT_MODELLED = (
    "Not modelled: how single steps scatter, that opening touches memory which a step needs too, "
    "and what the router's own processor takes of the box that it runs on beyond what the "
    "calibration timed there."
)


def mode_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Which way the predictions are off, by mode."""
    told = [
        "",
        "By mode, mean with sign (cells whose calibration timed no step beside the other box's: "
        f"{sum(_alone_only(line) for line in lines)} of {len(lines)}; there a mode that uses both "
        "boxes at once is predicted as if they did not share one machine):",
        "",
        "| mode | modes measured | TTFT p50 | TPOT p50 |",
        "|---|---|---|---|",
    ]
    told += [_mode_row(lines, mode) for mode in ("colocated", "replica", "split")]
    known = [line for line in lines if not _taken_for_broken(line)]
    if len(known) < len(lines):
        told.append(_mode_row(known, "split"))
    old = sum("begun_over" not in line for line in lines)
    if old:
        told += ["", OF_BEFORE.format(old=old, all=len(lines))]
    return [*told, "", NOT_MODELLED]


def _mode_row(lines: Sequence[dict[str, Any]], mode: str) -> str:
    chosen = [_of_mode(line, mode) for line in lines]
    errors = [errors_of(chosen, key) for key in ("ttft_p50", "tpot_p50")]
    signed = " | ".join(f"{mean(each):+.0%}" if each else "–" for each in errors)
    return f"| {mode} | {len(errors[0])} | {signed} |"


def _taken_for_broken(line: dict[str, Any]) -> bool:
    """Whether the router knew of a faster link than there was."""
    over, link = line.get("begun_over", INSTALLED_OVER), line["cell"].split("/")[1]
    return LINKS.index(link) < LINKS.index(over)


def _alone_only(line: dict[str, Any]) -> bool:
    """Whether no box's calibration says how steps go beside the other's."""
    fits = line.get("asked", {}).get("calibrations", ())
    return not any("together" in fit for fit in fits)


def _of_mode(line: dict[str, Any], mode: str) -> dict[str, Any]:
    modes = {name: each for name, each in line["modes"].items() if name.startswith(mode)}
    return {**line, "modes": modes}


def lead_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How far off the predicted leads of one mode over another are, beside the width of a tie."""
    found = [pair for line in lines for pair in _leads(line)]
    if not found:
        return []
    misses = sorted(abs(math.log(measured / told)) for told, measured, _ in found)
    sure = [(told, measured) for told, measured, width in found if told > 1.0 / (1.0 - width)]
    wrong = sum(measured < 1.0 for _, measured in sure)
    return [
        "",
        "## How sure a lead is",
        "",
        "A lead within what the boxes' calibration is off by (in the median over the cells "
        f"{statistics.median(width for *_, width in found):.0%}) is told as a tie. Of "
        f"{len(found)} pairs of modes of one cell of which the lesser was told at least "
        f"{WORTH_COMPARING:.0%} of the cell's best goodput, the predicted lead was off by "
        f"{statistics.median(misses):.0%} in the median and {_p90(misses):.0%} in nine of ten; of "
        f"{len(sure)} leads told as such {wrong} turned out the other way.",
    ]


def _leads(line: dict[str, Any]) -> list[tuple[float, float, float]]:
    """(told, measured, the tie's width) of each pair of modes that are near each other."""
    doubt = max(fit["error_p50"] for fit in line["calibrations"])
    width = max(1.0 - ABOUT_AS_GOOD, min(MOST_DOUBT, doubt))
    goods = [(m["predicted"]["goodput"] or 0.0, m["goodput"]) for m in line["modes"].values()]
    best = max(told for told, _ in goods)
    near = [(t, m) for t, m in goods if t >= WORTH_COMPARING * best and m > 0 and t > 0]
    pairs = itertools.combinations(sorted(near, reverse=True), 2)
    return [(one[0] / other[0], one[1] / other[1], width) for one, other in pairs]


def _p90(ordered: Sequence[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def repeat_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How well measurements of one and the same thing agree: no prediction can do better.

    Colocated and replica use no link, so cells that differ in the link alone measure them anew.
    """
    told = [
        "",
        "## How well the measurement repeats itself",
        "",
        "Colocated and replica send nothing between the boxes, so the cells of one pair and load "
        "that differ in the link alone measure them again and again. Pairs of such measurements "
        "within the aim of each other, beside predictions of the same modes within the aim:",
        "",
        "| figure | two measurements agree | prediction and measurement agree |",
        "|---|---|---|",
    ]
    groups = _repeated(lines)
    for key, (name, aim) in ERRORS.items():
        pairs = [
            _apart(key, one, other)
            for group in groups
            for one, other in itertools.permutations(_seen_in(group, key), 2)
        ]
        guesses = [
            _apart(key, guess, seen)
            for group in groups
            for mode in group
            if (guess := mode["predicted"].get(key)) is not None
            for seen in _seen_in([mode], key)
        ]
        told.append(f"| {name} | {_share_within(pairs, aim)} | {_share_within(guesses, aim)} |")
    return told


def _repeated(lines: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The modes that were measured in several cells though the link is nothing to them."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        pair, _, load = line["cell"].split("/")
        for name, mode in line["modes"].items():
            if name.startswith(("colocated", "replica")):
                groups.setdefault((pair, load, name), []).append(mode)
    return [group for group in groups.values() if len(group) > 1]


def _seen_in(modes: Sequence[dict[str, Any]], key: str) -> list[float]:
    """One figure as it was measured, the mean of its rounds, of each mode that has it."""
    told = ([r[key] for r in mode["rounds"] if r.get(key) is not None] for mode in modes)
    return [mean(values) for values in told if values]


def _apart(key: str, one: float, other: float) -> float:
    """How far apart; of attainment the difference, else relative to the other."""
    if key == "attainment":
        return abs(one - other)
    return abs(one / other - 1.0) if other else float(one != other)


def _share_within(errors: Sequence[float], aim: float) -> str:
    if not errors:
        return "–"
    inside = sum(error <= aim for error in errors)
    return f"{inside} of {len(errors)} ({inside / len(errors):.0%})"


def _error_row(name: str, errors: Sequence[float], aim: float) -> str:
    if not errors:
        return f"| {name} | 0 | – | – | – | – |"
    sizes = [abs(error) for error in errors]
    inside = sum(size <= aim for size in sizes)
    points = 100.0 if name == "attainment" else 1.0
    told = [points * value for value in (mean(sizes), statistics.median(sizes), mean(errors))]
    middle, median, signed = (
        [f"{v:.0f} points" for v in told[:2]] + [f"{told[2]:+.0f} points"]
        if name == "attainment"
        else [f"{v:.0%}" for v in told[:2]] + [f"{told[2]:+.0%}"]
    )
    limit = f"{aim * 100:.0f} points" if name == "attainment" else f"{aim:.0%}"
    return f"| {name} | {len(errors)} | {middle} | {median} | {signed} | {inside} within {limit} |"


def _row(line: dict[str, Any]) -> str:
    cells: list[str] = []
    for name, mode in sorted(line["modes"].items(), key=lambda item: -item[1]["goodput"]):
        text = f"{name} {mode['goodput']:.2f} ({mode['predicted']['goodput'] or 0:.2f})"
        cells.append(f"**{text}**" if name == line["recommended"] else text)
    share = regret(line)
    told = "no goodput in any" if share is None else f"{share:.0%}"
    return f"| {line['cell']} | {told} | {line['loadavg']:.1f} | {'; '.join(cells)} |"

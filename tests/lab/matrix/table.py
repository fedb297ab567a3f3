"""Keeps results, a line a cell, and draws the table of them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence

import msgspec

from tests.lab.matrix.cells import FAULTS, HIT_BOX, MODES, MOMENTS, WHAT, Cell, all_cells
from tests.lab.matrix.moments import BESIDE_TOKENS, HANDOFF_CHARS, TARGET_CHARS
from tests.lab.matrix.pauses import ALLOWANCE_S, Pause
from tests.lab.matrix.run import Result
from tests.lab.matrix.stand import DETECTION_S, LINK_MBIT
from tests.lab.store import CHECKOUT

JSONL = CHECKOUT / "tests/bench/results/faults.jsonl"
PAGE = CHECKOUT / "tests/bench/results/faults.md"


def keep(result: Result) -> None:
    """Add one result; the last one of a cell counts."""
    with JSONL.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def read() -> list[Result]:
    """Every run of every cell, oldest first."""
    if not JSONL.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in JSONL.read_bytes().splitlines()]


def last_of_each(runs: Sequence[Result]) -> dict[str, Result]:
    """The last run of each cell."""
    return {result.cell: result for result in runs}


def write_table() -> None:
    """The page of results."""
    runs = read()
    cells, results = all_cells(), last_of_each(runs)
    exist = [cell for cell in cells if cell.why_not is None]
    ran = [results[cell.name] for cell in exist if cell.name in results]
    lines = [*_head(len(cells), len(exist), ran, runs), *_tried(ran), *_pauses(ran)]
    for mode in MODES:
        lines += [f"## {mode}", "", "| fault | " + " | ".join(MOMENTS) + " |"]
        lines += ["|---" * (len(MOMENTS) + 1) + "|"]
        for fault in FAULTS:
            row = [_shown(Cell(fault, moment, mode), results) for moment in MOMENTS]
            lines.append(f"| {WHAT[fault]} | " + " | ".join(row) + " |")
        lines.append("")
    failed = [result for result in runs if not result.ok]
    if failed:
        lines += ["## Runs that were not as they must be", ""]
        lines += [_failed(result, results[result.cell]) for result in failed]
        lines.append("")
    lines += ["## Makes no sense", ""]
    reasons = sorted({cell.why_not for cell in cells if cell.why_not})
    lines += [f"- {reason}" for reason in reasons]
    PAGE.write_text("\n".join(lines) + "\n")


def _head(cells: int, exist: int, ran: list[Result], runs: list[Result]) -> list[str]:
    today = datetime.date.today().isoformat()
    good = sum(result.ok and result.moment_met for result in ran)
    late = sum(result.ok and not result.moment_met for result in ran)
    bad = sum(not result.ok for result in ran)
    return [
        "# Faults",
        "",
        f"`python -m tests.lab.matrix`, {today}, {os.cpu_count()} cores shared with other work.",
        f"Two boxes in network namespaces on a {LINK_MBIT} Mbit/s link, both workers and the",
        "router as supervised processes, a random model of 8 KiB of KV a token. The target's",
        f"prompt of {TARGET_CHARS} tokens ({HANDOFF_CHARS} where it is met after it was read and",
        "before it was handed over) is new for every cell; beside it run a greedy answer and",
        "a sampled one of two choices with penalties and log-probabilities; every answer has 120",
        f"tokens, the greedy one beside {BESIDE_TOKENS}.",
        "",
        f"Of {cells} cells {exist} exist; {len(ran)} were run ({len(runs)} runs with repetitions):",
        f"{good} as they must be, {late} in which the moment could not be met and the fault,",
        f"which came later, did no harm, {bad} not as they must be. As it must be: no admitted",
        "request lost, every text (the sampled ones too) that of the engine alone and undisturbed,",
        "no token twice or missing, nothing held afterwards on either box, the box taken in again",
        "without a restart of the others, its loss and its return told, and the same prompt, asked",
        "again, with the same text. A killed router breaks off its own open streams; their text up",
        "to there must be right.",
        "",
        "`ok`: as it must be, with the target's longest pause; (m): the moment could not be met;",
        "`FAIL`; `–`: makes no sense; blank: not run.",
        "",
    ]


def _tried(ran: list[Result]) -> list[str]:
    lines = ["| what was tried | cells | moment met | not as it must be |", "|---|---|---|---|"]
    for fault in FAULTS:
        own = [result for result in ran if result.cell.split("/")[0] == fault]
        met, bad = sum(one.moment_met for one in own), sum(not one.ok for one in own)
        lines.append(f"| {WHAT[fault]} | {len(own)} | {met} | {bad} |")
    return [*lines, ""]


def _pauses(ran: list[Result]) -> list[str]:
    found = [
        result.pause
        for result in ran
        if result.pause and result.moment_met and result.cell.split("/")[0] in HIT_BOX
    ]
    if not found:
        return []
    parts: list[tuple[str, Callable[[Pause], float]]] = [
        ("longest pause", lambda pause: pause.whole_s),
        ("of that, until the loss was told", lambda pause: pause.noticed_s),
        ("of that, reading again", lambda pause: pause.reading_s),
        ("the rest", lambda pause: pause.rest_s),
        ("(without a core meanwhile)", lambda pause: pause.coreless_s),
    ]
    lines = [
        f"Where a box was lost ({len(found)} cells), in seconds. A loss must be told within the",
        f"detection time of {DETECTION_S:g} s; reading again is what steps of the box that lives",
        f"took for all that were moved to it; the rest may be {ALLOWANCE_S:g} s beside the time in",
        "which router and workers wanted a core and had none (`/proc/PID/task/*/schedstat`).",
        "",
        "| target's pause | p50 | p90 | most |",
        "|---|---|---|---|",
    ]
    for name, part in parts:
        values = sorted(map(part, found))
        at = [values[int(share * (len(values) - 1))] for share in (0.5, 0.9, 1.0)]
        lines.append(f"| {name} | " + " | ".join(f"{value:.2f}" for value in at) + " |")
    return [*lines, ""]


def _failed(run: Result, last: Result) -> str:
    later = " (a later run of this cell was as it must be)" if last.ok else ""
    return f"- {run.cell}: {'; '.join(run.why)}{later}"


def _shown(cell: Cell, results: dict[str, Result]) -> str:
    if cell.why_not:
        return "–"
    result = results.get(cell.name)
    if result is None:
        return ""
    met = "" if result.moment_met else " (m)"
    pause = f" {result.pause.whole_s:.1f} s" if result.pause else ""
    return f"{'ok' if result.ok else 'FAIL'}{pause}{met}"

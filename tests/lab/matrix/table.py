"""Keeps results, a line a cell, and draws the table of them."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec

from tests.lab.matrix.cells import FAULTS, MODES, MOMENTS, WHAT, Cell, all_cells
from tests.lab.matrix.run import Result
from tests.lab.store import CHECKOUT

JSONL = CHECKOUT / "tests/bench/results/faults.jsonl"


def keep(result: Result) -> None:
    """Add one result; the last one of a cell counts."""
    with JSONL.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def read() -> dict[str, Result]:
    """The last result of each cell."""
    if not JSONL.exists():
        return {}
    lines = JSONL.read_bytes().splitlines()
    results = [msgspec.json.decode(line, type=Result) for line in lines]
    return {result.cell: result for result in results}


def write_table(path: Path) -> None:
    """The page of results."""
    results = read()
    cells = all_cells()
    exist = [cell for cell in cells if cell.why_not is None]
    ran = [results[cell.name] for cell in exist if cell.name in results]
    good, pauses = sum(r.ok for r in ran), _pauses(ran)
    today = datetime.date.today().isoformat()
    lines = [
        "# Faults",
        "",
        f"`python -m tests.lab.matrix`, {today}, {os.cpu_count()} cores shared with other work.",
        "Two boxes in network namespaces on a 30 Mbit/s link, both workers and the router as",
        "supervised processes, a random model of 16 KiB of KV a token, prompts of 60 and 1,000",
        "tokens, answers of 120. Beside the target another greedy answer and a sampled one run.",
        "",
        f"Of {len(cells)} cells {len(exist)} exist; {len(ran)} were run, {good} of them were as",
        "they must be: no admitted request lost, every greedy text that of an undisturbed run,",
        "nothing held afterwards, the box taken in again without a restart of the others, its loss",
        "told.",
        *pauses,
        "",
        "`ok`: as it must be; with (m): the moment could not be met, the fault came later; `FAIL`;",
        "`–`: makes no sense; blank: not run.",
        "",
    ]
    for mode in MODES:
        lines += [f"## {mode}", "", "| fault | " + " | ".join(MOMENTS) + " |"]
        lines += ["|---" * (len(MOMENTS) + 1) + "|"]
        for fault in FAULTS:
            row = [_shown(Cell(fault, moment, mode), results) for moment in MOMENTS]
            lines.append(f"| {WHAT[fault]} | " + " | ".join(row) + " |")
        lines.append("")
    failed = [result for result in ran if not result.ok]
    if failed:
        lines += ["## Not as it must be", ""]
        lines += [f"- {result.cell}: {'; '.join(result.why)}" for result in failed]
        lines.append("")
    lines += ["## Makes no sense", ""]
    reasons = sorted({cell.why_not for cell in cells if cell.why_not})
    lines += [f"- {reason}" for reason in reasons]
    path.write_text("\n".join(lines) + "\n")


def _pauses(ran: list[Result]) -> list[str]:
    found = sorted(r.pause_s for r in ran if r.pause_s is not None and r.bound_s is not None)
    if not found:
        return []
    p50 = found[len(found) // 2]
    return [
        "",
        f"Where a box was lost in the middle of an answer ({len(found)} cells): longest pause p50 "
        f"{p50:.1f} s, most {found[-1]:.1f} s (detection is 2 s, then all on it are read again).",
    ]


def _shown(cell: Cell, results: dict[str, Result]) -> str:
    if cell.why_not:
        return "–"
    result = results.get(cell.name)
    if result is None:
        return ""
    met = "" if result.moment_met else " (m)"
    pause = f" {result.pause_s:.1f} s" if result.pause_s is not None else ""
    return f"{'ok' if result.ok else 'FAIL'}{pause}{met}"

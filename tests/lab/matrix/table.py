"""Keeps results, a line a cell, and draws the table of them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence

import msgspec

from tests.lab.matrix.cells import (
    FAULTS,
    FRAME_FAULTS,
    HIT_BOX,
    MODES,
    MOMENTS,
    WHAT,
    Cell,
    all_cells,
)
from tests.lab.matrix.moments import BESIDE_TOKENS, HANDOFF_CHARS, TARGET_CHARS
from tests.lab.matrix.pauses import ALLOWANCE_S, Pause
from tests.lab.matrix.run import RULE, Result
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
    PAGE.write_text(page(read()))


def page(runs: Sequence[Result]) -> str:
    """The page of results as these runs give it today."""
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
    return "\n".join(lines) + "\n"


_OLDER = (
    "Some cells are of an older run (°): there no pause was judged but where a box was taken",
    "away or a frame damaged, and the monitor was not asked to name the other faults. All that a",
    "process waited for a core was taken off.",
    "",
)


def _head(cells: int, exist: int, ran: list[Result], runs: Sequence[Result]) -> list[str]:
    today = datetime.date.today().isoformat()
    good = sum(result.ok and result.moment_met for result in ran)
    late = sum(result.ok and not result.moment_met for result in ran)
    bad = sum(not result.ok for result in ran)
    older = any(result.rule < RULE for result in ran)
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
        "without a restart of the others, its loss and its return told, every other fault named",
        "by the monitor where there was anything to be seen of it, no pause longer than its bound,",
        "and the same prompt, asked again, with the same text. What a killed router was answering",
        "has to end with its typed error; the text up to there must be right.",
        "",
        *(_OLDER if older else ()),
        "`ok`: as it must be, with the target's longest pause; (m): the moment could not be met;",
        "`FAIL`; `–`: makes no sense; blank: not run.",
        "",
    ]


def _tried(ran: list[Result]) -> list[str]:
    lines = [
        "| what was tried | cells | moment met | not as it must be | named in, after (median) |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        own = [result for result in ran if _fault(result) == fault]
        met, bad = sum(one.moment_met for one in own), sum(not one.ok for one in own)
        named = sorted(one.named_s for one in own if one.named_s is not None)
        told = f"{len(named)}, {named[len(named) // 2]:.1f} s" if named else ""
        lines.append(f"| {WHAT[fault]} | {len(own)} | {met} | {bad} | {told} |")
    examples = [f"- {WHAT[fault]}: {_example(ran, fault)}" for fault in FAULTS]
    return [*lines, "", "What the monitor said, an example of each:", "", *examples, ""]


def _fault(result: Result) -> str:
    return result.cell.split("/")[0]


def _example(ran: list[Result], fault: str) -> str:
    lost = fault in HIT_BOX or fault in FRAME_FAULTS
    own = [one for one in ran if _fault(one) == fault and one.told]
    told = [one.told[0] for one in own if one.named_s is not None or lost]
    return f"\u201c{told[0]}\u201d" if told else "nothing"


def _pauses(ran: list[Result]) -> list[str]:
    lines = [
        "The target's longest pause, in seconds. It is judged in every cell. Where a box was",
        f"taken away the loss must be told within {DETECTION_S:g} s, and what is neither that nor",
        f"reading again may be {ALLOWANCE_S:g} s; elsewhere all but reading and the link's own",
        f"time may be {DETECTION_S:g} + {ALLOWANCE_S:g} s. Reading is what that box's steps took,",
        "the prompts of others among them; the link's own time is what the undisturbed link needs",
        "for the KV that went over it meanwhile. Time outside of those steps in which a process",
        "wanted a core and had none (`/proc/PID/task/*/schedstat`, looked at every 50 ms) is this",
        "computer's and taken off.",
        "",
    ]
    parts: list[tuple[str, Callable[[Pause], float]]] = [
        ("longest pause", lambda pause: pause.whole_s),
        ("until it was noticed", lambda pause: pause.noticed_s),
        ("reading", lambda pause: pause.reading_s),
        ("the link's own time", lambda pause: pause.handing_s),
        ("without a core", lambda pause: pause.coreless_s + pause.coreless_before_s),
    ]
    lines += ["| fault | pauses | " + " | ".join(f"{name}: p50, most" for name, _ in parts)]
    lines[-1] += " | judged part: most | may be |"
    lines.append("|---" * (len(parts) + 4) + "|")
    for fault in FAULTS:
        own = [one for one in ran if one.pause and one.moment_met and _fault(one) == fault]
        # An older run judged these alone.
        lost = fault in HIT_BOX or fault in FRAME_FAULTS
        found = [one.pause for one in own if one.pause and (lost or one.rule == RULE)]
        if not found:
            continue
        older = " °" if lost and any(one.rule < RULE for one in own) else ""
        shown = [_two([part(pause) for pause in found]) for _, part in parts]
        judged = max(pause.rest_s if lost else pause.beside_s for pause in found)
        may = ALLOWANCE_S if lost else DETECTION_S + ALLOWANCE_S
        row = [WHAT[fault] + older, str(len(found)), *shown, f"{judged:.2f}", f"{may:g}"]
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, ""]


def _two(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f}, {ordered[-1]:.2f}"


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
    met += "" if result.rule == RULE else " °"
    pause = f" {result.pause.whole_s:.1f} s" if result.pause else ""
    return f"{'ok' if result.ok else 'FAIL'}{pause}{met}"

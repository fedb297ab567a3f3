"""The advice beside public reports of two machines tried together; makes `results/verdicts.md`.

    python -m tests.bench.verdicts

Rows, and which of them are put to the advice, are those of `tests/core/test_two_box.py`. Needs the
public case files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homesplit.core.plan import Plan
from tests.core.test_two_box import ASSUMED, DISAGREED, LEFT_OUT, agrees, eligible, plan

PAGE = Path(__file__).with_name("results") / "verdicts.md"


def main() -> None:
    """Ask for every row and write the page."""
    found = [(row, plan(row)) for row in eligible()]
    same = sum(agrees(row, made) for row, made in found)
    lines = [
        "# The advice beside public reports of two machines",
        "",
        f"{same} of {len(found)} verdicts are the advice's too. Made by "
        "`python -m tests.bench.verdicts`; `pytest tests/core/test_two_box.py` checks it.",
        "",
        "| report | machines | model | load | reported | advised | same |",
        "|---|---|---|---|---|---|---|",
        *(_row(row, made) for row, made in found),
        "",
        "## Where they differ, and why",
        "",
        *(f"- {row['id']}: {DISAGREED[row['id']]}" for row, made in found if not agrees(row, made)),
        "",
        "## Not put to the advice",
        "",
        *(f"- {name}: {why}." for name, why in LEFT_OUT.items()),
    ]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{same} of {len(found)}")


def _row(row: dict[str, Any], made: Plan) -> str:
    machines = " + ".join(dict.fromkeys(machine["name"] for machine in row["machines"]))
    prompt, output = ASSUMED.get(row["id"]) or (row["prompt_len"], row["output_len"])
    users = row["concurrency"] or 1
    load = users if isinstance(users, str) else f"{users} at a time"
    taken = " (our lengths)" if row["id"] in ASSUMED else ""
    asked = f"{prompt} in, {output} out{taken}, {load}"
    reported = row.get("verdict_without_tp", row["outcome"])
    advised = f"{made.recommendation.mode}{', a tie' if made.tie else ''}"
    same = "yes" if agrees(row, made) else "**no**"
    cells = (row["id"], machines, row["model"], asked, reported, advised, same)
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


if __name__ == "__main__":
    main()

"""Entries of the lab notebook as pages: sentence, table, picture. Plain data in, text out."""

from __future__ import annotations

import csv
import inspect
import io
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.view import notebook_words, svg
from homesplit.view.measured_rows import Page, ends, figure, mark, measured_rows
from homesplit.view.notebook_kinds import kind_tables
from homesplit.view.notebook_words import INTRO
from homesplit.view.percentiles import PARTS, TIMES, percentile_table, thin_words
from homesplit.view.pictures import Picture, drawn_rows, pictures

Kept = tuple[str, ...] | None
"""Names of machines that stayed where the others were replaced; None where none was replaced."""
SHARES = (
    ("attainment", "attainment", ""),
    ("goodput_requests_per_s", "goodput", "requests/s"),
    ("goodput_tokens_per_s", "goodput", "tokens/s"),
    ("throughput_tokens_per_s", "throughput", "tokens/s"),
)
ENERGY = "joules_per_1000_good_tokens"
COUNTS = ("offered", "completed", "failed", "rejected", "cancelled")


def table(page: Page) -> list[list[str]]:
    """Head and rows of the page's counts and shares; empty where the page has none."""
    rows = measured_rows(page)
    if not rows:
        return []
    head = ["", *COUNTS, *(f"{name} [{unit}]" if unit else name for _, name, unit in SHARES)]
    return [head, *(row for name, figures in rows for row in _table_rows(name, figures))]


def _table_rows(name: str, figures: dict[str, Any]) -> list[list[str]]:
    """What was measured, and under it what had been predicted where something was."""
    counts = [str(figures.get(count, "no data")) for count in COUNTS]
    measured = [name, *counts, *(_share(figures, key) for key, _, _ in SHARES)]
    predicted = figures.get("predicted")
    if not isinstance(predicted, dict):
        return [measured]
    values = [figure(predicted, key, None) for key, _, _ in SHARES]
    texts = ["" if value is None else f"{value:.4g}" for value in values]
    return [measured, [f"{name}, predicted", *("" for _ in COUNTS), *texts]]


def _share(figures: dict[str, Any], key: str) -> str:
    """The figure with its interval in brackets."""
    value, found = figure(figures, key, None), ends(figures, key)
    if value is None:
        return "no data"
    told = f"{mark(figures, key)}{value:.4g}"
    return f"{told} ({found[0]:.4g} to {found[1]:.4g})" if found else told


def markdown(pages: Sequence[Page], kept: Kept = None, folder: str | None = None) -> str:
    """All pages as one Markdown text with tables, and with links to their pictures in `folder`.

    `kept` says that names of machines were replaced.
    """
    return "\n\n".join([_head(kept), *(_markdown_page(page, folder) for page in pages)]) + "\n"


def picture_files(pages: Sequence[Page]) -> dict[str, str]:
    """The pictures that go with the Markdown text: SVG by the name of its file."""
    return {_file_name(page, each): each.drawn for page in pages for each in pictures(page)}


def _file_name(page: Page, picture: Picture) -> str:
    return f"entry-{page['number']}-{picture.name}.svg"


def _head(kept: Kept) -> str:
    replaced = () if kept is None else (notebook_words.replaced(kept),)
    return "\n\n".join(["# Lab notebook", *replaced, INTRO])


def _markdown_page(page: Page, folder: str | None = None) -> str:
    measured = measured_rows(page)
    told = (notebook_words.asked(page), notebook_words.machines(page))
    unended = notebook_words.unended(page)
    beside = [f"- {line}" for line in notebook_words.beside(page, measured)]
    lines = [
        _heading(page),
        page["sentence"],
        *_label(page),
        *([f"*{unended}*"] if unended else []),
        *(paragraph for paragraph in told if paragraph),
        *_markdown_table(table(page)),
        *_markdown_table(percentile_table(measured)),
        *thin_words(measured),
        *(part for named in kind_tables(page) for part in _titled_table(*named)),
        *(_links(page, folder) if folder else ()),
        *(["\n".join(beside)] if beside else []),
        *(f"> {note['sentence']}" for note in page.get("notes", [])),
        _about(page),
    ]
    return "\n\n".join(lines)


def _links(page: Page, folder: str) -> list[str]:
    """Every picture of a page as Markdown has it, by its path from the text."""
    return [f"![{each.title}]({folder}/{_file_name(page, each)})" for each in pictures(page)]


def _titled_table(title: str, rows: list[list[str]]) -> list[str]:
    """Sentences of their own read better as a list."""
    if len(rows[0]) == 1:
        return [f"**{title}.**", "\n".join(f"- {row[0]}" for row in rows[1:])]
    return [*([f"**{title}.**"] if title else []), *_markdown_table(rows)]


def _markdown_table(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    head, *others = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return ["\n".join([head, "|" + " --- |" * len(rows[0]), *others])]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _heading(page: Page) -> str:
    return f"## {page['number']} · {page['kind']} · {page['at']}"


def _label(page: Page) -> list[str]:
    told = LOOPBACK_LABEL in page["sentence"]
    return [f"*This is {LOOPBACK_LABEL}.*"] if page["about"].get("loopback") and not told else []


def _about(page: Page) -> str:
    about = page["about"]
    if page["kind"] == "note":
        return f"Entry {page['id']}."
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    seeds = ", ".join(f"{name} {seed}" for name, seed in about["seeds"].items())
    model, fingerprint = about["model"] or "not told", about["fingerprint"] or "not told"
    said = [
        f"Entry {page['id']}",
        f"Model {model}, fingerprint {fingerprint}",
        f"Seeds: {seeds}" if seeds else "No seed was drawn",
        f"Commit {about['git_hash']}" if about["git_hash"] else "Not from a git checkout",
        *([versions] if versions else []),
    ]
    return ". ".join(said) + "."


def jsonl(pages: Sequence[Page], kept: Kept = None) -> str:
    """Everything, one entry a line, raw records with it."""
    lines = [{**page, "names_replaced": kept is not None} for page in pages]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def csv_text(pages: Sequence[Page], kept: Kept = None) -> str:
    """One row for each set of figures; an empty cell is a figure that isn't known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    about = ["entry", "kind", "at", "loopback", "names_replaced", "set"]
    names = [
        name for key, part in _CSV for name in _with_ends(key if not part else f"{key}_{part}")
    ]
    writer.writerow([*about, *COUNTS, *names, ENERGY, "estimated", "sentence"])
    for page in pages:
        for name, figures in drawn_rows(page) or [("", {})]:
            cells = [cell for key, part in _CSV for cell in _csv_cells(figures, key, part)]
            cells.append(_csv_cells(figures, ENERGY, None)[0])
            counts = [figures.get(count, "") for count in COUNTS]
            who = [
                page["id"],
                page["kind"],
                page["at"],
                page["about"].get("loopback"),
                kept is not None,
            ]
            guessed = " ".join(figures.get("estimated") or ())
            writer.writerow([*who, name, *counts, *cells, guessed, page["sentence"]])
    return out.getvalue()


_CSV: tuple[tuple[str, str | None], ...] = (
    *((key, part) for key, _ in TIMES for part in PARTS),
    *((key, None) for key, _, _ in SHARES),
)


def _with_ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _csv_cells(figures: dict[str, Any], key: str, part: str | None) -> tuple[str, str, str]:
    """The figure and the ends of its 95 % interval."""
    value, found = figure(figures, key, part), ends(figures, key, part)
    low, high = found or (None, None)
    told = ["" if each is None else repr(each) for each in (value, low, high)]
    return told[0], told[1], told[2]


def ipynb(pages: Sequence[Page], kept: Kept = None) -> str:
    """A Jupyter notebook (nbformat 4.5) that holds its data, its code and its pictures."""
    cells = [
        _text_cell(
            "intro",
            f"{_head(kept)}\n\nAll data is inside; run all cells to draw it again. "
            "`entries[ID]['body']` holds an entry's figures, `entries[ID]['raw']` the record of "
            "every request.",
        ),
        _code_cell("code", _code(), []),
    ]
    for page in pages:
        key = page["id"]
        cells.append(_text_cell(f"t-{key}", _markdown_page(page)))
        cells.append(_code_cell(f"d-{key}", _data_code(page), []))
        if drawn := pictures(page):
            shown = [_picture_output(each) for each in drawn]
            drawing = "\n".join(each.code for each in drawn)
            cells.append(_code_cell(f"p-{key}", drawing, shown))
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return msgspec.json.format(json.dumps(document, ensure_ascii=False), indent=1) + "\n"


def _text_cell(key: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": key, "metadata": {}, "source": text}


def _code_cell(key: str, code: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": key,
        "metadata": {},
        "execution_count": None,
        "source": code,
        "outputs": outputs,
    }


def _picture_output(picture: Picture) -> dict[str, Any]:
    data = {"image/svg+xml": picture.drawn, "text/plain": picture.title}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def _data_code(page: Page) -> str:
    """The page as a Python string literal of JSON, so that the data needs no file."""
    return f"entries[{page['id']!r}] = json.loads({json.dumps(page, ensure_ascii=True)!r})"


def _code() -> str:
    """The chart code of this very version, and how a page is drawn with it."""
    chart = inspect.getsource(svg).split('"""', 2)[2].strip()
    return f"""import json

{chart.replace("from __future__ import annotations", "").strip()}


entries = {{}}


def draw(chart, title, *given):
    drawn = chart(title, *given)
    try:
        from IPython.display import SVG, display
    except ImportError:
        print(title, len(drawn))
    else:
        display(SVG(drawn))
"""

"""The named sets of figures in an entry's body: modes of a comparison, or a run and its classes."""

from __future__ import annotations

from typing import Any

Page = dict[str, Any]
"""An entry as builtins, with its raw records under `raw`."""

ESTIMATED = "~"
Rows = list[tuple[str, dict[str, Any]]]


def measured_rows(page: Page) -> Rows:
    """Each set of figures with its name; a run's classes only where it has more than one."""
    body = page.get("body")
    if not isinstance(body, dict):
        return []
    if isinstance(body.get("modes"), list):
        modes = [mode for mode in body["modes"] if isinstance(mode, dict) and "ttft_s" in mode]
        return [(mode_name(mode), mode) for mode in modes if "offered" in mode]
    if "offered" not in body:
        return []
    told = {"estimated": body.get("estimated") or []}
    classes = [(name, {**each, **told}) for name, each in body.get("by_class", {}).items()]
    return [("all", body), *(classes if len(classes) > 1 else ())]


def mode_name(mode: dict[str, Any]) -> str:
    """A column of a comparison by the name that its verdict uses: `colocated:whole`, `split`."""
    name, prefill = str(mode.get("mode")), mode.get("prefill")
    if name == "other":
        return f"other server {mode.get('url') or ''}".strip()
    told = prefill if prefill and (name == "colocated" or prefill == "whole") else None
    wire = (mode.get("setting") or {}).get("kv_wire") or mode.get("kv_wire")
    lossy = wire if name in ("split", "auto") and wire not in (None, "same") else None
    return ":".join(part for part in (name, told, lossy) if part)


def figure(figures: dict[str, Any], key: str, part: str | None) -> float | None:
    """One figure, None where there is none; what served nobody has a count alone."""
    if figures.get("no_data"):
        return None
    value = figures.get(key)
    if part is not None:
        value = value.get(part) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def ends(figures: dict[str, Any], key: str, part: str | None = None) -> tuple[float, float] | None:
    """The 95 % interval of a figure, None where there is none."""
    if figures.get("no_data"):
        return None
    found = (figures.get("intervals") or {}).get(key if part is None else f"{key}_{part}")
    if not isinstance(found, dict):
        return None
    return float(found["low"]), float(found["high"])


def mark(figures: dict[str, Any], key: str) -> str:
    """What stands before a figure that is an estimate: it rests on uncounted tokens."""
    return ESTIMATED if key in (figures.get("estimated") or ()) else ""

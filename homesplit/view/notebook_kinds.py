"""What an entry that is no load run holds, as tables: advice, search, probe, deployment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from homesplit.core import say

Page = dict[str, Any]
Table = tuple[str, list[list[str]]]
"""A title (empty for none), then head and rows."""

MISSING = "no data"
_VERDICTS = {"pass": "speaks for a split", "fail": "speaks against", "n/a": "does not apply"}
_OF_A_BOX = (
    ("memory_bytes_per_s", "memory read", "GB/s", 1e9),
    ("memory_copy_bytes_per_s", "memory copied", "GB/s", 1e9),
    ("idle_w", "power at rest", "W", 1.0),
    ("load_w", "power at work", "W", 1.0),
)
_OF_A_LINK = (
    ("a_to_b", "payload, one stream", "Gbit/s", 1e9 / 8),
    ("b_to_a", "payload back, one stream", "Gbit/s", 1e9 / 8),
    ("encrypted_a_to_b", "payload, encrypted", "Gbit/s", 1e9 / 8),
    ("encrypted_b_to_a", "payload back, encrypted", "Gbit/s", 1e9 / 8),
)


def kind_tables(page: Page) -> list[Table]:
    """The tables of a page whose figures are no load run's; none where it has none."""
    body = page.get("body")
    if not isinstance(body, dict):
        return []
    if is_search(body):
        return [("", _trials(body))]
    made: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
        "plan": _plan,
        "probe": _probe,
        "deployment": _deployment,
    }
    tables = made.get(str(page.get("kind")), _nothing)(body)
    return [(title, rows) for title, rows in tables if len(rows) > 1]


def is_search(body: dict[str, Any]) -> bool:
    """Whether an entry is a search for capacity."""
    return isinstance(body.get("trials"), list)


def figure_rows(page: Page) -> list[tuple[str, dict[str, Any]]]:
    """The named sets of figures to draw: a search's rates, or what advice expects of each mode."""
    body = page.get("body")
    if not isinstance(body, dict):
        return []
    if is_search(body):
        return [(_rate(trial), trial) for trial in _records(body, "trials")]
    if page.get("kind") == "plan":
        return [(f"{plan_mode(mode)}, predicted", mode) for mode in _records(body, "modes")]
    return []


def _nothing(body: dict[str, Any]) -> list[Table]:
    return []


def _records(body: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = body.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _number(value: Any, form: str = "{:.3g}", scale: float = 1.0) -> str:
    return form.format(value / scale) if isinstance(value, int | float) else MISSING


# ------------------------------------------------------------------ search for capacity


def _rate(trial: dict[str, Any]) -> str:
    value = trial.get("rate_requests_per_s")
    return say.rate(float(value)) if isinstance(value, int | float) else MISSING


def _trials(body: dict[str, Any]) -> list[list[str]]:
    head = ["rate", "runs", "offered", "given up", "inside", "attainment", "95 % interval", ""]
    return [head, *(_trial(trial) for trial in _records(body, "trials"))]


def _trial(trial: dict[str, Any]) -> list[str]:
    low, high = trial.get("low"), trial.get("high")
    known = isinstance(low, int | float) and isinstance(high, int | float)
    holds = {True: "holds", False: "too much", None: "not shown to hold"}
    counts = [str(trial.get(key, 0)) for key in ("runs", "offered", "left", "inside")]
    return [
        _rate(trial),
        *counts,
        _number(trial.get("attainment")),
        f"{low:.3g} to {high:.3g}" if known else MISSING,
        _late(trial) or holds[trial.get("holds")],
    ]


def _late(trial: dict[str, Any]) -> str:
    """That the generator was late where nothing else is known of a rate; empty elsewhere."""
    late, runs = trial.get("late_runs"), trial.get("runs")
    if not late or trial.get("holds") is not None:
        return ""
    told = "not judged" if late == runs else "not clear"
    return f"{told}: the load generator was {say.seconds(trial['late_s'])} late (p99)"


# ------------------------------------------------------------------------------ plan


def plan_mode(mode: dict[str, Any]) -> str:
    """A mode of advice by its boxes and how it reads."""
    name, boxes = str(mode.get("mode")), mode.get("boxes") or []
    if name == "split":
        return f"split {mode.get('prefill_box')} > {mode.get('decode_box')}"
    where = f" on {boxes[0]}" if name == "colocated" and boxes else ""
    return f"{name}{where} ({mode.get('prefill')})"


def _plan(body: dict[str, Any]) -> list[Table]:
    flips = [[str(flip.get("sentence"))] for flip in _records(body, "flips")]
    return [
        ("What each mode is predicted to do", _expected(body)),
        ("Rules", _rules(body)),
        ("Where one request's time goes, seconds", _ledger(body)),
        ("What would change it", [["flip"], *flips]),
        ("What it rests on", [["source"], *([str(told)] for told in body.get("sources") or ())]),
        ("What is guessed", [["guess"], *([str(told)] for told in body.get("guesses") or ())]),
    ]


def _expected(body: dict[str, Any]) -> list[list[str]]:
    head = ["mode", "TTFT p50 [s]", "interval", "TPOT p50 [s]", "interval", "stalled p90 [s]"]
    head += ["attainment", "goodput [requests/s]", "capacity [requests/s]", "per box"]
    return [head, *(_expected_mode(mode) for mode in _records(body, "modes"))]


def _expected_mode(mode: dict[str, Any]) -> list[str]:
    ttft, tpot = mode.get("ttft_s") or {}, mode.get("tpot_s") or {}
    return [
        plan_mode(mode),
        *(_number(ttft.get("p50")), _span(ttft), _number(tpot.get("p50")), _span(tpot)),
        _number((mode.get("stall_s") or {}).get("p90")),
        _number(mode.get("attainment")),
        _number(mode.get("goodput_requests_per_s")),
        _number(mode.get("capacity_requests_per_s")),
        _number(mode.get("goodput_per_box")),
    ]


def _span(found: dict[str, Any]) -> str:
    return f"{_number(found.get('low'))} to {_number(found.get('high'))}"


def _rules(body: dict[str, Any]) -> list[list[str]]:
    rows = [["rule", "value", "threshold", "unit", "verdict", ""]]
    for rule in _records(body, "rules"):
        verdict = str(rule.get("verdict"))
        rows.append(
            [
                str(rule.get("id", "")).replace("_", " "),
                _number(rule.get("value"), "{:.4g}"),
                _threshold(rule.get("threshold")),
                str(rule.get("unit") or ""),
                _VERDICTS.get(verdict, verdict),
                str(rule.get("sentence")),
            ]
        )
    return rows


def _threshold(value: Any) -> str:
    return "none" if value is None else _number(value, "{:.4g}")


def _ledger(body: dict[str, Any]) -> list[list[str]]:
    parts = ("queue", "tokenise", "prefill", "handoff", "handoff_exposed", "first_decode")
    keys = [f"{part}_s" for part in (*parts, "ttft", "ttst")]
    names = [part.replace("handoff", "hand-off").replace("_", " ") for part in parts]
    rows = [["mode", "class", "prompt tokens", *names, "TTFT", "TTST"]]
    for row in _records(body, "ledger"):
        times = [_number(row.get(key)) for key in keys]
        rows.append(
            [str(row.get("mode")), str(row.get("class")), str(row["prompt_tokens"]), *times]
        )
    return rows


# ------------------------------------------------------------------ probe, deployment


def _probe(body: dict[str, Any]) -> list[Table]:
    rows = [["", "figure", "value", "unit", "samples", "how, or why not"]]
    for box in _records(body, "boxes"):
        name = str(box.get("name"))
        rows += [_reading(name, what, box.get(key), u, n) for key, what, u, n in _OF_A_BOX]
        rows += [
            _reading(name, f"matrix products in {dtype}", found, "GFLOP/s", 1e9)
            for dtype, found in (box.get("flops_per_s") or {}).items()
        ]
    link = body.get("link")
    if isinstance(link, dict):
        name = f"{link.get('a')} to {link.get('b')}"
        rows += [_reading(name, what, link.get(key), u, n) for key, what, u, n in _OF_A_LINK]
        trips = link.get("latency_s") or {}
        rows += [
            _reading(name, f"round trip {part}", trips.get(part), "ms", 1e-3)
            for part in ("p50", "p99")
        ]
    return [("", rows)]


def _reading(name: str, what: str, found: Any, unit: str, scale: float) -> list[str]:
    reading = found if isinstance(found, dict) else {}
    value = reading.get("value")
    if value is None:
        return [name, what, "not known", unit, "", str(reading.get("why") or "not measured")]
    told = "; ".join([str(reading.get("method") or ""), *(reading.get("warnings") or ())])
    count = str(len(reading.get("samples") or ()) or "")
    return [name, what, _number(value, "{:.4g}", scale), unit, count, told]


def _deployment(body: dict[str, Any]) -> list[Table]:
    rows = [["box", "state", "fingerprint", ""]]
    for box in _records(body, "boxes"):
        router = "the router runs here" if box.get("box") == body.get("router_box") else ""
        told = "; ".join(part for part in (router, str(box.get("why") or "")) if part)
        mark = str(box.get("fingerprint") or "not told")[:16]
        rows.append([str(box.get("box")), str(box.get("state")), mark, told])
    return [("", rows), ("", _setting(body.get("setting")))]


def _setting(setting: Any) -> list[list[str]]:
    if not isinstance(setting, dict):
        return []
    keys: Sequence[str] = [key for key, value in setting.items() if value is not None]
    return [[key.replace("_", " ") for key in keys], [str(setting[key]) for key in keys]]

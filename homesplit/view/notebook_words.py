"""What stands around the figures of a notebook's entry, so that a stranger can judge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from homesplit.core.bench_result import energy_words, seconds_text
from homesplit.core.capacity import LEAST_REQUESTS
from homesplit.core.load_words import asked_words
from homesplit.core.say import by_names, counted, listed, rate, seconds_span
from homesplit.core.served import as_asked_words
from homesplit.core.workload import Workload

Page = dict[str, Any]

INTRO = """What was measured, newest last: a sentence, what was asked, the figures, and what \
stands beside them. All times are seconds where no unit stands.

- **TTFT**: from sending a request to its first token, as its reader sees it. **TTST**: to its \
second.
- **TPOT**: (last − first token) / (tokens − 1) of one request. **ITL**: each gap between two \
tokens.
- **stalled**: what a request's gaps exceed the TPOT target by, added up.
- **Attainment**: the share of offered requests, refused and failed ones included, inside both \
targets. **Goodput**: how many of those there were a second. Who gave up waiting is a miss where \
the request was outside already, else counts neither way.
- Percentiles are over requests, of ITL over tokens. Intervals are 95 %, over requests (bootstrap; \
Wilson's of attainment and goodput): how far another run of the same length may lie from this one, \
not what another machine would give. Of a prediction: what the lowest and the highest costs give. \
In pictures a thin line spans them.
- `~` stands before an estimate: it rests on counts of tokens that the server did not tell.
- Unless a run was told otherwise, what was due in its first and in its last tenth (at most 5 s \
each: warm-up and drain) counts nowhere. Every request's record is in the `.jsonl` and `.ipynb` \
forms."""

UNENDED = "This measurement had not ended when this was written."
GOES_ON = "This measurement is going on."
BROKEN_OFF = (
    "This measurement was broken off: its process ended before it did. What was told of it until "
    "then is kept."
)

REPLACED = """Machines are called box A, box B, … here (`BOX_A` in commands and addresses), the \
same letter everywhere in this file; other names, addresses and host keys are replaced too. \
`homesplit notebook export --names` keeps them."""


def replaced(kept: Sequence[str]) -> str:
    """That names were replaced, and which stayed."""
    if not kept:
        return REPLACED
    named = listed([f"`{name}`" for name in kept])
    who = f"The name {named} stays" if len(kept) == 1 else f"The names {named} stay"
    return f"{REPLACED} {who}: ordinary words and products are nobody's own."


def unended(page: Page) -> str | None:
    """What must be known of an entry that has not ended, None of one that has."""
    if page.get("ended", True):
        return None
    goes_on = page.get("goes_on")
    return UNENDED if goes_on is None else GOES_ON if goes_on else BROKEN_OFF


def asked(page: Page) -> str | None:
    """The load in one paragraph, None where the entry measured none."""
    settings = page["about"].get("settings")
    workload = _workload(settings)
    if workload is None:
        return _question(settings) if page.get("kind") == "plan" else None
    body = page["body"] if isinstance(page.get("body"), dict) else {}
    seconds = settings.get("seconds") or body.get("seconds")
    said = [asked_words(workload, seconds)]
    if "trials" in body:
        said.append(
            "The rate was searched: this is the first one. Each was tried so long, or until "
            f"{LEAST_REQUESTS} requests counted."
        )
    repeats = settings.get("repeats")
    if repeats:
        ran = "ran" if page.get("ended", True) else "was to run"
        said.append(
            f"Each mode {ran} {'once' if repeats == 1 else f'{repeats} times'}"
            f"{'' if repeats == 1 else ', the order reversed every time'}; the same times and "
            "lengths in each run, with other words so that no prefix was cached."
        )
    return "**Asked.** " + " ".join(said)


def _workload(settings: Any) -> Workload | None:
    """The load of an entry; None where there is none that this version can read."""
    found = settings.get("workload") if isinstance(settings, dict) else None
    if not isinstance(found, dict):
        return None
    try:
        return msgspec.convert(found, Workload)
    except msgspec.ValidationError:
        return None


def _question(settings: Any) -> str | None:
    """What advice was asked for, as it was typed."""
    if not isinstance(settings, dict):
        return None
    boxes = " and ".join(str(box) for box in settings.get("boxes") or ())
    named = (
        ("link", settings.get("link")),
        ("model", settings.get("model")),
        ("workload", settings.get("workload")),
        ("prompt tokens", settings.get("prompt_tokens")),
        ("answer tokens", settings.get("output_tokens")),
        ("users", settings.get("users")),
        ("requests/s", settings.get("rate_requests_per_s")),
        ("seconds", settings.get("seconds")),
    )
    rest = ", ".join(f"{name} {value}" for name, value in named if value is not None)
    return f"**Asked.** Which arrangement of {boxes}: {rest}."


def machines(page: Page) -> str | None:
    """The boxes and the link as they were known then, or where another server is.

    None where nothing is told.
    """
    said = [_machine(box) for box in page["about"].get("boxes") or ()]
    link = page["about"].get("link")
    if isinstance(link, dict):
        said.append(_link(link))
    if said:
        return "**Machines.** " + " ".join(said)
    settings = page["about"].get("settings")
    address = settings.get("address") if isinstance(settings, dict) else None
    return f"**Server.** {address}" if address else None


def _machine(box: Any) -> str:
    if not isinstance(box, dict):
        return f"{box} (not probed)."
    flops = ((box.get("flops_per_s") or {}).get("fp32") or {}).get("value")
    reads = (box.get("memory_bytes_per_s") or {}).get("value")
    parts = [
        str(box.get("cpu") or "unknown CPU"),
        _cores(box.get("cores_allowed") or box.get("cores")),
        *(str(gpu.get("name")) for gpu in box.get("accelerators") or ()),
        f"{flops / 1e9:.3g} GFLOP/s in fp32" if flops else "arithmetic not measured",
        f"memory read at {reads / 1e9:.3g} GB/s" if reads else "memory not measured",
    ]
    return f"{box.get('name')}: {', '.join(parts)}{_dated(box)}."


def _cores(count: Any) -> str:
    if isinstance(count, int):
        return counted(count, "core")
    return f"{count:g} cores" if isinstance(count, float) else "cores not told"


def _link(link: dict[str, Any]) -> str:
    payload = (link.get("a_to_b") or {}).get("value")
    trip = ((link.get("latency_s") or {}).get("p50") or {}).get("value")
    said = f"{payload * 8 / 1e9:.3g} Gbit/s" if payload else "not measured"
    there = f", round trip {trip * 1e3:.3g} ms" if trip else ""
    return f"Link {link.get('a')} to {link.get('b')}: {said}{there}{_dated(link)}."


def _dated(known: dict[str, Any]) -> str:
    return f" (probed {known['probed_at']})" if known.get("probed_at") else ""


def beside(page: Page, rows: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What the figures can't say by themselves, a line each."""
    body = page["body"] if isinstance(page.get("body"), dict) else {}
    rules = dict.fromkeys(figures.get("window_rule") for _, figures in rows)
    said = [str(rule).removesuffix(".") for rule in rules if rule]
    told = [(name, line) for name, figures in rows for line in _of_row(figures)]
    # The whole of a run needs no name.
    said += [line for name, line in told if name == "all"]
    said += by_names((name, line) for name, line in told if name != "all")
    trade = str(body.get("trade") or "").rstrip(".")
    said += [trade] if trade and trade not in str(page.get("sentence")) else []
    if "identical_text" in body:
        same, count = body["identical_text"], body.get("compared_prompts", 0)
        word = {True: "identical", False: "**not identical**"}.get(same, "not compared")
        over = f"over {counted(count, 'prompt')}: " if count else ""
        said.append(f"text of all modes {over}{word}")
        said += [str(each["sentence"]) for each in body.get("divergences") or ()]
    return [*said, *(str(note) for note in body.get("notes") or ())]


def _of_row(figures: dict[str, Any]) -> list[str]:
    said: list[str] = []
    share, to_serve = figures.get("served_as_asked"), figures.get("to_serve")
    if share is not None and to_serve:
        said.append(as_asked_words(to_serve, figures.get("not_as_asked") or {}))
    elif share is not None:
        # An entry of a version that kept the share alone, of what was completed.
        said.append(f"{share:.0%} of the completed requests were served the way the mode says")
    causes = figures.get("stall_causes")
    if causes:
        told = ", ".join(f"{count} by {cause}" for cause, count in causes.items())
        said.append(f"gaps beyond the TPOT target: {told}")
    if ledger := _ledger(figures.get("server")):
        said.append(f"medians as the router saw them: {ledger}")
    each = figures.get("goodput_per_box_requests_per_s")
    if each is not None:
        said.append(f"goodput per box {rate(each)}")
    if "joules_per_1000_good_tokens" in figures:
        said.append(f"energy {energy_words(figures)}")
    if figures.get("predicted_why"):
        said.append(f"no prediction, {figures['predicted_why']}")
    return said


_LEDGER = (
    ("queue_s", "queue"),
    ("prefill_s", "prefill"),
    ("handoff_s", "hand-off"),
    ("handoff_exposed_s", "of that exposed"),
    ("first_decode_s", "first decode step"),
    ("ttft_s", "TTFT from receipt of the whole request"),
)


def _ledger(server: Any) -> str:
    """Where a request's time went on the server, a median of each run; empty where none told."""
    sides = [side for side in (server if isinstance(server, list) else [server]) if side]
    told: list[str] = []
    for key, what in _LEDGER:
        known = [p50 for side in sides if (p50 := (side.get(key) or {}).get("p50")) is not None]
        if known:
            low, high = min(known), max(known)
            span = seconds_text(low) if low == high else seconds_span(low, high)
            told.append(f"{what} {span}")
    return ", ".join(told)

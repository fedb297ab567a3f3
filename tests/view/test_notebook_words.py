"""What a stranger reads around the figures: what was asked, of which machines, how sure."""

from __future__ import annotations

from typing import Any

import msgspec

from homesplit.core.machine import BoxProfile
from homesplit.core.reading import measured
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload
from homesplit.view.notebook_pages import markdown
from homesplit.view.notebook_words import asked, machines

LOAD = Workload(
    name="small",
    classes=(
        LengthClass(
            name="short",
            share=1.0,
            prompt_tokens_low=10,
            prompt_tokens_high=20,
            output_tokens_low=3,
            output_tokens_high=3,
        ),
    ),
    arrivals=Arrivals(rate_requests_per_s=2.0),
    targets=Targets(ttft_s=1.0, tpot_s=None),
)
FIGURES: dict[str, Any] = {
    "offered": 4,
    "completed": 4,
    "failed": 0,
    "rejected": 0,
    "ttft_s": {"p50": 0.5},
    "intervals": {"ttft_s_p50": {"low": 0.4, "high": 0.6}, "attainment": None},
    "joules_per_1000_good_tokens": None,
    "energy_why": "a: no meter",
    "stall_causes": {"prefill": 3},
    "served_as_asked": 0.5,
    "to_serve": 4,
    "not_as_asked": {"refused": 2},
}


def page(**settings: Any) -> dict[str, Any]:
    """A comparison of one mode on a probed box and one that never was."""
    box = BoxProfile(
        name="atlas",
        source="probe",
        cpu="Ryzen",
        cores=8,
        flops_per_s={"fp32": measured([5e11], unit="FLOP/s", method="m")},
        probed_at="2026-01-01",
    )
    about = {
        "boxes": [msgspec.to_builtins(box), "borea"],
        "link": None,
        "settings": {"workload": msgspec.to_builtins(LOAD), **settings},
        "versions": {},
        "seeds": {},
        "model": "m",
        "fingerprint": None,
        "git_hash": None,
        "loopback": False,
    }
    mode = {"mode": "split", "prefill": "chunked", **FIGURES}
    body = {
        "modes": [mode],
        "identical_text": False,
        "compared_prompts": 6,
        "divergences": [{"sentence": "split with KV sent as int8: 5 of 6 texts identical"}],
        "notes": ["busy"],
    }
    return {
        "id": "e",
        "number": 1,
        "kind": "comparison",
        "at": "today",
        "sentence": "It was so.",
        "about": about,
        "body": body,
    }


def test_the_load_is_told_with_lengths_targets_and_repeats() -> None:
    told = asked(page(seconds=30.0, repeats=2)) or ""
    assert "Open loop, 2 requests/s (Poisson), for 30 s" in told
    assert "for 30 s: 10 to 20 prompt tokens, 3 answer tokens." in told
    assert "Targets: TTFT 1 s." in told
    assert "Each mode ran 2 times" in told
    unended = page(seconds=30.0, repeats=2) | {"ended": False}
    assert "Each mode was to run 2 times" in (asked(unended) or "")


def test_the_machines_are_told_with_their_age_and_what_is_not_known() -> None:
    told = machines(page()) or ""
    assert "atlas: Ryzen, 8 cores, 500 GFLOP/s in fp32, memory not measured" in told
    assert "(probed 2026-01-01)" in told
    assert "borea (not probed)" in told


def test_a_page_says_what_its_figures_cannot() -> None:
    text = markdown([page()])
    for line in (
        "- split: 2 of 4 requests were served the way the mode says (2 refused)",
        "- split: gaps beyond the TPOT target: 3 by prefill",
        "- split: energy not measured (a: no meter)",
        "- text of all modes over 6 prompts: **not identical**",
        "- split with KV sent as int8: 5 of 6 texts identical",
        "- busy",
    ):
        assert line in text.splitlines()
    assert text.count("**TTFT**:") == 1


def test_where_the_time_went_on_the_server_stands_beside_what_a_reader_saw() -> None:
    one = {"queue_s": {"p50": 0.001}, "handoff_s": {"p50": None}, "ttft_s": {"p50": 0.2}}
    other = {"queue_s": {"p50": 0.001}, "handoff_s": None, "ttft_s": {"p50": 0.25}}
    told = page()
    told["body"]["modes"][0]["server"] = [one, other]
    assert (
        "- split: medians as the router saw them: queue 1 ms, TTFT from receipt of the whole "
        "request 0.2 to 0.25 s"
    ) in markdown([told]).splitlines()
    told["body"]["modes"][0]["server"] = []
    assert "as the router saw" not in markdown([told])


def test_an_entry_without_a_load_has_no_such_paragraphs() -> None:
    plain = page()
    plain["body"] = None
    plain["about"] |= {"settings": None, "boxes": []}
    assert (asked(plain), machines(plain)) == (None, None)
    assert "It was so." in markdown([plain])

"""`homesplit bench` from its words to its last line, against a fake server over real HTTP."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from homesplit.cli.main import run
from homesplit.core.entry import LOOPBACK_LABEL
from tests.io.fake_openai import FakeServer, Manners, fake_server

ALL = ("--warm-up", "0", "--drain", "0")
TYPED = ("bench", "--prompt-tokens", "8", "--output-tokens", "2")
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0000000,900,100
2023-11-16 18:15:46.0500000,90,10
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path / "home"))


async def told(capsys: pytest.CaptureFixture[str], server: FakeServer, *words: str) -> Any:
    """The document that `bench` prints."""
    argv = [
        "bench",
        "--url",
        server.url,
        "--json",
        "--seed",
        "1",
        "--warm-up",
        "0",
        "--drain",
        "0",
        *words,
    ]
    await asyncio.to_thread(run, argv)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("card", "words", "asked"),
    [
        ({"max_model_len": 500}, (), [(436, 48), (43, 4)]),
        ({"meta": {"n_ctx": 500}}, (), [(436, 48), (43, 4)]),
        ({"max_model_len": 500}, ("--max-context", "2000"), [(900, 100), (90, 10)]),
        ({}, (), [(900, 100), (90, 10)]),
    ],
)
async def test_a_replay_is_scaled_to_the_context_that_the_server_tells(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    card: dict[str, Any],
    words: tuple[str, ...],
    asked: list[tuple[int, int]],
) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    async with fake_server(Manners(itl_s=0.0, card=card)) as server:
        found = await told(capsys, server, "--trace", str(tmp_path / "trace.csv"), *words)
        seen = server.load_requests()
    lengths = [(len(str(s.body["prompt"]).split()), s.body["max_tokens"]) for s in seen]
    assert sorted(lengths, reverse=True) == asked
    assert found["completed"] == 2 and found["trace"] == "trace"
    assert any("scaled by 0.485" in note for note in found["notes"]) == (asked[0][0] == 436)


async def test_figures_that_are_estimates_carry_the_mark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ("--prompt-tokens", "8", "--output-tokens", "4", "--rate", "20", "--seconds", "0.5")
    async with fake_server(Manners(usage=False, itl_s=0.1)) as server:
        argv = ["bench", "--url", server.url, *load, *ALL, "--ttft", "30", "--tpot", "30"]
        assert await asyncio.to_thread(run, argv) == 0
        shown = capsys.readouterr().out
        await asyncio.to_thread(run, ["notebook", "show", "1"])
        page = capsys.readouterr().out
    sentence, _, _, row, *_ = shown.splitlines()
    assert "; ~100% inside the targets" in sentence and "TPOT ~" in sentence
    assert "; goodput ~" in sentence and "TTFT ~" not in sentence
    assert row.split()[4].startswith("~") and row.count("~") == 2
    tpot = next(after for line, after in pairwise(shown.splitlines()) if line.startswith("TPOT"))
    ttft = next(after for line, after in pairwise(shown.splitlines()) if line.startswith("TTFT"))
    assert tpot.count("~") == 4 and "~" not in ttft
    assert "~ marks estimates" in shown
    # Its columns may be wider there: an interval has more room.
    kept = [line.split() for line in page.splitlines()]
    assert row.split() in kept and tpot.split() in kept


async def test_a_server_that_refuses_everything_ends_with_no_data_and_rc_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ("--prompt-tokens", "8", "--output-tokens", "2", "--rate", "20", "--seconds", "0.5")
    async with fake_server(Manners(refuse_with=503)) as server:
        argv = ["bench", "--url", server.url, *load]
        assert await asyncio.to_thread(run, argv) == 1
        shown = capsys.readouterr().out
        found = await told(capsys, server, *load)
    assert "no data: none of" in shown and "no data" in shown.splitlines()[3]
    assert found["ttft_s"]["p50"] is None and found["throughput_tokens_per_s"] is None
    assert found["attainment"] is None and found["goodput_requests_per_s"] is None
    assert found["intervals"]["goodput_requests_per_s"] is None
    assert found["no_data"].startswith("no data: none of")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--warm-up", "40"), "warm-up (40 s) and drain (3 s) leave nothing of a run of 30 s"),
        (("--drain", "27"), "warm-up (3 s) and drain (27 s) leave nothing of a run of 30 s"),
    ],
)
@pytest.mark.parametrize("command", ["bench", "compare"])
def test_edges_that_leave_nothing_of_a_run_are_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], command: str, words: tuple[str, ...], told: str
) -> None:
    # Nobody listens there: what is asked of the server would fail otherwise.
    argv = [command, "--url", "http://127.0.0.1:9", "--workload", "chat", "--seconds", "30"]
    assert run([*argv, *words]) == 2
    assert told in capsys.readouterr().err


async def test_a_foreign_server_on_this_machine_is_told_to_measure_no_network_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--prompt-tokens", "8", "--output-tokens", "2", "--rate", "20", "--seconds", "0.5")
    async with fake_server() as server:
        found = await told(capsys, server, *load)
        argv = ["bench", "--url", server.url, *load]
        await asyncio.to_thread(run, argv)
        shown = capsys.readouterr().out
        await asyncio.to_thread(run, ["notebook", "show", "1"])
        page = capsys.readouterr().out
        # It refuses everything, so that the search ends after two rates.
        server.manners.refuse_with = 503
        search = ("--capacity", "--json", "--ttft", "30", "--rate", "200", "--seconds", "0.2")
        await asyncio.to_thread(run, [*argv[:-4], *search])
        searched = json.loads(capsys.readouterr().out)
    for document in (found, searched):
        assert document["loopback"] is True and document["label"] == LOOPBACK_LABEL
        assert document["sentence"].endswith(f"({LOOPBACK_LABEL}).")
    assert any("this machine's own" in note for note in found["notes"])
    for text in (shown, page):
        assert LOOPBACK_LABEL in " ".join(text.split())
    for form in ("md", "ipynb", "csv", "jsonl"):
        path = tmp_path / f"x.{form}"
        await asyncio.to_thread(run, ["notebook", "export", "--out", str(path)])
        assert path.read_text().count(LOOPBACK_LABEL) >= 2, form


async def test_a_terminal_gets_every_percentile_with_its_interval_in_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ("--prompt-tokens", "8", "--output-tokens", "4", "--rate", "40", "--seconds", "0.5")
    async with fake_server(Manners(itl_s=0.01)) as server:
        argv = ["bench", "--url", server.url, *load, *ALL, "--ttft", "30", "--tpot", "30"]
        assert await asyncio.to_thread(run, argv) == 0
    _, *table = capsys.readouterr().out.splitlines()
    heads = [line.split() for line in table if line.split()[1:] == ["p50", "p90", "p95", "p99"]]
    assert [head[0] for head in heads] == [
        *("TTFT", "TTST", "TPOT", "ITL", "stalled"),
    ]
    assert [line for line in table if len(line) > 80] == []
    # How an interval is told hangs on how narrow this machine makes it: see the tables' own tests.
    assert any("95 % interval" in line for line in table)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("bench", "--workload", "chat", "--drain", "40", "--seconds", "9"), "leave nothing"),
        (("bench", "--trace", "/nosuch.csv"), "/nosuch.csv: the trace can't be read"),
        ((*TYPED, "--burstiness", "-1"), "the burstiness must lie"),
        ((*TYPED, "--cancel-share", "2"), "the share of users who cancel"),
        (("bench", "--url", "foo", "--workload", "chat"), "'foo' is no address of a server"),
        (("bench", "--url", "http://", "--workload", "chat"), "is no address of a server"),
        (("bench", "--url", "ftp://x", "--workload", "chat"), "is no address of a server"),
        (("bench", "--url", "http://x:99999", "--workload", "chat"), "is no address of a server"),
        (("bench", "--within", "9", "--workload", "chat"), "--within can't be meant here"),
        (("bench", "--capacity", "--within", "0", "--workload", "chat"), "--within must be above"),
        ((*TYPED, "--capacity", "--burstiness", "-1"), "the burstiness must lie"),
        (("compare", "--workload", "chat", "--modes", "foo"), "'foo' is no mode"),
        (("compare", "--workload", "chat", "--modes", "split,split:chunked"), "is named twice"),
        (("compare", "--workload", "chat", "--modes", ","), "--modes names no mode"),
        (("compare", "--workload", "chat", "--also", "foo"), "'foo' is no address of a server"),
        (
            ("compare", "--workload", "chat", "--also", "http://me:pw@x"),
            "a user name or a password",
        ),
        (("compare", "--workload", "chat", "--warm-up", "90"), "leave nothing"),
    ],
)
@pytest.mark.parametrize("url", [(), ("--url", "http://127.0.0.1:9")])
def test_what_is_wrong_with_the_words_is_named_before_any_server_is_looked_for(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], url: tuple[str, ...], told: str
) -> None:
    # Nothing is deployed, and nobody listens at that address.
    assert run([*words, *(() if "--url" in words else url)]) == 2
    shown = capsys.readouterr().err
    assert told in shown and "deployed" not in shown and "answers" not in shown

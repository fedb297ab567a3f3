"""Recorded loads: read from each form, replayed with their times, lengths and sharing."""

from __future__ import annotations

from pathlib import Path

import pytest

from homesplit.core.prompts import TokenFit, messages
from homesplit.core.replay import Trace, TraceRow, length_class, replay
from homesplit.errors import ProfileError
from homesplit.io.traces import bucket_of, read_trace

REAL = Path(__file__).resolve().parents[3] / "shared" / "traces"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [1, 2]}
{"timestamp": 0, "input_length": 1100, "output_length": 60, "hash_ids": [1, 3, 4]}
{"timestamp": 3000, "input_length": 500, "output_length": 10, "hash_ids": [5]}
"""


def written(folder: Path, text: str, name: str = "trace.csv") -> Trace:
    path = folder / name
    path.write_text(text)
    return read_trace(path)


def test_azures_form_gives_times_in_seconds_and_both_lengths(tmp_path: Path) -> None:
    first, second = written(tmp_path, AZURE).rows
    assert second.at_s - first.at_s == pytest.approx(4.314579, abs=1e-6)
    assert (first.prompt_tokens, first.output_tokens) == (374, 44)


def test_burstgpts_failed_requests_are_left_out(tmp_path: Path) -> None:
    rows = written(tmp_path, BURST).rows
    assert [(row.at_s, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (5.0, 472, 18),
        (118.0, 417, 276),
    ]


def test_mooncakes_equal_hash_ids_are_equal_text_and_the_rest_is_not(tmp_path: Path) -> None:
    trace = written(tmp_path, MOONCAKE, "trace.jsonl")
    plan = replay(trace, seed=1)
    first, second, other = sorted(plan.requests, key=lambda r: r.prompt_tokens, reverse=True)
    texts = [messages(r, TokenFit())[-1][1].split() for r in (first, second, other)]
    assert texts[0][:512] == texts[1][:512]
    assert texts[0][512:560] != texts[1][512:560]
    assert texts[2][0:50] != texts[0][0:50]
    assert sorted(r.prompt_tokens for r in plan.requests) == [500, 1000, 1100]


def test_rounded_times_are_spread_inside_their_grid_and_that_is_said(tmp_path: Path) -> None:
    assert bucket_of([0.0] * 5 + [3.0] * 5 + [6.0] * 5) == 3.0
    assert bucket_of([0.0, 0.7, 1.1, 2.9]) == 0.0
    trace = written(tmp_path, MOONCAKE.replace("3000", "0", 1) + MOONCAKE, "t.jsonl")
    assert trace.bucket_s == 3.0 and "rounded" in trace.notes[0]
    times = [r.send_at_s or 0.0 for r in replay(trace, seed=1).requests]
    assert len(set(times)) == 6 and all(0 <= t < 6.0 for t in times)


def test_speed_shortens_every_gap_and_changes_no_length() -> None:
    trace = Trace(name="t", rows=tuple(_row(float(t)) for t in range(10)))
    slow, quick = replay(trace, seed=1), replay(trace, seed=1, speed=4.0)
    assert [r.send_at_s for r in quick.requests] == [(r.send_at_s or 0) / 4 for r in slow.requests]
    assert [r.prompt for r in quick.requests] == [r.prompt for r in slow.requests]


def test_limit_and_seconds_cut_the_end_off() -> None:
    trace = Trace(name="t", rows=tuple(_row(float(t)) for t in range(10)))
    assert len(replay(trace, seed=1, limit=3).requests) == 3
    assert len(replay(trace, seed=1, seconds=4.5).requests) == 5


def test_long_requests_are_scaled_by_one_factor_and_that_is_said() -> None:
    trace = Trace(name="t", rows=(_row(0.0, 1800, 200), _row(1.0, 180, 20)))
    plan = replay(trace, seed=1, max_context_tokens=1000)
    assert [(r.prompt_tokens, r.output_tokens) for r in plan.requests] == [(900, 100), (90, 10)]
    assert any("scaled by 0.5" in note for note in plan.notes)
    assert [r.class_ for r in plan.requests] == ["medium", "short"]


@pytest.mark.parametrize("context", [10_240, 1_000, 300, 5])
def test_a_prompt_that_was_shared_whole_is_shared_whole_however_far_it_is_scaled(
    context: int,
) -> None:
    row = TraceRow(at_s=0.0, prompt_tokens=5120, output_tokens=1, hash_ids=tuple(range(10)))
    one, other = replay(
        Trace(name="t", rows=(row, row)), seed=1, max_context_tokens=context
    ).requests
    assert one.prompt == other.prompt
    assert one.prompt_tokens == min(5120, 5120 * context // 5121)


def test_the_same_seed_replays_the_same_requests() -> None:
    trace = Trace(name="t", rows=tuple(_row(float(t)) for t in range(5)))
    assert replay(trace, seed=3) == replay(trace, seed=3)
    assert replay(trace, seed=3).requests != replay(trace, seed=4).requests


def test_an_empty_part_or_an_impossible_speed_is_refused() -> None:
    trace = Trace(name="t", rows=(_row(5.0),))
    with pytest.raises(ValueError, match="no request"):
        replay(Trace(name="t", rows=()), seed=1)
    with pytest.raises(ValueError, match="speed"):
        replay(trace, seed=1, speed=0)


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3\n", "TIMESTAMP,x\n2023,1\n", '{"no": 1}\n'])
def test_what_is_no_trace_is_told_with_its_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProfileError, match=r"trace\.csv"):
        written(tmp_path, text)


def test_a_trace_that_is_not_there_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="nowhere"):
        read_trace(tmp_path / "nowhere.csv")


def test_lengths_fall_into_classes_by_their_prompts() -> None:
    assert [length_class(n) for n in (511, 512, 4095, 4096)] == [
        "short",
        "medium",
        "medium",
        "long",
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366),
        ("AzureLLMInferenceTrace_code.csv", 8819),
        ("mooncake_conversation_trace.jsonl", 12031),
        ("mooncake_synthetic_trace.jsonl", 3993),
    ],
)
def test_a_real_trace_is_read_whole_and_replayed_within_a_models_context(
    name: str, rows: int
) -> None:
    trace = read_trace(REAL / name)
    assert len(trace.rows) == rows
    plan = replay(trace, seed=1, limit=200, speed=10, max_context_tokens=2048)
    assert len(plan.requests) == 200
    assert max(r.prompt_tokens + r.output_tokens for r in plan.requests) <= 2049
    times = [r.send_at_s or 0.0 for r in plan.requests]
    assert times == sorted(times)


def _row(at_s: float, prompt: int = 100, output: int = 10) -> TraceRow:
    return TraceRow(at_s=at_s, prompt_tokens=prompt, output_tokens=output)

"""The router's records are bounded in number and in what they hold."""

from __future__ import annotations

from typing import Any, cast

import pytest
from homesplit_engine.records import RequestRecord
from homesplit_engine.router import book
from homesplit_engine.router.board import Board
from homesplit_engine.router.book import Book
from homesplit_engine.router.feed import Feed
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.rates import Rates
from homesplit_engine.router.stalls import StepMemory


def record(number: int, tokens: int) -> RequestRecord:
    settings: dict[str, Any] = {
        "request_id": str(number),
        "mode": "split",
        "served": "split",
        "prefill": "whole",
        "prefill_box": "a",
        "decode_box": "b",
        "why": "",
        "outcome": "completed",
        "prompt_tokens": 10,
        "output_tokens": tokens,
        "received_s": 0.0,
        "token_s": tuple(float(at) for at in range(tokens)),
    }
    return RequestRecord(**settings)


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ([1, 1, 1], ["0", "1", "2"]),
        ([1, 1, 1, 1, 1], ["1", "2", "3", "4"]),
        ([5, 5, 5], ["1", "2"]),
        ([2, 3, 40], ["2"]),
        ([40, 2, 3], ["1", "2"]),
    ],
    ids=["few", "too many", "too long together", "too long alone", "long ago"],
)
def test_the_oldest_records_go_where_there_are_too_many_or_too_many_token_times(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], kept: list[str]
) -> None:
    monkeypatch.setattr(book, "KEPT_RECORDS", 4)
    monkeypatch.setattr(book, "KEPT_TOKENS", 10)
    subject = Book(
        Feed(),
        Metrics("tiny", None, None),
        StepMemory(),
        cast(Board, None),
        cast(Rates, None),
        None,
    )
    for number, tokens in enumerate(lengths):
        subject.note(record(number, tokens))
    assert [one.request_id for one in subject.records] == kept
    assert subject.recorded == len(lengths)

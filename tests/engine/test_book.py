"""The router's records are bounded in number and in what they hold."""

from __future__ import annotations

from typing import Any, cast

import msgspec
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
        "token_s": tuple(at + 0.1 for at in range(tokens)),
    }
    return RequestRecord(**settings)


def a_book() -> Book:
    return Book(
        Feed(),
        Metrics("tiny", None, None),
        StepMemory(),
        cast(Board, None),
        cast(Rates, None),
        None,
    )


def size(tokens: int) -> int:
    """What a record of so many tokens takes."""
    return len(msgspec.msgpack.encode(record(0, tokens)))


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ([1, 1, 1], [0, 1, 2]),
        ([1, 1, 1, 1, 1], [1, 2, 3, 4]),
        ([50, 50, 50], [1, 2]),
        ([2, 3, 200], [2]),
        ([200, 2, 3], [1, 2]),
    ],
    ids=["few", "too many", "too large together", "too large alone", "long ago"],
)
def test_the_oldest_records_go_where_there_are_too_many_or_they_are_too_large(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], kept: list[int]
) -> None:
    monkeypatch.setattr(book, "KEPT_RECORDS", 4)
    monkeypatch.setattr(book, "KEPT_BYTES", 2 * size(50))
    subject = a_book()
    for number, tokens in enumerate(lengths):
        subject.note(record(number, tokens))
    assert [int(one.request_id) for one in subject.page(0, 100)] == kept
    assert (subject.recorded, subject.oldest) == (len(lengths), kept[0])


def test_a_page_gives_the_records_as_they_were_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "KEPT_RECORDS", 5)
    subject, noted = a_book(), [record(number, number) for number in range(8)]
    for one in noted:
        subject.note(one)
    assert subject.page(0, 100) == noted[3:]
    assert subject.page(4, 2) == noted[4:6]
    assert subject.page(7, 100) == noted[7:]
    assert subject.page(8, 100) == subject.page(99, 100) == []

"""How far texts stray after a hand-off that loses precision."""

from __future__ import annotations

from typing import Any

import pytest
from homesplit_engine.records import ModeSetting

from homesplit.core.divergence import divergence, lossy, tokens_alike
from homesplit.core.measured import RequestLog

INT8 = ModeSetting(mode="split", kv_wire="int8")


def answer(*chunks: str, **more: Any) -> RequestLog:
    """An answer that came in these chunks."""
    return RequestLog(
        id=0,
        request_id="r",
        class_="short",
        due_s=0.0,
        sent_s=0.0,
        outcome="completed",
        prompt_tokens_asked=3,
        output_tokens_asked=3,
        text="".join(chunks),
        arrival_characters=tuple(map(len, chunks)),
        **more,
    )


@pytest.mark.parametrize(
    ("chunks", "tokens", "text", "alike"),
    [
        (("a ", "cat ", "sat"), (), "a cat sat", 3),
        (("a ", "cat ", "sat"), (), "a cat ran", 2),
        (("a ", "cat ", "sat"), (), "a car", 1),
        (("a ", "cat sat"), (1, 2), "a cat sat down", 3),
        (("a ", "cat sat"), (1, 2), "a cat ran", 1),
        (("a ",), (), "", 0),
        ((), (), "a", 0),
    ],
)
def test_tokens_are_alike_up_to_the_chunk_that_differs(
    chunks: tuple[str, ...], tokens: tuple[int, ...], text: str, alike: int
) -> None:
    assert tokens_alike(answer(*chunks, arrival_tokens=tokens), text) == alike


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["abc", "abc"], "split with KV sent as int8: 2 of 2 texts identical"),
        (
            ["abc", "abx"],
            "split with KV sent as int8: 1 of 2 texts identical; the other differs after 2 tokens",
        ),
        (
            ["axx", "abx", "abc"],
            "split with KV sent as int8: 1 of 3 texts identical; the first difference comes after "
            "1 to 2 tokens",
        ),
    ],
)
def test_what_strays_is_told_with_how_far_it_was_alike(texts: list[str], sentence: str) -> None:
    found = divergence(INT8, [(answer("a", "b", "c"), text) for text in texts])
    assert (found.compared, found.kv_wire) == (len(texts), "int8")
    assert found.sentence == sentence


@pytest.mark.parametrize(
    ("setting", "loses"),
    [
        (INT8, True),
        (ModeSetting(mode="auto", kv_wire="fp16"), True),
        (ModeSetting(mode="split"), False),
        (ModeSetting(mode="replica", kv_wire="int8"), False),
        (None, False),
    ],
)
def test_only_a_mode_that_hands_over_loses_precision(
    setting: ModeSetting | None, loses: bool
) -> None:
    assert lossy(setting) is loses

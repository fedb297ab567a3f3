"""A machine's name that is also a word of our own texts is known as that."""

from __future__ import annotations

import pytest

from homesplit.io.own_words import own_words


@pytest.mark.parametrize(
    ("name", "ordinary"),
    [
        ("left", True),
        ("Left", True),
        ("router", True),
        # A field of records, and a shipped profile.
        ("ttft_s", True),
        ("a100-40gb", True),
        # In docstrings and comments alone, or a part of a word.
        ("gandalf", False),
        ("alice", False),
        ("oute", False),
        ("kitchen-mac", False),
    ],
)
def test_words_of_our_texts_keys_and_profiles_are_ordinary(name: str, ordinary: bool) -> None:
    assert own_words([name]) == ({name.casefold()} if ordinary else set())

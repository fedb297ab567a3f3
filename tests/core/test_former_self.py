"""Of a measurement done again it is said what was not as before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from homesplit.core.entry import About, Entry
from homesplit.core.former_self import address_of, otherwise, otherwise_words
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import measured


def entry(body: Any = None, **about: Any) -> Entry:
    # As the notebook gives it back: profiles are plain values there.
    known = msgspec.convert(msgspec.to_builtins(About(**about)), About)
    return Entry(id="x", number=1, kind="run", at="", sentence="", body=body, about=known)


def link(bits_per_s: float) -> LinkProfile:
    rate = measured([bits_per_s / 8], unit="B/s", method="tcp")
    return LinkProfile(a="a", b="b", source="probe", a_to_b=rate, b_to_a=rate)


def box(name: str, bytes_per_s: float) -> BoxProfile:
    read = measured([bytes_per_s], unit="B/s", method="copy")
    return BoxProfile(name=name, source="probe", memory_bytes_per_s=read)


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (
            {"settings": {"address": "http://a:1"}},
            {"settings": {"address": "http://b:1"}},
            "It is not its former self: address http://b:1, before http://a:1. What changed",
        ),
        ({"model": "small"}, {"model": "big"}, "former self: model big, before small."),
        (
            {"fingerprint": "a" * 64},
            {"fingerprint": "b" * 64},
            f"former self: fingerprint {'b' * 12}, before {'a' * 12}.",
        ),
        ({"boxes": ("a", "b")}, {"boxes": ("b", "c")}, "former self: boxes b and c, before a and"),
        (
            {"link": link(1e9)},
            {"link": link(2.5e9)},
            "former self: a to b by its probe 2.5 Gbit/s, before 1 Gbit/s; b to a by its probe",
        ),
        (
            {"boxes": (box("a", 20e9),)},
            {"boxes": (box("a", 10e9),)},
            "former self: a memory by its probe 10 GB/s, before 20 GB/s.",
        ),
        (
            {"versions": {"homesplit": "1", "python": "3.11"}},
            {"versions": {"homesplit": "2", "python": "3.11"}},
            "Other software: homesplit 2, before 1.",
        ),
        (
            {"git_hash": "c" * 40},
            {"git_hash": "c" * 40 + "-dirty"},
            f"Other software: commit {'c' * 12}-dirty, before {'c' * 12}.",
        ),
        ({"settings": {"api": "chat"}}, {"settings": {"api": "completions"}}, "door completions"),
        ({"model": "small", "seeds": {"salt": 1}}, {"model": "small", "seeds": {"salt": 2}}, ""),
    ],
)
def test_what_differs_is_named_and_nothing_else(
    then: dict[str, Any], now: dict[str, Any], said: str
) -> None:
    told = otherwise_words(otherwise(entry(**then), entry(**now)))
    assert said in told and bool(said) == bool(told)


def test_an_entry_from_before_its_address_was_kept_has_that_of_its_figures() -> None:
    assert address_of(entry({"url": "http://a:1"})) == "http://a:1"
    assert address_of(entry(settings={"url": "http://b:1"})) == "http://b:1"
    assert address_of(entry({"url": None}, settings={"address": None})) is None

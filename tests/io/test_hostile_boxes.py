"""Whatever a box answers over SSH, the desk takes what makes sense and names what does not."""

from __future__ import annotations

from typing import Any

import pytest
from homesplit_probes import facts as probe_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from homesplit.errors import DeployError
from homesplit.io import box_facts
from homesplit.io.box_contents import parse_contents
from homesplit.io.remote_process import ROLES, parse_states
from homesplit.io.said import count
from homesplit.io.shell import NO_STATUS, Between

TOKEN = "0123456789abcdef"
NASTY = st.sampled_from(
    [
        *("", "²", "٣", "-1", "1" * 5000, "9" * 18, "0x10", "1e9", "nan", "inf", "../..", "\x00"),
        *("\x1b[2J", "$(touch x)", "a|b|c|d|e", "3.12.1 /usr/bin/python3", "{" * 2000, "\ufffd"),
    ]
)
VALUES = st.one_of(NASTY, st.text(max_size=20), st.integers(0, 10**12).map(str))
FIELDS = (
    *("home", "user", "system", "machine", "libc", "python", "free_kb", "gpu", "unit", "ssh"),
    *("address", "env", "engine", "models", "uv", "owner", "present", "listen", "listen_hex"),
    *("piece", "total", "root", "installing"),
)
LINES = st.lists(st.tuples(st.sampled_from(FIELDS), VALUES), max_size=30)
QUICK = settings(deadline=None, max_examples=150)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("", None), ("²", None), ("٣", None), ("-1", None), ("1" * 5000, None)],
)
def test_a_figure_is_a_plain_whole_number_or_none(text: str, number: int | None) -> None:
    assert count(text) == number


@QUICK
@given(LINES)
def test_facts_of_any_kind_are_read_or_named(lines: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{key}={value}" for key, value in lines)
    try:
        found = box_facts.parse(text, "atlas")
    except DeployError as error:
        assert "atlas" in str(error)
        return
    assert found.free_bytes is None or found.free_bytes >= 0
    assert all(port >= 0 for port in found.listening)
    parse_contents(text, "atlas")


@QUICK
@given(st.lists(st.tuples(st.sampled_from(ROLES), st.text(max_size=9), VALUES), max_size=12))
def test_states_of_any_kind_are_read(lines: list[tuple[str, str, str]]) -> None:
    found = parse_states("\n".join(" ".join(line) for line in lines))
    assert set(found) == set(ROLES)


@QUICK
@given(st.lists(st.tuples(st.sampled_from(probe_facts.FACTS), VALUES, VALUES), max_size=12))
def test_facts_for_a_probe_that_make_no_sense_are_unknown(
    said: list[tuple[Any, str, str]],
) -> None:
    text = "".join(f"{TOKEN} {fact.name}\n{one}\n{other}\n" for fact, one, other in said)
    assert set(probe_facts.parse(text, TOKEN)) == {fact.name for fact in probe_facts.FACTS}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (b"0\n", 0),
        (b"255\n", 255),
        (b"\n", NO_STATUS),
        (b"abc\n", NO_STATUS),
        (b"-9\n", NO_STATUS),
        (b"1" * 5000 + b"\n", NO_STATUS),
        (b"x" * 100_000, NO_STATUS),
    ],
    ids=["0", "255", "none", "no number", "below 0", "endless number", "endless line"],
)
def test_an_end_without_a_status_is_a_failure_and_nothing_more_is_held(
    status: bytes, code: int
) -> None:
    between = Between(TOKEN)
    assert between.feed(f"\n{TOKEN}\nhello{TOKEN} ".encode() + status) == b"hello"
    assert between.code == code
    assert between.feed(b"more") == b""
    assert between.rest() == b""


def test_an_end_whose_status_is_still_to_come_is_waited_for() -> None:
    between = Between(TOKEN)
    assert between.feed(f"\n{TOKEN}\nhello{TOKEN} 12".encode()) == b"hello"
    assert between.code is None
    assert between.feed(b"7\n") == b""
    assert between.code == 127

"""What leaves the notebook names no machine, user or address, in whatever form it was written."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homesplit.view.redact import ANSWERS, Redaction, box_names, name_forms


@pytest.mark.parametrize(
    "written",
    [
        "gandalf",
        "Gandalf",
        "GANDALF",
        "gandalf.local",
        "Gandalf.Local",
        "alice@gandalf.local",
        "alice@gandalf.local:2222",
        "gandalf.local:2222",
    ],
)
def test_every_way_to_write_a_box_gives_its_letter_and_keeps_the_rest_home(written: str) -> None:
    redaction = Redaction(["alice@gandalf.local:2222", "frodo"], ["alice"])
    told = redaction.text(f"Mode split on {written} and Frodo.").replace("(name)@", "")
    assert told.replace(":2222", "") == "Mode split on box A and box B."


@pytest.mark.parametrize(
    "address",
    [
        "192.168.7.20",
        "fe80::1",
        "fe80::1c2d:3e4f%eth0",
        "2001:db8::5",
        "fd00:1:2:3:4:5:6:7",
        "::1",
        "aa:bb:cc:dd:ee:ff",
        "AA-BB-CC-DD-EE-FF",
        "aa:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99",
        "enxaabbccddeeff",
    ],
)
def test_addresses_of_all_kinds_go(address: str) -> None:
    redaction = Redaction([])
    for around in PLACES:
        assert address not in redaction.text(around.format(*[address] * 3))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://10.0.0.7:8000", "http://10.0.0.8:8000"),
        ("http://10.0.0.7:8000", "http://10.0.0.7:8001"),
        ("http://[fe80::1]:8000", "http://[fe80::2]:8000"),
        ("http://gpu.lan:8000", "http://gpu.lan:8001"),
        ("http://gpu.lan:8000", "http://cpu.lan:8000"),
        ("aa:bb:cc:dd:ee:01", "aa:bb:cc:dd:ee:02"),
    ],
)
def test_two_servers_stay_two_and_each_the_same_everywhere(one: str, other: str) -> None:
    records = {f"other server {one} round 1": [{"url": one}], f"other server {other} round 1": []}
    redaction = Redaction(box_names([records]))
    told = redaction.value(records)
    assert len(told) == 2 and told == redaction.value(records)
    (first,) = next(iter(told.values()))
    assert f"other server {first.get('url')} round 1" in told


PLACES = (
    "{}",
    "{}.",
    "{}: no answer",
    "{}, and",
    "{}; then",
    "({})",
    "boxes={},frodo",
    "at:{}",
    "box_{}_x",
    "[{}]:22",
    "{}:22",
    "{}/24",
    "pi@{}",
    "http://{}:8000/v1.",
    "http://pi@[{}]:8000",
    "`ssh {}`",
    "Run homesplit probe {} again.",
    "homesplit probe frodo {}",
    "homesplit up --boxes frodo,{}. It waits.",
    "To delete it: homesplit remove {}",
    "homesplit bench --url http://{}:8000",
    "homesplit up: {} is alone: {}, {}.",
)
LABELS = st.from_regex(r"[a-z][a-z0-9]{2,4}-[a-z]{2,4}", fullmatch=True)


def spoken(address: object) -> bool:
    return str(address) != "::"


@given(st.ip_addresses().filter(spoken), st.booleans(), st.sampled_from(["", "%eth0", "%br-lan.2"]))
def test_no_address_stays_in_any_place(address: Any, long: bool, zone: str) -> None:
    said = (address.exploded.upper() if long else str(address)) + (zone * (address.version == 6))
    redaction = Redaction(["gandalf", "frodo"], ["alice"])
    for place in PLACES:
        told = redaction.text(place.format(*[said] * 3))
        assert said not in told and said.partition("%")[0] not in told, place
        assert told.count("ddress") or told.count("ADDRESS"), place


@given(LABELS, st.lists(LABELS, min_size=1, max_size=3), st.booleans())
def test_no_domain_stays_in_any_place(name: str, labels: list[str], known: bool) -> None:
    """Neither that of a box known by its whole name nor one behind a bare name."""
    whole = ".".join([name, *labels])
    redaction = Redaction([whole if known else name, "frodo"], ["alice"])
    for place in PLACES:
        if "_{}" not in place:
            told = redaction.text(place.format(*[whole] * 3)).lower()
            assert name not in told and not any(label in told for label in labels), place


def test_an_address_has_one_number_however_it_is_written() -> None:
    redaction = Redaction([])
    assert redaction.text("fe80::1 and FE80:0::1%eth0") == "(address 1) and (address 1)"
    assert redaction.text("10.0.0.7, pi@10.0.0.7") == "(address 2), (name)@(address 2)"


@pytest.mark.parametrize(
    "kept",
    [
        "2026-11-29T19:30:12.123+00:00",
        "colocated:whole",
        "1:2:3 and 12:30:45",
        "c10::Error in std::abs",
        "model@main",
        "19:30",
        "3:1",
        "torch 2.13.0",
        "a1b2c3d4",
        "TTFT 0.25 s",
        "http://localhost:8000/v1",
    ],
)
def test_times_versions_and_figures_stay(kept: str) -> None:
    assert Redaction(["gandalf"], ["alice"]).text(kept) == kept


def test_a_short_user_name_goes_before_a_host_and_in_a_path_and_stays_elsewhere() -> None:
    redaction = Redaction(["pi@berry"])
    assert redaction.text("pi@berry") == "(name)@box A" or redaction.text("pi@berry") == "box A"
    assert redaction.text("/home/pi/model") == "/home/(name)/model"
    assert redaction.text("pi is 3.14") == "pi is 3.14"


def test_a_login_that_is_an_ordinary_word_goes_where_it_can_be_nothing_else() -> None:
    redaction = Redaction(["frodo"], ["max", "mark.lan", "root"], frozenset({"max", "mark"}))
    assert redaction.kept == ()
    told = redaction.value({"user": "Max", "hostname": "mark", "max": 3, "why": "max@1, mark.lan"})
    assert told == {"user": "(name)", "hostname": "(name)", "max": 3, "why": "(name)@1, (name)"}
    assert redaction.text("/home/max, `/home/max`.") == "/home/(name), `/home/NAME`."
    assert redaction.text("At MAX 3 of frodo.") == "At MAX 3 of box A."
    # What stays is told, and of that only what was met.
    assert redaction.kept == ("max",)


@pytest.mark.parametrize("word", ["a", "a.", "1.", "a:", ":", "`", "aa-", "/home/a", "a@", "box "])
def test_a_long_word_holds_an_export_up_no_longer_than_its_length(word: str) -> None:
    redaction = Redaction(["gandalf", "frodo"], ["alice"])

    def took_s(text: str) -> float:
        """Of this thread's own time; the less of two, for what else is cleared up in it."""
        tries: list[float] = []
        for _ in range(2):
            began_s = time.thread_time()
            redaction.text(text)
            tries.append(time.thread_time() - began_s)
        return min(tries)

    # Sixteen times the length would take 256 times as long where each place is looked at anew.
    assert took_s(word * 32_000) < 64 * max(took_s(word * 2_000), 0.002)


def test_one_machine_under_two_names_has_one_letter() -> None:
    redaction = Redaction(["gandalf", "alice@Gandalf.local", "frodo"])
    assert redaction.text("gandalf, Gandalf.local, frodo") == "box A, box A, box B"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a", "On a: a tunnel carried a request."),
        ("left", "3 more in warm-up and drain left out; split left > frodo."),
        ("alice@left.local:2222", "13 were left out on left."),
        ("user", "One user waited in /home/user then."),
    ],
)
def test_a_name_that_is_an_ordinary_word_stays_and_no_other_word_is_taken_for_it(
    name: str, told: str
) -> None:
    redaction = Redaction([name, "frodo"], [], frozenset({"left", "user"}))
    kept = name_forms(name)[:2][-1]
    assert redaction.kept == ()
    assert redaction.text(told) == told.replace("frodo", "box A").replace("/user", "/(name)")
    assert redaction.text(name) == kept and redaction.text("frodo") == "box A"
    assert redaction.kept == (kept,)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Run `homesplit probe gandalf frodo` there.", "Run `homesplit probe BOX_A BOX_B` there."),
        (
            "gandalf is old: homesplit probe gandalf. gandalf waits.",
            "Box A is old: homesplit probe BOX_A. Box A waits.",
        ),
        ("homesplit plan --boxes gandalf,frodo", "homesplit plan --boxes BOX_A,BOX_B"),
        ("at http://gandalf:8000/v1, on gandalf", "at http://BOX_A:8000/v1, on box A"),
        ("`ssh alice@10.0.0.7`", "`ssh NAME@ADDRESS_1`"),
        # A dot or a colon does not end a command where a name or an address goes on behind it.
        (
            "To delete it: homesplit remove 192.168.1.4",
            "To delete it: homesplit remove ADDRESS_1",
        ),
        ("homesplit probe 10.0.0.7 frodo. Wait.", "homesplit probe ADDRESS_1 BOX_B. Wait."),
        ("homesplit up --boxes 192.168.178.21,frodo", "homesplit up --boxes ADDRESS_1,BOX_B"),
        ("homesplit probe gandalf.smith-family.net.", "homesplit probe BOX_A."),
        ("homesplit probe alice@fe80::1 now", "homesplit probe NAME@ADDRESS_1 now"),
        ("homesplit bench --url http://frodo:8000", "homesplit bench --url http://BOX_B:8000"),
        ("Run homesplit up, then ask gandalf", "Run homesplit up, then ask box A"),
        ("homesplit took 0.2 cores of gandalf", "homesplit took 0.2 cores of box A"),
    ],
)
def test_in_commands_and_addresses_one_word_stands_for_a_name(text: str, redacted: str) -> None:
    assert Redaction(["gandalf", "frodo"], ["alice"]).text(text) == redacted


def test_what_a_model_wrote_is_left_alone() -> None:
    record = {"text": "In Paris.", "why": "Paris is free."}
    kept = Redaction(["paris"]).value([record], untouched=ANSWERS)
    assert kept == [{"text": "In Paris.", "why": "Box A is free."}]


def test_names_are_found_wherever_a_record_keeps_them() -> None:
    link = {"a": "gandalf", "b": "frodo", "a_to_b": {}}
    profile = {"name": "sam", "host_key": "SHA256:x"}
    run = {"setting": {"prefill_box": "merry"}, "boxes": ["pippin"], "name": "no box"}
    assert box_names([link, profile, run]) == ("gandalf", "frodo", "sam", "merry", "pippin")


def test_a_foreign_servers_host_is_a_name_too() -> None:
    assert box_names([{"url": "http://gpu.example.org:8000"}]) == ("gpu.example.org",)
    assert box_names([{"url": "http://localhost:8000"}, {"url": "http://127.0.0.1:1"}]) == ()


def test_the_forms_of_a_name_begin_with_its_host() -> None:
    assert name_forms("alice@gandalf.local:22")[:2] == ("gandalf.local", "gandalf")
    assert name_forms("[fe80::1]:22")[0] == "fe80::1"
    assert name_forms("10.0.0.7")[0] == "10.0.0.7"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("It is a tie. frodo adds nothing.", "It is a tie. Box B adds nothing."),
        ("gandalf and frodo were hot.", "Box A and box B were hot."),
        ("gandalf: recalibrated on 50 steps", "box A: recalibrated on 50 steps"),
        ("gandalf", "box A"),
        ("TTFT 0.5 s on gandalf.", "TTFT 0.5 s on box A."),
    ],
)
def test_a_sentence_begins_with_a_capital_also_where_its_first_word_was_a_name(
    text: str, redacted: str
) -> None:
    assert Redaction(["gandalf", "frodo"]).text(text) == redacted

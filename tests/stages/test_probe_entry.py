"""A probe in the notebook while it goes on: what was measured of each box is kept at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from homesplit.core.events import Event, Progress
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import measured
from homesplit.errors import NotebookError
from homesplit.io.notebook import Notebook
from homesplit.stages.notebook import list_entries
from homesplit.stages.probe_entry import ProbeEntry
from tests.stages.test_compare import context

READING = measured((2e9,), unit="bytes/s", method="m")
BOX = BoxProfile(name="a", source="probe", memory_bytes_per_s=READING)
LINK = LinkProfile(a="a", b="b", source="probe", a_to_b=READING, b_to_a=READING)


def test_each_figure_of_a_probe_is_kept_and_the_last_sentence_is_the_whole(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    entry = ProbeEntry(ctx, ("a", "b"))
    told: list[tuple[str, int, bool]] = []

    def look() -> None:
        (kept,) = list_entries(ctx)
        told.append((kept.sentence, len(kept.body["boxes"]), kept.ended))

    with entry.open():
        look()
        entry.box(BOX)
        look()
        entry.link(LINK)
        look()
        entry.ended(("old",))
    look()
    assert told[0] == ("Probe of a and b, not ended: begun.", 0, False)
    half = "a: memory read at 2 GB/s, arithmetic not measured"
    assert told[1] == (f"Probe, not ended: {half}.", 1, False)
    assert told[2][0].startswith(f"Probe, not ended: {half}; the link from a to b carries")
    assert told[3] == (told[2][0].removeprefix("Probe, not ended: "), 1, True)
    assert list_entries(ctx)[0].body["kept"] == ["old"]


def test_a_probe_that_is_broken_off_keeps_the_box_that_was_measured(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    entry = ProbeEntry(ctx, ("a", "b"))
    with pytest.raises(KeyboardInterrupt), entry.open():
        entry.box(BOX)
        raise KeyboardInterrupt
    (kept,) = list_entries(ctx)
    assert not kept.ended and len(kept.body["boxes"]) == 1
    assert kept.sentence.endswith("arithmetic not measured. Broken off by its user.")


def test_a_probe_stands_where_it_can_not_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def take(event: Event) -> None:
        if isinstance(event, Progress):
            told.append(event.sentence)

    def full(*_: object, **__: object) -> None:
        raise NotebookError("the disk is full.")

    monkeypatch.setattr(Notebook, "write", full)
    entry = ProbeEntry(dataclasses.replace(context(tmp_path), emit=take), ("a",))
    with entry.open():
        entry.box(BOX)
        entry.ended(())
    assert told == ["This is not in the notebook: the disk is full."]

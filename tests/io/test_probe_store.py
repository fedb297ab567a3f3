"""Profiles survive being written and read, the unknown with its reason."""

from __future__ import annotations

from pathlib import Path

from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import measured, unknown
from homesplit.io import probe_store
from homesplit.io.paths import Paths


def paths_in(folder: Path) -> Paths:
    return Paths(config=folder / "c", cache=folder / "k", data=folder / "d")


def test_a_box_comes_back_as_it_was_by_name_and_by_key(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    box = BoxProfile(
        name="atlas",
        source="probe",
        host_key="SHA256:a/b+c",
        probed_at="2026-01-01T00:00:00+00:00",
        memory_bytes=measured([1.0, 2.0, 3.0], unit="B", method="m", warnings=["w"]),
        flops_per_s={"fp32": unknown("no torch")},
        cores=4,
    )
    probe_store.save_box(paths, box)
    assert probe_store.load_box(paths, "atlas") == box
    assert probe_store.load_box(paths, "SHA256:a/b+c") == box
    assert probe_store.load_box(paths, "borea") is None


def test_a_link_is_found_from_both_ends(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    link = LinkProfile(
        a="a",
        b="b",
        source="probe",
        a_to_b=measured([10.0], unit="B/s", method="m"),
        b_to_a=unknown("why not"),
        address_a="10.0.0.1",
        address_b="10.0.0.2",
    )
    probe_store.save_link(paths, link, ("K1", "K2"))
    assert probe_store.load_link(paths, "a", "b") == link
    back = probe_store.load_link(paths, "b", "a")
    assert back is not None
    assert (back.b_to_a.value, back.a_to_b.why, back.address_a) == (10.0, "why not", "10.0.0.2")


def test_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    folder = paths.probes / "boxes"
    folder.mkdir(parents=True)
    (folder / "x.toml").write_text("name = [")
    (folder / "y.toml").write_text("name = 3")
    assert probe_store.list_boxes(paths) == ()

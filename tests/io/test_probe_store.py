"""Profiles survive being written and read, the unknown with its reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

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


def measured_link(rate: float, **changes: object) -> LinkProfile:
    """A link that was measured on new year's day."""
    fields: dict[str, object] = {
        "a": "a",
        "b": "b",
        "source": "probe",
        "a_to_b": measured([rate], unit="B/s", method="m", taken_at="2026-01-01"),
        "b_to_a": measured([rate], unit="B/s", method="m", taken_at="2026-01-01"),
        "address_a": "10.0.0.1",
        "address_b": "10.0.0.2",
        "probed_at": "2026-01-01",
        **changes,
    }
    return LinkProfile(**fields)  # pyright: ignore[reportArgumentType]


def failed_link(a: str, b: str) -> LinkProfile:
    """What a probe gives that did not get through."""
    return LinkProfile(a=a, b=b, source="probe", a_to_b=unknown("gone"), b_to_a=unknown("gone"))


@pytest.mark.parametrize(("a", "b"), [("a", "b"), ("b", "a")])
def test_a_failed_link_probe_keeps_the_last_good_rate_with_its_date_and_the_reason(
    tmp_path: Path, a: str, b: str
) -> None:
    paths = paths_in(tmp_path)
    probe_store.save_link(paths, measured_link(10.0), ("K1", "K2"))
    for _ in range(2):
        probe_store.save_link(paths, failed_link(a, b), ("K1", "K2"))
    kept = probe_store.load_link(paths, "a", "b")
    assert kept is not None
    assert (kept.a_to_b.value, kept.a_to_b.taken_at, kept.probed_at) == (10.0,) + 2 * (
        "2026-01-01",
    )
    assert kept.address_b == "10.0.0.2"
    assert kept.warnings == ("the newest try failed: gone",)
    assert kept.a_to_b.warnings == ("not measured anew since 2026-01-01: gone",)
    probe_store.save_link(paths, measured_link(20.0), ("K1", "K2"))
    assert probe_store.load_link(paths, "a", "b") == measured_link(20.0)


def test_a_failed_link_probe_under_other_names_touches_nothing(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    probe_store.save_link(paths, measured_link(10.0), ("K1", "K2"))
    probe_store.save_link(paths, failed_link("a.local", "b.local"), ("K1", "K2"))
    assert probe_store.load_link(paths, "a", "b") == measured_link(10.0)


@pytest.mark.parametrize(("device", "kept"), [("cpu", 5.0), ("cuda", None)])
def test_a_box_whose_new_probe_gave_no_rate_keeps_the_last_one_of_the_same_device(
    tmp_path: Path, device: str, kept: float | None
) -> None:
    paths = paths_in(tmp_path)
    good = measured([5.0], unit="FLOP/s", method="m", taken_at="2026-01-01")
    box = BoxProfile(name="a", source="probe", host_key="K", flops_per_s={"fp32": good})
    probe_store.save_box(paths, box)
    new = msgspec.structs.replace(box, device=device, flops_per_s={"fp32": unknown("no Python")})
    probe_store.save_box(paths, new)
    found = probe_store.load_box(paths, "a")
    assert found is not None
    assert found.flops_per_s["fp32"].value == kept

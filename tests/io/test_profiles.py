"""Profiles: those that ship, a user's own, typed rates, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from homesplit.core.profile_files import parse_rate
from homesplit.errors import ProfileError, UsageError
from homesplit.io import profiles
from homesplit.io.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(config=tmp_path / "config", cache=tmp_path / "cache", data=tmp_path / "data")


BOX = """
name = "mine"
memory_bytes = 8e9
memory_bytes_per_s = 50e9
flops_per_s = { fp16 = 1e12, fp32 = 5e11 }
unified = true
"""


def test_every_profile_that_ships_is_read_and_names_its_source(paths: Paths) -> None:
    for kind, least in (("hardware", 40), ("links", 20), ("models", 40), ("workloads", 8)):
        files = profiles.built_in(kind)  # type: ignore[arg-type]
        assert len(files) >= least
        for name, file in files.items():
            held = profiles.read_toml(file)
            assert held.get("source") and held.get("date"), name
    for name in profiles.built_in("hardware"):
        assert profiles.load_hardware(name, paths).memory_bytes_per_s.value
    for name in profiles.built_in("links"):
        assert profiles.load_link(name, "a", "b", paths).a_to_b.value
    for name in profiles.built_in("models"):
        assert profiles.load_model(name, paths).kv_bytes_per_token() > 0
    for name in profiles.built_in("workloads"):
        assert profiles.load_workload(name, paths).classes


@pytest.mark.parametrize("text", ["spark", "DGX Spark", "dgx_spark", "GB10", "nvidia-dgx-spark"])
def test_a_machine_is_found_by_its_many_names(text: str, paths: Paths) -> None:
    assert profiles.load_hardware(text, paths).name == "dgx-spark"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3 30B-A3B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1 8B"),
        ("google/gemma-3-27b-it", "Gemma 3 27B"),
        ("gemma-3-27b-it-qat-q4_0", "Gemma 3 27B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral 8x7B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral 7B v0.3"),
        ("microsoft/Phi-4-reasoning", "Phi-4 14B"),
        ("Mistral Small 3.2", "Mistral Small 24B"),
        ("llama-4-scout", "Llama 4 Scout 109B-A17B"),
        ("granite-4.0-h-small", "Granite 4.0 H Small 32B-A9B"),
    ],
)
def test_a_model_is_found_under_its_makers_name_and_tuning(
    text: str, name: str, paths: Paths
) -> None:
    assert profiles.load_model(text, paths).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA GeForce RTX 3060 (12 GB)", "rtx-3060-12gb"),
        ("RTX3060 12GB", "rtx-3060-12gb"),
        ("rtx 3090", "rtx-3090"),
        ("GeForce RTX 5060", "rtx-5060-8gb"),
        ("4070 Ti Super", "rtx-4070-ti-super"),
        ("RTX 4070 laptop", "rtx-4070-laptop"),
        ("AMD Radeon RX 7900 XTX 24GB", "rx-7900-xtx"),
        ("Ryzen AI Max+ 395", "strix-halo-128gb"),
        ("Strix Halo 64GB", "strix-halo-64gb"),
        ("NVIDIA DGX Spark", "dgx-spark"),
        ("M2 Ultra", "mac-studio-m2-ultra-192gb"),
        ("Mac Studio M2 Ultra 64GB", "mac-studio-m2-ultra-64gb"),
        ("MacBook Pro 16 M4 Max 48 GB", "mac-studio-m4-max-48gb"),
        ("Mac mini M4 24GB", "mac-mini-m4-24gb"),
        ("MacBook Pro M3", "macbook-air-m3-16gb"),
        ("MacBook Pro M1", "macbook-m1-8gb"),
        ("MacBook Pro M1 16GB", "macbook-m1-16gb"),
        ("MacBook M3 Pro", "macbook-pro-m3-pro-36gb"),
        ("MacBook Pro M5", "macbook-pro-m5-24gb"),
        ("RTX 3060 12", "rtx-3060-12gb"),
        ("NVIDIA Jetson AGX Thor", "jetson-thor-128gb"),
        ("Jetson Orin Nano Super", "jetson-orin-nano-super-8gb"),
        ("Raspberry Pi 5 (8GB)", "raspberry-pi-5-8gb"),
        ("Ryzen 9 7950X 128 GB", "ryzen-9-7950x-128gb"),
        ("Tesla P40", "tesla-p40"),
    ],
)
def test_a_machine_is_found_as_people_write_it(text: str, name: str, paths: Paths) -> None:
    assert profiles.load_hardware(text, paths).name == name


def test_a_typed_memory_is_the_machines_and_told_as_typed(paths: Paths) -> None:
    box = profiles.load_hardware("Mac Studio M2 Ultra 64GB", paths)
    assert box.memory_bytes.value == 64 * 1024**3
    assert "with 64 GB of memory" in box.source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RTX 3080 12GB", "rtx-3080-10gb is of a card with 10 GB"),
        ("RTX 3080 laptop", "Did you mean rtx-"),
        ("Jetson Orin", "jetson-orin-n"),
        ("raspberry", "Did you mean raspberry-pi"),
        ("rtx", "rtx-"),
        ("RTX 4060 Ti", None),
        ("Threadripper 9", "no probed box or hardware profile"),
        ("M9 Ultra", "no probed box or hardware profile"),
        ("MacBook Pro M5 Pro", "no probed box or hardware profile"),
        ("MacBook M5 Pro", "no probed box or hardware profile"),
        ("MacBook Pro M5 Pro 48GB", "no probed box or hardware profile"),
        ("RTX 6000", "rtx-6000-ada, rtx-a6000"),
        ("Arc 580", "arc-b580"),
        ("7600", "rx-7600-8gb, rx-7600-xt, ryzen-5-7600"),
        ("", "no probed box or hardware profile"),
        ("???", "no probed box or hardware profile"),
    ],
)
def test_another_machine_is_never_taken_for_one_that_is_known(
    text: str, said: str | None, paths: Paths
) -> None:
    if said is None:
        assert profiles.load_hardware(text, paths).name == "rtx-4060-ti-16gb"
        return
    with pytest.raises(ProfileError, match=said):
        profiles.load_hardware(text, paths)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("2.5GbE", "ethernet-2.5g"),
        ("2.5GBASE-T", "ethernet-2.5g"),
        ("10GBASE-T", "ethernet-10g"),
        ("10 gigabit ethernet", "ethernet-10g"),
        ("1000BASE-T", "ethernet-1g"),
        ("Gigabit LAN", "ethernet-1g"),
        ("WiFi 6", "wifi-6"),
        ("Wi-Fi 7", "wifi-7"),
        ("802.11ac", "wifi-5"),
        ("Thunderbolt 4", "thunderbolt-4"),
        ("TB5", "thunderbolt-5"),
        ("USB4", "usb4"),
        ("25GbE SFP28", None),
        ("WiFi", None),
        ("Wi-Fi 6E", None),
        ("thunderbolt", None),
    ],
)
def test_a_link_is_found_as_people_write_it_or_refused(
    text: str, name: str | None, paths: Paths
) -> None:
    if name is None:
        with pytest.raises(ProfileError, match="Did you mean"):
            profiles.find("links", text, paths)
    else:
        assert profiles.find("links", text, paths).stem == name


@pytest.mark.parametrize(
    ("text", "bytes_", "bits"),
    [("1GB", "1GB/s", "1GbE"), ("1 gb", "1GB/s", "1GbE"), ("100MB", "100MB/s", "100MbE")],
)
def test_a_link_that_may_be_in_bits_or_in_bytes_is_refused_with_both(
    text: str, bytes_: str, bits: str, paths: Paths
) -> None:
    with pytest.raises(ProfileError, match=f"Say which: {bytes_} or {bits}."):
        profiles.load_link(text, "a", "b", paths)
    rates = [profiles.load_link(way, "a", "b", paths).a_to_b.value or 0 for way in (bytes_, bits)]
    assert rates[0] > 8 * rates[1]
    assert profiles.load_link("10Gb", "a", "b", paths).source == "profile: 10 Gbit/s Ethernet"


@pytest.mark.parametrize("text", ["0", "2.5", "-1", "1e9"])
def test_a_link_rate_without_a_unit_is_told_as_that(text: str, paths: Paths) -> None:
    with pytest.raises(ProfileError, match=f"'{text}' is a rate without a unit"):
        profiles.load_link(text, "a", "b", paths)


def test_no_bare_number_names_a_machine_while_another_makers_has_it_too() -> None:
    named = {short: short.split("-") for short in profiles.built_in("hardware")}
    for short in named:
        held = profiles.read_toml(profiles.built_in("hardware")[short])
        for number in filter(str.isdecimal, held.get("aliases", ())):
            makers = {words[0] for words in named.values() if number in words[1:]}
            assert len(makers) <= 1, f"{number} of {short}: {makers}"


@pytest.mark.parametrize(
    ("text", "name", "dtype"),
    [
        ("llama 3.1 70b q4", "Llama 3.3 70B", "q4_k_m"),
        ("llama3.1:70b-instruct-q4_K_M", "Llama 3.3 70B", "q4_k_m"),
        ("llama3.1:8b", "Llama 3.1 8B", "bf16"),
        ("bartowski/Qwen2.5-32B-Instruct-GGUF:Q8_0", "Qwen2.5 32B", "q8_0"),
        ("Qwen/Qwen3-32B-FP8", "Qwen3 32B", "fp8"),
        ("Qwen/Qwen3-32B-AWQ", "Qwen3 32B", "int4"),
        ("qwen3 30b", "Qwen3 30B-A3B", "bf16"),
        ("gemma 2 2b", "Gemma 2 2B", "bf16"),
        ("llama 3.1 8", "Llama 3.1 8B", "bf16"),
        ("gemma3:27b", "Gemma 3 27B", "bf16"),
        ("gpt-oss:120b", "gpt-oss 120B", "mxfp4"),
        ("mistral 7b 4-bit", "Mistral 7B v0.3", "int4"),
        ("deepseek-r1:14b", "Qwen2.5 14B", "bf16"),
    ],
)
def test_a_model_is_found_as_people_write_it_with_its_format(
    text: str, name: str, dtype: str, paths: Paths
) -> None:
    shape = profiles.load_model(text, paths)
    assert (shape.name, shape.dtype) == (name, dtype)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deepseek-v2", "deepseek-v2-lite"),
        ("gemma 3", "may be more than one"),
        ("llama 70b", "Did you mean"),
        ("phi 4 4b", "Did you mean phi-4, phi-4-mini"),
        ("gemma 2b", "gemma-2-2b"),
        ("llama-3.1-8b-q9", "Did you mean"),
        ("claude", "no model folder or model profile"),
    ],
)
def test_another_model_is_never_taken_for_one_that_is_known(
    text: str, said: str, paths: Paths
) -> None:
    with pytest.raises(ProfileError, match=said):
        profiles.load_model(text, paths)


def test_an_unknown_name_is_refused_with_the_nearest_ones(paths: Paths) -> None:
    with pytest.raises(ProfileError, match="rtx-3090"):
        profiles.load_hardware("rtx3091", paths)


def test_a_typed_box_is_read_from_its_file(tmp_path: Path, paths: Paths) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(BOX)
    box = profiles.load_hardware(str(file), paths)
    assert (box.name, box.unified, box.memory_bytes.value) == ("mine", True, 8e9)


def test_a_users_own_profile_stands_beside_the_built_in_ones(paths: Paths) -> None:
    folder = paths.user_profiles / "hardware"
    folder.mkdir(parents=True)
    (folder / "shed.toml").write_text(BOX)
    assert profiles.load_hardware("Shed", paths).name == "mine"
    assert profiles.names("hardware", paths)[0] == "shed"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('colour = "red"', "colour"),
        ("memory_bytes_per_s = -1.0", "memory_bytes_per_s"),
        ("memory_bytes_per_s = nan", "memory_bytes_per_s"),
        ('memory_bytes_per_s = "fast"', "memory_bytes_per_s"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_key(
    line: str, said: str, tmp_path: Path, paths: Paths
) -> None:
    file = tmp_path / "odd.toml"
    kept = [row for row in BOX.splitlines() if not row.startswith(line.split(" =")[0] + " ")]
    file.write_text("\n".join([*kept, line]))
    with pytest.raises(ProfileError, match=rf"odd\.toml.*{said}"):
        profiles.load_hardware(str(file), paths)


def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path, paths: Paths) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("name = ")
    with pytest.raises(ProfileError, match=r"broken\.toml"):
        profiles.load_hardware(str(file), paths)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2.35Gbit/s", 2.35e9 / 8),
        ("300MB/s", 300e6),
        ("1Gbps", 1e9 / 8),
        ("100 Mbit/s", 100e6 / 8),
        ("1GiB/s", 1024.0**3),
        ("wifi", None),
    ],
)
def test_a_typed_rate_is_understood(text: str, rate: float | None) -> None:
    assert parse_rate(text) == (pytest.approx(rate) if rate is not None else None)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="0Gbit"):
        parse_rate("0Gbit/s")


JOINT = """
name = "joint"
[arrivals]
rate_requests_per_s = 1.0
[[classes]]
name = "asked"
share = 1
"""


def test_a_workload_may_draw_prompt_and_answer_together(tmp_path: Path, paths: Paths) -> None:
    file = tmp_path / "joint.toml"
    file.write_text(JOINT + "pairs = [[1000, 20], [30, 500, 2.5]]\n")
    (kind,) = profiles.load_workload(str(file), paths).classes
    assert kind.pairs == ((1000, 20, 1.0), (30, 500, 2.5))
    assert (kind.prompt_tokens_low, kind.prompt_tokens_high) == (30, 1000)
    assert (kind.output_tokens_low, kind.output_tokens_high) == (20, 500)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "pairs = []",
        "pairs = [[10]]",
        "pairs = [[10, 0]]",
        "pairs = [[10, 5, 0]]",
        "pairs = [[10.5, 5]]",
        "pairs = [[10, 5, 1, 1]]",
        "pairs = [[10, 5, inf]]",
        "pairs = [[10, 5]]\nprompt_tokens = [1, 2]",
        "prompt_tokens = [1, 2]",
    ],
)
def test_lengths_that_cannot_be_drawn_are_refused(tmp_path: Path, paths: Paths, line: str) -> None:
    file = tmp_path / "joint.toml"
    file.write_text(JOINT + line)
    with pytest.raises(ProfileError, match="class 'asked'"):
        profiles.load_workload(str(file), paths)

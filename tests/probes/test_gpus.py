"""What graphics processors say of themselves, on recorded output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from homesplit_probes import compute, facts, figures, gpus

from homesplit.core.probed import box_profile

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    "text",
    [
        *("[N/A]", "N/A", "[Not Supported]", "", "  ", "[Unknown Error]", "ERR!", "[GPU is lost]"),
        *("-", "Unknown!", "nan", "inf", "0x1f", "12:30", "9" * 400),
    ],
)
def test_a_figure_that_the_tool_does_not_tell_is_none_and_never_0(text: str) -> None:
    assert figures.number(text) is None


@pytest.mark.parametrize(("text", "value"), [("24576 MiB", 24576), (" 11.17", 11.17), ("-3", -3)])
def test_a_figure_is_read_with_or_without_its_unit(text: str, value: float) -> None:
    assert figures.number(text) == value


def test_of_two_gpus_the_unified_one_keeps_its_unknown_memory() -> None:
    found = facts.parse_nvidia((GOLDEN / "nvidia_two_gpus_one_unified.txt").read_text())
    assert [g["memory_bytes"] for g in found] == [24576 << 20, None]
    assert [g["free_bytes"] for g in found] == [24121 << 20, None]
    assert [g["power_w"] for g in found] == [22.31, 11.17]


def test_a_gpu_that_tells_not_even_its_name_is_one_still_and_a_heading_is_none() -> None:
    heading = ", ".join(gpus.NVIDIA_FIELDS) + "\n"
    units = "NVIDIA A2, 15356 MiB, 14000 MiB, 580.1, 9.5 W, 40\n"
    lost = "[Unknown Error], [GPU is lost], [GPU is lost], , , \n"
    a2, other = facts.parse_nvidia(heading + units + lost)
    assert (a2["memory_bytes"], a2["free_bytes"], a2["power_w"]) == (15356 << 20, 14000 << 20, 9.5)
    assert (other["name"], other["memory_bytes"], other["driver"]) == ("NVIDIA GPU", None, None)


# docs.nvidia.com/datacenter/tesla/mig-user-guide: the form of `nvidia-smi -L`
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e91edf3b-b297-37c1-a2a7-7601c3238fa2)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-ff2c0d3a-0000-37c1-a2a7-7601c3238fa2)
"""


def test_the_instances_of_a_gpu_that_is_cut_are_known() -> None:
    assert facts.parse_mig(MIG) == {"0": "3g.20gb"}
    assert facts.parse_mig("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n",
        "No devices were found\n",
        "Failed to initialize NVML: Driver/library version mismatch\n"
        "NVML library version: 580.95\n",
        "\n,\n",
    ],
)
def test_an_nvidia_smi_without_gpus_gives_none(text: str) -> None:
    assert facts.parse_nvidia(text) == []


def test_a_tool_that_answers_na_leaves_everything_unknown_and_the_profile_says_why(
    tmp_path: Path,
) -> None:
    lines = ["NVIDIA GB10, [N/A], [N/A], 580.95, [N/A], 41", "Tesla, 16384, [Not Supported], , , "]
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(f"'{line}'" for line in lines) + "\n")
    tool.chmod(0o755)
    script = f"PATH={tmp_path}:$PATH; {facts.script('MARK').replace('within 8 ', 'within 100 ')}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=300)
    profile = box_profile("b", None, facts.parse(done.stdout.decode(), "MARK"), None, at="")
    assert [gpu.memory_bytes.value for gpu in profile.accelerators] == [None, 16384 << 20]
    assert profile.accelerators[0].memory_bytes.why
    assert profile.accelerators[1].driver is None
    assert (profile.device, profile.unified) == ("cuda", True)
    assert profile.memory_bytes.value
    assert "unified" in profile.memory_bytes.method


@pytest.mark.parametrize(
    "line",
    [
        # github.com/XuehaiPan/nvitop/pull/208: a DGX Spark, driver 580.173.02
        "NVIDIA GB10, [N/A], [N/A], 580.173.02, 11.17, 35",
        # github.com/micytao/vllm-playground/pull/11: a Jetson tells neither memory nor heat
        "NVIDIA Thor, [N/A], [N/A], 580.00, [N/A], [N/A]",
        # github.com/OE4T/linux-tegra-5.10/issues/17: an Orin names no driver either
        "Orin (nvgpu), [N/A], [N/A], [N/A], [N/A], [N/A]",
        # github.com/Mesh-LLM/mesh-llm/pull/29: another Orin, by which it has 0 MiB
        "Orin (nvgpu), 0, 0, 540.4.0, [N/A], [N/A]",
    ],
)
def test_a_gpu_that_shares_the_main_memory_has_what_is_available_there(line: str) -> None:
    known: dict[str, Any] = {"nvidia": facts.parse_nvidia(line)}
    known["memory"] = facts.parse_memory("MemTotal: 127600748 kB\nMemAvailable: 118566368 kB\n")
    box = box_profile("spark", None, known, None, at="")
    assert (box.device, box.unified) == ("cuda", True)
    assert box.memory_bytes.value == 118566368 * 1024
    assert box.accelerators[0].memory_bytes.value is None


def test_not_supported_power_is_unknown() -> None:
    gpu = facts.parse_nvidia("Tesla, 16384, 16000, 535.1, [Not Supported], \n")[0]
    assert (gpu["power_w"], gpu["temperature_c"]) == (None, None)


@pytest.mark.parametrize(
    ("gibibytes", "lent"),
    [(24, 16 << 30), (36, 27 << 30), (64, 48 << 30)],
)
def test_a_macs_gpu_is_lent_three_quarters_from_36_gib(gibibytes: int, lent: int) -> None:
    told = facts.parse_memory(f"hw.memsize: {gibibytes << 30}\niogpu.wired_limit_mb: 0\n")
    assert told["gpu_bytes"] == lent


def test_of_three_amd_gpus_the_cards_memory_is_known_and_the_processors_own_is_unified() -> None:
    built_in, card, silent = facts.parse_amd((GOLDEN / "amd_apu_and_card.txt").read_text())
    assert (built_in["name"], built_in["memory_bytes"], built_in["free_bytes"]) == (
        "AMD Radeon Graphics",
        None,
        None,
    )
    assert (card["name"], card["memory_bytes"], card["free_bytes"], card["driver"]) == (
        "Radeon RX 7900 XTX",
        24560 << 20,
        24532 << 20,
        "6.12.12",
    )
    assert (built_in["power_w"], card["power_w"]) == (9, 36)
    assert set(silent.values()) == {"AMD GPU", None}


def test_what_amd_smi_says_without_its_metrics_is_still_read() -> None:
    text = (GOLDEN / "amd_apu_and_card.txt").read_text().split("    POWER:")[0]
    found = facts.parse_amd(text)
    assert [gpu["memory_bytes"] for gpu in found] == [512 << 20, 24560 << 20, None]
    assert [gpu["power_w"] for gpu in found] == [None, None, None]
    assert facts.parse_amd("amd-smi: no GPU found\n") == []


def test_memory_of_which_only_the_whole_is_told_is_not_called_free() -> None:
    gpu = {"name": "R", "memory_bytes": 1 << 34, "free_bytes": None, "driver": None}
    told = box_profile("b", None, {"nvidia": [gpu]}, None, at="").memory_bytes
    assert told.value == 1 << 34
    assert told.method.startswith("all memory of R")
    full = box_profile("b", None, {"nvidia": [{**gpu, "free_bytes": 0}]}, None, at="").memory_bytes
    assert full.value == 0


def test_an_amd_gpu_without_amd_smi_has_the_memory_that_the_kernel_names() -> None:
    card = "0x1002|amdgpu|Navi 31|25753026560|28311552|33000000000"
    built_in = "0x1002|amdgpu|Phoenix|536870912|100|16000000000"
    silent = "0x1002||Hainan|||"
    told = facts.parse_graphics("\n".join([card, built_in, silent]))
    assert [gpu["memory_bytes"] for gpu in told] == [25753026560, None, None]
    assert [gpu["free_bytes"] for gpu in told] == [25753026560 - 28311552, None, None]
    box = box_profile("b", None, {"graphics": told}, None, at="")
    assert [gpu.memory_bytes.value for gpu in box.accelerators] == [25753026560, None, None]


MAC_GRAPHICS = """\
Graphics/Displays:

    Apple M3 Max:

      Chipset Model: Apple M3 Max
      Type: GPU
      Bus: Built-In
      Total Number of Cores: 40
      Vendor: Apple (0x106b)
      Metal Support: Metal 3
      Displays:
        Color LCD:
          Display Type: Built-in Liquid Retina XDR Display
"""
INTEL_MAC_GRAPHICS = """\
Graphics/Displays:

    Intel UHD Graphics 630:

      Chipset Model: Intel UHD Graphics 630
      Type: GPU
      VRAM (Dynamic, Max): 1536 MB
      Vendor: Intel
      Device ID: 0x3e9b

    AMD Radeon Pro 5500M:

      Chipset Model: AMD Radeon Pro 5500M
      VRAM (Total): 8 GB
      Vendor: AMD (0x1002)
"""


def test_a_macs_graphics_are_named_by_its_system_profiler() -> None:
    apple = {"graphics": facts.parse_graphics(MAC_GRAPHICS)}
    apple["system"] = {"kernel": "Darwin", "machine": "arm64"}  # pyright: ignore[reportArgumentType]
    box = box_profile("m", None, apple, None, at="")
    assert [(gpu.name, gpu.memory_bytes.value) for gpu in box.accelerators] == [
        ("Apple M3 Max", None)
    ]
    assert not box.warnings
    told = facts.parse_graphics(INTEL_MAC_GRAPHICS)
    assert [(gpu["maker"], gpu["memory_bytes"]) for gpu in told] == [
        ("Intel", None),
        ("AMD", 8 << 30),
    ]


GRAPHICS = """\
0x1002|amdgpu|Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XTX] (rev c8)
0x8086|i915|Intel Corporation AlderLake-S GT1 (rev 0c)
0x8086||
0x1234|bochs-drm|Device 1111
0x10de|nvidia|NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)
"""


def test_graphics_of_every_maker_are_named_also_without_its_tools() -> None:
    assert [(g["maker"], g["name"], g["driver"]) for g in facts.parse_graphics(GRAPHICS)] == [
        ("AMD", "Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XTX]", "amdgpu"),
        ("Intel", "Intel Corporation AlderLake-S GT1", "i915"),
        ("Intel", "Intel GPU", None),
        ("NVIDIA", "NVIDIA Corporation AD102 [GeForce RTX 4090]", "nvidia"),
    ]


def test_the_command_that_looks_for_graphics_takes_cards_and_no_connectors(tmp_path: Path) -> None:
    device = tmp_path / "pci" / "0000:03:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    (device / "mem_info_vram_total").write_text("25753026560\n")
    (device / "mem_info_vram_used").write_text("28311552\n")
    (device / "driver").symlink_to("../../bus/amdgpu")
    card = tmp_path / "drm" / "card0"
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    connector = tmp_path / "drm" / "card0-DP-1"
    connector.mkdir()
    (connector / "device").symlink_to(card)
    lspci = tmp_path / "lspci"
    lspci.write_text('#!/bin/sh\necho "$2 VGA compatible controller: AMD Navi 31 (rev c8)"\n')
    lspci.chmod(0o755)
    command = next(fact.command for fact in facts.FACTS if fact.name == "graphics")
    done = subprocess.run(
        ["sh", "-c", facts.WITHIN + command.replace("/sys/class/drm", str(tmp_path / "drm"))],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "0x1002|amdgpu|AMD Navi 31 (rev c8)|25753026560|28311552|\n"


@pytest.mark.parametrize(
    ("told", "device", "accelerators", "unused"),
    [
        ({"graphics": "0x1002|amdgpu|Navi 31"}, "cpu", ["Navi 31"], ["AMD"]),
        ({"graphics": "0x8086|i915|Arc A770"}, "cpu", ["Arc A770"], ["Intel"]),
        ({"graphics": "0x1002|amdgpu|Navi", "amd": True}, "cpu", ["RX 7900"], ["AMD"]),
        ({"graphics": "0x8086|i915|UHD", "nvidia": True}, "cuda", ["RTX 4090", "UHD"], []),
        ({}, "cpu", [], []),
    ],
)
def test_the_advice_counts_on_no_gpu_that_the_engine_can_not_use(
    told: dict[str, Any], device: str, accelerators: list[str], unused: list[str]
) -> None:
    gpu = {"memory_bytes": 24 << 30, "free_bytes": 23 << 30, "driver": "1"}
    known: dict[str, Any] = {"memory": {"total_bytes": 64 << 30, "available_bytes": 60 << 30}}
    known["graphics"] = facts.parse_graphics(told.get("graphics", ""))
    known["amd"] = [{"name": "RX 7900", **gpu}] if told.get("amd") else []
    known["nvidia"] = [{"name": "RTX 4090", **gpu}] if told.get("nvidia") else []
    box = box_profile("b", None, known, {"device": "cpu"}, at="")
    assert box.device == device
    assert [each.name for each in box.accelerators] == accelerators
    assert box.memory_bytes.value == (23 << 30 if device == "cuda" else 60 << 30)
    warned = [word for word in box.warnings if "GPU is not used" in word]
    assert [word.split()[1] for word in warned] == unused


def test_torch_made_for_an_amd_gpu_is_timed_on_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for hip, device in (("6.4", "cpu"), (None, "cuda")):
        torch = SimpleNamespace(
            cuda=SimpleNamespace(is_available=lambda: True),
            version=SimpleNamespace(hip=hip),
            backends=SimpleNamespace(),
        )
        monkeypatch.setattr(compute, "torch_module", lambda torch=torch: torch)
        assert compute.device_name() == device


def test_the_power_of_several_gpus_is_a_sum_only_when_each_tells_its_own() -> None:
    text = (GOLDEN / "amd_apu_and_card.txt").read_text()
    assert gpus.parse_amd_power(text) is None
    assert gpus.parse_amd_power(text[: text.rindex("GPU: 2")]) == 45
    assert gpus.parse_amd_power("") is None


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ((GOLDEN / "powermetrics_apple.txt").read_text(), 13.048),
        ("Intel energy model derived package power (CPUs+GT+SA): 2.38W\n", 2.38),
        ("powermetrics must be invoked as the superuser\n", None),
        ("", None),
    ],
)
def test_powermetrics_tells_watts_or_nothing(text: str, watts: float | None) -> None:
    assert gpus.parse_mac_power(text) == watts

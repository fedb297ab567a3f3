"""Parsers of what machines say of themselves, on recorded output."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from homesplit_probes import __main__ as probes
from homesplit_probes import compute, facts, figures, gpus, throttle
from homesplit_probes.said import said as probes_said

from homesplit.core.probed import box_profile
from homesplit.io.probe_runner import FACTS_S

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


@pytest.mark.parametrize(
    ("text", "model", "cores"),
    [
        ("model name\t: AMD Ryzen AI MAX+ 395\ncores=32\n", "AMD Ryzen AI MAX+ 395", 32),
        ("machdep.cpu.brand_string: Apple M3 Max\ncores=14\n", "Apple M3 Max", 14),
        ("Model\t\t: Raspberry Pi 5 Model B Rev 1.0\ncores=4", "Raspberry Pi 5 Model B Rev 1.0", 4),
        ("Model name: Cortex-X925 + Cortex-A725\ncores=20\n", "Cortex-X925 + Cortex-A725", 20),
        # A container on an Apple chip, and gVisor.
        ("Model name: -\ncores=4\n", None, 4),
        ("model name\t: unknown\ncores=4\n", None, 4),
        ("cores=4\n", None, 4),
        ("", None, None),
    ],
)
def test_a_processor_is_named_as_its_system_names_it(
    text: str, model: str | None, cores: int | None
) -> None:
    told = facts.parse_cpu(text)
    assert (told["model"], told["cores"]) == (model, cores)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("quota=max 100000\n", None),
        ("quota=-1 100000\n", None),
        ("quota=150000 100000\n", 1.5),
        ("quota=400000 100000\nquota=max 100000\nquota=50000 100000\n", 0.5),
        ("quota=1 0\n", None),
    ],
)
def test_the_tightest_quota_of_a_container_counts(text: str, cores: float | None) -> None:
    assert facts.parse_cpu(text)["quota_cores"] == cores


def test_limits_of_all_control_groups_around_it_are_asked_for(tmp_path: Path) -> None:
    own = tmp_path / "cgroup" / "user.slice" / "one"
    own.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/user.slice/one\n")
    (own / "memory.max").write_text("max\n")
    (own / "memory.current").write_text("7\n")
    (own / "memory.stat").write_text("anon 5\ninactive_file 2\nactive_file 1\n")
    (own / "cpu.max").write_text("max 100000\n")
    around = own.parent
    (around / "memory.max").write_text("3000000000\n")
    (around / "memory.current").write_text("12345678901\n")
    (around / "memory.stat").write_text("inactive_file 9000000000\nactive_file 1\n")
    (around / "cpu.max").write_text("50000 100000\n")

    assert "limit=max 7 3\nlimit=3000000000 12345678901 9000000001\n" in grouped("memory", tmp_path)
    (own / "memory.high").write_text("8\n")
    assert "limit=max 7 3\nlimit=3000000000 12345678901 9000000001\nlimit=8 7 3\n" in grouped(
        "memory", tmp_path
    )
    assert facts.parse_cpu(grouped("cpu", tmp_path))["quota_cores"] == 0.5


def test_limits_of_the_older_kind_of_control_groups_are_asked_for_around_it(tmp_path: Path) -> None:
    """On a machine in its own slice; in a container, which sees its group as the tree's root."""
    (tmp_path / "self").write_text("4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/a/b\n")
    for tree in ("memory", "cpu"):
        (tmp_path / "cgroup" / tree / "a" / "b").mkdir(parents=True)

    def limited(memory: Path, cpu: Path, most: int) -> None:
        (memory / "memory.limit_in_bytes").write_text(f"{most}\n")
        (memory / "memory.usage_in_bytes").write_text("7\n")
        (memory / "memory.stat").write_text("total_inactive_file 2\ninactive_file 1\n")
        (cpu / "cpu.cfs_quota_us").write_text(f"{most}\n")
        (cpu / "cpu.cfs_period_us").write_text("10\n")

    trees = (tmp_path / "cgroup" / "memory", tmp_path / "cgroup" / "cpu")
    limited(*trees, 30)
    limited(trees[0] / "a", trees[1] / "a", 20)
    assert "limit=20 7 2\nlimit=30 7 2\n" in grouped("memory", tmp_path)
    assert facts.parse_cpu(grouped("cpu", tmp_path))["quota_cores"] == 2
    (tmp_path / "self").write_text("4:memory:/docker/1\n3:cpu:/../x\n0::/\n")
    assert "limit=30 7 2\n" in grouped("memory", tmp_path)
    assert facts.parse_cpu(grouped("cpu", tmp_path))["quota_cores"] == 3


def test_not_supported_power_is_unknown() -> None:
    gpu = facts.parse_nvidia("Tesla, 16384, 16000, 535.1, [Not Supported], \n")[0]
    assert (gpu["power_w"], gpu["temperature_c"]) == (None, None)


def test_meminfo_is_read_in_bytes() -> None:
    text = "MemTotal:       127600748 kB\nMemFree: 1 kB\nMemAvailable:   100 kB\n"
    told = facts.parse_memory(text)
    assert (told["total_bytes"], told["available_bytes"]) == (127600748 * 1024, 102400)
    assert (told["limit_bytes"], told["gpu_bytes"]) == (None, None)


@pytest.mark.parametrize(
    ("limits", "limit", "available"),
    [
        ("limit=max 5 1\n", None, 900_000 * 1024),
        ("limit=9223372036854771712 5 1\n", None, 900_000 * 1024),
        ("limit=500000000 300000000 100000000\n", 500_000_000, 300_000_000),
        ("limit=500000000  \n", 500_000_000, 500_000_000),
        # Of groups around one another the tightest counts.
        ("limit=max 5 1\nlimit=600000000 0 0\nlimit=400000000 0 0\n", 400e6, 400_000_000),
        ("limit=400000000 500000000 0\n", 400_000_000, 0),
    ],
)
def test_a_containers_memory_is_what_its_control_groups_allow(
    limits: str, limit: int | None, available: int
) -> None:
    told = facts.parse_memory(f"MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n{limits}")
    assert (told["limit_bytes"], told["available_bytes"]) == (limit, available)


def test_macos_memory_comes_from_sysctl_and_vm_stat() -> None:
    text = (
        "hw.memsize: 17179869184\n"
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               10.\n"
        "Pages active:                            500.\n"
        "Pages inactive:                           20.\n"
    )
    told = facts.parse_memory(text)
    assert (told["total_bytes"], told["available_bytes"]) == (1 << 34, 30 * 16384)
    assert told["gpu_bytes"] is None
    for wired, lent in (("0", (1 << 34) * 2 // 3), ("14000", 14000 << 20)):
        asked = facts.parse_memory(f"{text}iogpu.wired_limit_mb: {wired}\n")
        assert asked["gpu_bytes"] == lent


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


def test_a_speed_of_minus_1_and_that_of_a_virtual_interface_are_unknown() -> None:
    found = facts.parse_interfaces(
        "a|-1|1400|wired|up\nb|1000|9000|wired|up\nc|10000|1500|virtual|up"
    )
    assert [found[n]["label_bytes_per_s"] for n in "abc"] == [None, 125e6, None]
    assert found["b"]["mtu"] == 9000


@pytest.mark.parametrize("speed", ["65535", "4294967295", "", "Unknown!", "0"])
def test_a_speed_that_older_kernels_do_not_know_is_unknown(speed: str) -> None:
    assert facts.parse_interfaces(f"a|{speed}|1500|wired|up")["a"]["label_bytes_per_s"] is None


MAC_INTERFACES = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 1c:57:dc:00:00:01
\tinet6 fe80::1%en0 prefixlen 64 secured scopeid 0xe
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
\tmedia: autoselect (10Gbase-T <full-duplex,flow-control>)
\tstatus: active
en1: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tmedia: autoselect
\tstatus: active
en7: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 9000
\tmedia: autoselect (1000baseT <full-duplex>)
\tstatus: active
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 169.254.10.1 netmask 0xffff0000 broadcast 169.254.255.255
\tmedia: <unknown type>
\tstatus: active
utun3: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1280
Hardware Port: Ethernet
Device: en0
Ethernet Address: 1c:57:dc:00:00:01

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 1c:57:dc:00:00:02

Hardware Port: USB 10/100/1000 LAN
Device: en7
Ethernet Address: 1c:57:dc:00:00:03

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:00:00:00:00:01
"""


def test_a_macs_interfaces_have_label_mtu_and_kind() -> None:
    found = facts.parse_interfaces(MAC_INTERFACES)
    told = {name: (each["kind"], each["label_bytes_per_s"]) for name, each in found.items()}
    assert told == {
        "en0": ("wired", 1.25e9),
        "en1": ("wifi", None),
        "en7": ("wired", 125e6),
        "bridge0": ("bridge", None),
        "utun3": ("tunnel", None),
    }
    assert (found["en7"]["mtu"], found["en0"]["state"]) == (9000, "active")
    assert facts.parse_addresses(MAC_INTERFACES) == [
        {"interface": "en0", "address": "fe80::1"},
        {"interface": "en0", "address": "192.168.1.20"},
        {"interface": "bridge0", "address": "169.254.10.1"},
    ]


def test_addresses_are_read_from_busyboxs_ifconfig_and_from_ssh_where_nothing_else_is() -> None:
    old = (
        "eth0      Link encap:Ethernet  HWaddr 02:42:AC:11:00:02\n"
        "          inet addr:172.17.0.2  Bcast:172.17.255.255  Mask:255.255.0.0\n"
        "          inet6 addr: fd00::2/64 Scope:Global\n"
        "lo        Link encap:Local Loopback\n"
        "          inet addr:127.0.0.1  Mask:255.0.0.0\n"
    )
    assert [a["address"] for a in facts.parse_addresses(old)] == ["172.17.0.2", "fd00::2"]
    assert facts.parse_addresses("ssh 10.0.0.2 50412 10.0.0.11 22\n") == [
        {"interface": "", "address": "10.0.0.11"}
    ]
    assert facts.parse_addresses("ssh \n") == []


def test_addresses_of_linux_and_macos_leave_loopback_out() -> None:
    linux = "1: lo    inet 127.0.0.1/8\n2: eth0@if4    inet 10.0.0.5/24 brd\n"
    linux += "2: eth0    inet6 fe80::1/64"
    assert facts.parse_addresses(linux) == [
        {"interface": "eth0", "address": "10.0.0.5"},
        {"interface": "eth0", "address": "fe80::1"},
    ]
    mac = (
        "lo0: flags=8049\n\tinet 127.0.0.1 netmask\nen0: flags=8863\n\tinet 10.0.0.7 netmask 0xff\n"
    )
    assert facts.parse_addresses(mac) == [{"interface": "en0", "address": "10.0.0.7"}]


def test_the_python_with_torch_probes_first_and_old_ones_never() -> None:
    text = "/usr/bin/python3|3.11.2|\n/old|3.8.1|torch\n/deployed|3.12.1|torch\n/broken|\n"
    assert [p["path"] for p in facts.parse_pythons(text)] == ["/deployed", "/usr/bin/python3"]


def command(name: str) -> str:
    """The `sh` that tells this fact."""
    return next(fact.command for fact in facts.FACTS if fact.name == name)


def grouped(name: str, folder: Path) -> str:
    """What a fact's command says where control groups lie in `folder`."""
    script = (facts.GROUPS + command(name)).replace("/sys/fs/cgroup", str(folder / "cgroup"))
    return said(folder, script.replace("/proc/self/cgroup", str(folder / "self")))


def tool(folder: Path, name: str, script: str) -> None:
    """A stand-in for a tool of another system."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def said(folder: Path, command: str) -> str:
    """What a command prints where these tools are found first."""
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    return done.stdout


def test_a_python_beside_no_plain_python3_is_found(tmp_path: Path) -> None:
    tool(tmp_path, "python3.10", "echo '3.10.4|'")
    assert f"{tmp_path}/python3.10|3.10.4|" in said(tmp_path, command("pythons"))


def test_a_mac_without_developer_tools_is_not_asked_for_the_python_that_would_bring_them(
    tmp_path: Path,
) -> None:
    tool(tmp_path, "uname", "echo Darwin")
    tool(tmp_path, "xcode-select", "exit 2")
    assert "/usr/bin/python3|" not in said(tmp_path, command("pythons"))
    tool(tmp_path, "xcode-select", "echo /Library/Developer/CommandLineTools")
    if os.access("/usr/bin/python3", os.X_OK):
        assert "/usr/bin/python3|3." in said(tmp_path, command("pythons"))


def test_an_arm_processor_without_a_name_in_cpuinfo_has_those_of_lscpu(tmp_path: Path) -> None:
    tool(tmp_path, "grep", '[ "$4" = /proc/cpuinfo ] && exit 1; exec /bin/grep "$@"')
    tool(tmp_path, "lscpu", "echo 'Model name:  Cortex-X925'; echo 'Model name:  Cortex-A725'")
    told = facts.parse_cpu(said(tmp_path, command("cpu")))
    assert told["model"] == "Cortex-X925 + Cortex-A725"


def test_a_processor_that_is_quick_with_whole_numbers_is_known(tmp_path: Path) -> None:
    for flags, vnni in (("avx512f avx512_vnni", True), ("avx_vnni avx512f", False)):
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags}\n")
        asked = command("cpu").replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
        known = {"cpu": facts.parse_cpu(said(tmp_path, asked))}
        assert box_profile("b", None, known, None, at="").vnni is vnni


def test_free_disk_space_is_in_bytes_and_unknown_without_an_answer() -> None:
    assert facts.parse_disk("Filesystem 1024-blocks Used Available\n/dev/a 9 2 7 30% /\n") == 7168
    assert facts.parse_disk("") is None


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("//nas/My Share 100 40 60 40% /home/ann", 60 << 10),
        ("/dev/disk3s5 994662584 5 900 52% /System/Volumes/My Data", 900 << 10),
        ("/dev/a 9 9 -2 100% /", 0),
        ("overlay - - - - /", None),
    ],
)
def test_free_space_is_found_beside_names_with_blanks(line: str, free: int | None) -> None:
    assert facts.parse_disk(f"Filesystem 1024-blocks Used Available Capacity\n{line}\n") == free


@pytest.mark.parametrize(
    ("text", "battery"),
    [
        ("Mains=0\nBattery=Discharging\n", True),
        ("Mains=1\nBattery=Charging\n", False),
        ("Battery=Discharging\n", True),
        # By USB-C the mains say nothing of it.
        ("Mains=0\nBattery=Charging\n", False),
        ("Mains=0\nBattery=Full\nBattery=Discharging\n", True),
        ("Now drawing from 'Battery Power'\n", True),
        ("Now drawing from 'AC Power'\n", False),
        ("Mains=0\n", None),
        ("", None),
    ],
)
def test_a_machine_on_its_battery_is_known(text: str, battery: bool | None) -> None:
    assert facts.parse_on_battery(text) is battery


def test_a_mouses_battery_is_none_of_the_machines(tmp_path: Path) -> None:
    for name, scope in (("hidpp_battery_0", "Device"), ("BAT0", None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "type").write_text("Battery\n")
        (folder / "status").write_text("Discharging\n" if scope else "Full\n")
        if scope:
            (folder / "scope").write_text(f"{scope}\n")
    asked = command("on_battery").replace("/sys/class/power_supply", str(tmp_path))
    assert said(tmp_path, asked) == "Battery=Full\n"


@pytest.mark.parametrize(
    ("within", "kind"), [(None, "wired"), ("brport", "member"), ("bonding_slave", "member")]
)
def test_what_belongs_to_a_bridge_is_no_cable_of_its_own(
    tmp_path: Path, within: str | None, kind: str
) -> None:
    card = tmp_path / "eth0"
    (card / "device").mkdir(parents=True)
    for name, text in (("mtu", "1500"), ("speed", "1000"), ("operstate", "up")):
        (card / name).write_text(f"{text}\n")
    if within:
        (card / within).mkdir()
    asked = command("interfaces").replace("/sys/class/net", str(tmp_path))
    assert facts.parse_interfaces(said(tmp_path, asked))["eth0"]["kind"] == kind


def test_a_system_names_itself_however_it_quotes_and_without_the_hostname_tool() -> None:
    told = facts.parse_system("Linux\n6.1\nx86_64\nbox\nNAME=Void\nPRETTY_NAME='Void Linux'\n")
    assert (told["name"], told["hostname"]) == ("Void Linux", "box")
    assert "hostname" not in command("system")


def test_a_tool_that_hangs_is_given_up_and_the_rest_is_told(tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "sleep 600")
    asked = facts.WITHIN + command("nvidia").replace("within 8 ", "within 1 ")
    assert said(tmp_path, f"{asked}; echo and on") == "and on\n"


def test_a_tool_that_hears_no_signal_is_given_up(tmp_path: Path) -> None:
    tool(tmp_path, "deaf", "trap '' TERM; sleep 60; echo late")
    # As where only the time of day is told.
    within = facts.WITHIN.replace("/proc/uptime", "/none/uptime")
    assert said(tmp_path, f"{within}within 1 deaf; echo and on") == "and on\n"


def test_a_driver_that_hangs_is_not_asked_twice(tmp_path: Path) -> None:
    for name, asked in (("nvidia-smi", ("nvidia", "mig")), ("amd-smi", ("amd",))):
        # As it ends where it is given up.
        tool(tmp_path, name, f"echo asked >>{tmp_path}/log; exit 124")
        script = facts.WITHIN + "; ".join(map(command, asked))
        script = re.sub(r"within \d+ ", "within 100 ", script)
        said(tmp_path, script)
        assert (tmp_path / "log").read_text() == "asked\n"
        tool(tmp_path, name, f"echo asked >>{tmp_path}/log")
        said(tmp_path, script)
        assert (tmp_path / "log").read_text() == "asked\n" * 3
        (tmp_path / "log").unlink()


BUSY = r"""
late=0
clock() { now=$late; }
# Nothing is done but by the time that this waits for, so that it takes no time here.
sleep() {
  late=$((late + 9)); turns="$turns."
  if [ -n "$at" ]; then until [ -s "$at" ]; do command sleep 0.02; done
  else until [ -e "$held/load.told" ] && [ -e "$held/nvidia.told" ]; do command sleep 0.02; done; fi
}
"""
"""A box where each turn of 0.1 s lasts 9 s."""


def test_what_hangs_holds_up_nothing_else_and_is_named_in_time_also_by_a_busy_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's tool, and what hangs where `within` bounds nothing."""
    names = ("nvidia", "on_battery", "load", "silent")
    monkeypatch.setattr(facts, "FACTS", tuple(f for f in facts.FACTS if f.name in names))
    tool(tmp_path, "nvidia-smi", "echo R, 1, 1, 1, 1, 1; exec sleep 20")
    tool(tmp_path, "pmset", "exec sleep 20")
    # What no signal ends is as what nobody ends.
    script = facts.script("MARK").replace("kill -KILL", "true").replace("facts='", f"{BUSY}facts='")
    answer = said(tmp_path, f'{script}; echo; echo "MARK turns"; echo "$turns"')
    found = facts.parse(answer, "MARK")
    # Not in 200 turns of 0.1 s, which last half an hour there.
    assert answer.endswith("turns\n...\n")
    assert (found["silent"], found["nvidia"][0]["name"]) == (["nvidia", "on_battery"], "R")
    assert found["load"] is not None
    warned = box_profile("b", None, found, None, at="").warnings
    assert "no answer in time about its NVIDIA GPU and its battery: it is very busy" in warned[-1]


def test_all_facts_are_told_before_the_desk_stops_waiting() -> None:
    waits = re.findall(r"within (\d+) ", "; ".join(fact.command for fact in facts.FACTS))
    assert max(map(int, waits)) < facts.ANSWER_S < probes._FACTS_S < FACTS_S  # pyright: ignore[reportPrivateUsage]


def test_facts_in_front_of_one_that_hangs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1, output=command[-1].encode())

    def script(mark: str) -> str:
        return f"{mark} load\n0.5 1 1\n{mark} disk\n"

    monkeypatch.setattr(facts, "script", script)
    monkeypatch.setattr(subprocess, "run", hanging)
    found = probes.gather_facts()
    assert (found["load"], found["disk"]) == (0.5, None)


def test_a_tool_that_no_signal_ends_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[str]] = []
    kill = subprocess.Popen[str].kill
    monkeypatch.setattr("homesplit_probes.said._WAIT_S", 0.1)
    monkeypatch.setattr("homesplit_probes.said._END_S", 0.1)

    def deaf(process: subprocess.Popen[str]) -> None:
        left.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", deaf)
    assert probes_said(["sleep", "60"]) == ""
    (process,) = left
    assert process.poll() is None
    kill(process)
    process.communicate()


def test_where_nothing_can_be_written_all_are_waited_for(tmp_path: Path) -> None:
    tool(tmp_path, "mktemp", "exit 1")
    assert said(tmp_path, f"{facts.WITHIN}within 100 echo here") == "here\n"
    found = facts.parse(said(tmp_path, facts.script("MARK")), "MARK")
    assert found["memory"]["total_bytes"] and found["silent"] == []


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    tool(tmp_path, "mktemp", f"mkdir {tmp_path}/held; echo {tmp_path}/held")
    said(tmp_path, facts.script("MARK"))
    assert not (tmp_path / "held").exists()


def test_wsls_tools_are_found_where_no_login_looks() -> None:
    assert "/usr/lib/wsl/lib" in facts.script("MARK").splitlines()[0]


def test_the_whole_script_runs_under_plain_sh_and_is_read_back() -> None:
    done = subprocess.run(["sh", "-c", facts.script("MARK")], capture_output=True, timeout=300)
    found = facts.parse(done.stdout.decode(), "MARK")
    assert set(found) == {fact.name for fact in facts.FACTS}
    assert found["system"]["kernel"]
    assert found["memory"]["total_bytes"] > 0


@pytest.mark.parametrize(
    "junk",
    [
        *("\n", " \n", "a ", "1 ", "GPU: 1\n", "VRAM:\n", "Chipset Model:\n"),
        *("en0: flags=1 mtu 1\n", "GPU 0:\n  MIG a  ", "model name : ", "9", "quota=1 1\n"),
    ],
)
def test_an_answer_without_end_is_read_or_unknown(junk: str) -> None:
    parts = [f"MARK {fact.name}\n{junk * (200_000 // len(junk))}" for fact in facts.FACTS]
    found = facts.parse("\n".join(parts), "MARK")
    assert set(found) == {fact.name for fact in facts.FACTS}
    assert box_profile("b", None, found, None, at="").name == "b"


@pytest.mark.parametrize("digits", [400, 4000, 100_000])
def test_a_figure_without_end_is_unknown_and_costs_nobody_a_profile(digits: int) -> None:
    figure = "9" * digits
    lines = [
        f"Chipset Model: M\n VRAM (Total): {figure} GB\n",
        f"hw.memsize: {figure}\npage size of {figure} bytes\nPages free: {figure}.\n",
        f"hw.memsize: 17179869184\npage size of 16384 bytes\nPages free: {figure}.\n",
        f"en0: flags=1 mtu {figure}\n media: auto ({figure}baseT)\n",
        f"en0: flags=1 mtu 1500\n media: auto ({figure}Gbase-T)\n",
        f"eth0|{figure}|{figure}|wired|up\n",
        f"MemTotal: {figure} kB\nMemAvailable: {figure} kB\n",
        f"cores={figure}\nquota={figure} {figure}\n",
        f"R, {figure}, {figure}, 1, {figure}, {figure}\n",
        f"GPU: 0\n    VRAM:\n        SIZE: {figure} GB\n",
        f"0x1002|amdgpu|R|{figure}|{figure}|{figure}\n",
        f"/dev/a {figure} {figure} {figure} 5% /\n",
        figure,
    ]
    for line in lines:
        parts = [f"MARK {fact.name}\n{line}" for fact in facts.FACTS]
        found = facts.parse("\n".join(parts), "MARK")
        profile = box_profile("b", None, found, None, at="")
        assert profile.memory_total_bytes.value in (None, 1 << 34), line[:40]
        assert all(gpu.memory_bytes.value is None for gpu in profile.accelerators), line[:40]
        mtus = [one["mtu"] for one in (found["interfaces"] or {}).values()]
        assert mtus in ([], [None], [1500]), line[:40]
    assert throttle.parse_mac(f"CPU_Speed_Limit = {figure}") == {}

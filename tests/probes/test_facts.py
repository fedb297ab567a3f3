"""Parsers of what machines say of themselves, on recorded output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from homesplit_probes import facts

from homesplit.core.probed import box_profile
from tests.probes.facts_kit import command, grouped, said, tool

GOLDEN = Path(__file__).parent / "golden"


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


def test_the_python_with_torch_probes_first_and_old_ones_never() -> None:
    text = "/usr/bin/python3|3.11.2|\n/old|3.8.1|torch\n/deployed|3.12.1|torch\n/broken|\n"
    assert [p["path"] for p in facts.parse_pythons(text)] == ["/deployed", "/usr/bin/python3"]


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

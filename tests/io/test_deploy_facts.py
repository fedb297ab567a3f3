"""What a box says of itself, and which packages fit it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from homesplit.core.machine import NO_DRIVER
from homesplit.errors import DeployError, UsageError
from homesplit.io import box_facts
from homesplit.io.box_facts import ADDRESSES, parse
from homesplit.io.bundle import make_bundle
from homesplit.io.platforms import fitting_python, target_from_key, target_of
from homesplit.io.remote_process import parse_states

SCRIPT = box_facts.SCRIPT.replace("within 8 ", "within 100 ")
"""No tool is given up, however busy this machine is."""

_LINUX = """home=/home/ann
user=ann
system=Linux
machine=x86_64
libc=glibc 2.36
python=3.13.1 /usr/bin/python3.13
python=3.11.2 /usr/bin/python3
free_kb=1000
ssh=10.0.0.2 50000 10.0.0.11 22
listen_hex=0016
listen_hex=BA0A
"""


def test_a_linux_box_is_read() -> None:
    facts = parse(_LINUX, "atlas")
    assert (facts.free_bytes, facts.listening) == (1_024_000, {22, 47626})
    assert (facts.desk_address, facts.own_address) == ("10.0.0.2", "10.0.0.11")
    assert facts.root == "/home/ann/.local/share/homesplit/box"
    assert target_of(facts, "atlas").key == "linux-x86_64-py3.11-cpu"


@pytest.mark.parametrize(
    ("lines", "device", "unused", "backend"),
    [
        ("graphics=0x1002", "cpu", ("AMD",), "cpu"),
        ("graphics=0x8086\ngraphics=0x1002\ngraphics=0x1002", "cpu", ("AMD", "Intel"), "cpu"),
        ("graphics=0x1234", "cpu", (), "cpu"),
        ("", "cpu", (), "cpu"),
        ("graphics=0x8086\ngpu=nvidia", "cuda", ("Intel",), "auto"),
        ("graphics=0x10de\ngpu=nvidia", "cuda", (), "auto"),
        # A driver that was updated and not loaded anew answers nobody.
        ("graphics=0x10de nvidia", "cpu", ("NVIDIA",), "cpu"),
        ("graphics=0x10de nouveau", "cpu", (NO_DRIVER,), "cpu"),
        ("graphics=0x10de", "cpu", (NO_DRIVER,), "cpu"),
        ("graphics=0x1002 amdgpu\ngraphics=0x10de nvidia\ngpu=nvidia", "cuda", ("AMD",), "auto"),
    ],
)
def test_a_gpu_that_the_engine_can_not_use_brings_no_torch_made_for_it(
    lines: str, device: str, unused: tuple[str, ...], backend: str
) -> None:
    facts = parse(f"{_LINUX}{lines}\n", "atlas")
    assert (facts.device, facts.unused_gpus) == (device, unused)
    assert target_of(facts, "atlas").torch_backend == backend


def test_a_mac_gets_the_torch_that_there_is_for_it() -> None:
    facts = parse("home=/h\nuser=u\nsystem=Darwin\nmachine=arm64", "mac")
    assert target_of(facts, "mac").torch_backend == "auto"


def test_the_python_that_tests_run_on_is_chosen_first() -> None:
    assert fitting_python(parse(_LINUX, "atlas")) == ((3, 11), "/usr/bin/python3")


@pytest.mark.parametrize("python", ["3.8.10 /usr/bin/python3", "3.14.0 /usr/bin/python3", "junk"])
def test_a_python_that_packages_do_not_fit_is_not_chosen(python: str) -> None:
    text = "home=/h\nuser=u\nsystem=Linux\nmachine=x86_64\npython=" + python
    assert fitting_python(parse(text, "old")) is None


def test_a_missing_figure_stays_unknown() -> None:
    facts = parse("home=/h\nuser=u\nsystem=Darwin\nmachine=arm64\nfree_kb=", "mac")
    assert (facts.free_bytes, facts.own_address, facts.device) == (None, None, "mps")


def test_an_empty_answer_is_an_error_with_the_box_in_it() -> None:
    with pytest.raises(DeployError, match="atlas: it does not say its home"):
        parse("", "atlas")


@pytest.mark.parametrize(
    ("system", "machine", "libc", "key", "tag"),
    [
        ("Linux", "aarch64", "glibc 2.31", "linux-aarch64-py3.11-cpu", "manylinux_2_31_aarch64"),
        ("Darwin", "arm64", "", "darwin-arm64-py3.11-cpu", "macosx_15_0_arm64"),
    ],
)
def test_each_kind_of_box_has_its_packages(
    system: str, machine: str, libc: str, key: str, tag: str
) -> None:
    text = f"home=/h\nuser=u\nsystem={system}\nmachine={machine}\nlibc={libc}"
    target = target_of(parse(text, "box"), "box")
    assert (target.key, target.pip_platforms[0]) == (key, tag)
    assert target_from_key(key).key == key


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("system=Linux\nmachine=armv7l\nbits=32", "a 32-bit system"),
        ("system=Linux\nmachine=aarch64\nbits=32", "a 32-bit system"),
        ("system=Linux\nmachine=riscv64\nbits=64", "riscv64"),
        ("system=Darwin\nmachine=x86_64\nbits=64", "Intel"),
        ("system=Linux\nmachine=x86_64\nbits=64\nlibc=glibc 2.17", "glibc 2.17"),
        ("system=Linux\nmachine=x86_64\nbits=64\nlibc=musl", "its C library is musl"),
        ("system=FreeBSD\nmachine=amd64", "FreeBSD"),
        # Termux on a telephone, and NixOS without what makes others' programs start.
        ("system=Linux\nmachine=aarch64\nbits=64\nlibc=\nno_loader=/lib/ld", "it has no /lib/ld"),
        ("system=Linux\nmachine=x86_64\nlibc=glibc 2.40\nno_loader=nix-ld", "programs.nix-ld"),
    ],
)
def test_a_system_that_torch_has_no_packages_for_says_so_before_anything_is_fetched(
    lines: str, says: str
) -> None:
    facts = parse(f"home=/h\nuser=u\n{lines}", "old")
    with pytest.raises(DeployError, match=says):
        target_of(facts, "old")


def test_a_platform_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no platform"):
        target_from_key("windows-x86_64")
    with pytest.raises(UsageError, match="the C library musl"):
        target_from_key("linux-musl-x86_64-py3.11-cpu")


def test_processes_are_told_apart() -> None:
    states = parse_states(
        'worker crashed 12\nworker said Killed\nrouter running 13\nrouter ready {"pid": 13}\n'
    )
    assert (states["worker"].state, states["worker"].said) == ("crashed", "Killed")
    assert (states["router"].state, states["router"].pid) == ("running", 13)
    assert states["router"].ready == '{"pid": 13}'


def test_boxes_install_the_versions_that_tests_run_on() -> None:
    constraints = Path(__file__).parents[2].joinpath("constraints.txt").read_text().lower()
    pins = [line for line in make_bundle().requirements.splitlines() if not line.startswith("#")]
    missing = [pin for pin in pins if not _pinned(pin, constraints)]
    assert missing == []


def _pinned(pin: str, constraints: str) -> bool:
    return any(pin.replace("-", "_") == line.replace("-", "_") for line in constraints.split())


@pytest.mark.parametrize(
    ("home", "options", "says"),
    [
        ("a disk/home", "", None),
        ("a disk/home", "noexec", "lets no program run"),
        ("a disk/home", "ro", "can't be written to"),
    ],
)
def test_a_home_that_nothing_can_be_brought_to_says_so(
    tmp_path: Path, home: str, options: str, says: str | None
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"no mounts of one's own are allowed here: {allowed.stderr.strip()}")
    (tmp_path / "a disk").mkdir()
    script = (
        'mount -t tmpfs box "$1" && mkdir "$2" && mount -o "remount,rw,$3" "$1" && '
        'HOME="$2" sh -c "$4"'
    )
    words = [str(tmp_path / "a disk"), str(tmp_path / home), options, SCRIPT]
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = parse(done.stdout, "atlas").closed
    assert told is None if says is None else says in (told or "")


def test_a_user_without_a_home_is_told_about_and_nobody_waits() -> None:
    environment = {**os.environ, "HOME": "/nonexistent"}
    command = ["sh", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert parse(done.stdout, "atlas").free_bytes


@pytest.mark.parametrize(("told", "kills"), [("b true", True), ("b false", False), ("", False)])
def test_a_system_that_ends_what_a_user_leaves_running_is_known(
    tmp_path: Path, told: str, kills: bool
) -> None:
    for name, script in (("busctl", f"echo '{told}'"), ("id", "echo 1000")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert parse(done.stdout, "atlas").log_out_kills is kills


def told_with(tools: dict[str, str], folder: Path, *, hangs: str = "") -> str:
    """What the script prints on a box that has these tools; one that hangs is soon given up."""
    for name, script in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    script = SCRIPT.replace(f"within 100 {hangs}", f"within 1 {hangs}") if hangs else SCRIPT
    command = ["sh", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout


def test_a_python_without_what_torch_needs_is_passed_over(tmp_path: Path) -> None:
    """As one built without libffi's headers, or a part of one: importing ctypes fails there.

    None of what the engine needs is in want of a compression beside zlib's.
    """
    lacks = "case $3 in *{}*) exit 1;; esac; echo 3.{}.1"
    tools = {"python3.13": lacks.format("ctypes", 13), "python3.12": "echo 3.12.1"}
    tools |= {"python3.14": lacks.format("lzma", 14), "python3": lacks.format("bz2", 11)}
    facts = parse(told_with(tools, tmp_path), "atlas")
    own = {python.path for python in facts.pythons if python.path.startswith(str(tmp_path))}
    assert own == {f"{tmp_path}/{name}" for name in ("python3.12", "python3.14", "python3")}
    assert facts.no_loader is None


def test_tools_that_fail_or_hang_leave_a_box_without_gpu_and_free_space_unknown(
    tmp_path: Path,
) -> None:
    tools = {"nvidia-smi": "exit 9", "df": "sleep 600"}
    facts = parse(told_with(tools, tmp_path, hangs="df"), "atlas")
    assert (facts.gpu, facts.device, facts.free_bytes) == (None, "cpu", None)
    assert facts.home


@pytest.mark.parametrize(
    ("line", "free"),
    [("//nas/My Share 100 40 60 40% /home/a", 60 << 10), ("/dev/a 9 9 -2 100% /", 0)],
)
def test_free_space_is_found_beside_names_with_blanks(tmp_path: Path, line: str, free: int) -> None:
    tools = {"df": f"echo Filesystem 1024-blocks; echo '{line}'", "nvidia-smi": "exit 0"}
    facts = parse(told_with(tools, tmp_path), "atlas")
    assert (facts.free_bytes, facts.gpu) == (free, "nvidia")


def test_addresses_of_an_older_ifconfig_are_read(tmp_path: Path) -> None:
    lines = "inet addr:172.17.0.2 Bcast:1|inet6 addr: fd00::2/64 Scope:Global|inet6 fe80::1%en0 x"
    (tmp_path / "ifconfig").write_text(f"#!/bin/sh\necho '{lines}' | tr '|' '\\n'\n")
    (tmp_path / "ifconfig").chmod(0o755)
    for tool in ("awk", "tr", "sh"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    command = ["/bin/sh", "-c", f"{ADDRESSES}addresses"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.split() == ["address=172.17.0.2", "address=fd00::2", "address=fe80::1"]

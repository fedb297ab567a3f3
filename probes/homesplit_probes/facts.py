"""What a machine says of itself: each fact is an `sh` command and a pure parser of its output.

Nothing here needs Python on the box: the desk sends `script()` through `sh` and parses the
answer. A figure that the machine doesn't tell is None, never 0.
"""

from __future__ import annotations

import csv
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional

_NO_FIGURE = {"", "[n/a]", "n/a", "[not supported]", "not supported", "[unknown error]", "none"}
_MIB = 1 << 20


class Fact(NamedTuple):
    """A command for `sh` and the function that reads what it printed."""

    name: str
    command: str
    parse: Callable[[str], Any]


def number(text: str) -> Optional[float]:
    """A tool's figure; `[N/A]`, `[Not Supported]` and nothing at all are None."""
    text = text.strip()
    if text.lower() in _NO_FIGURE:
        return None
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found.group()) if found else None


def parse_system(text: str) -> Dict[str, Optional[str]]:
    """`uname -s`, `-r`, `-m`, then the name of the distribution."""
    lines = [line.strip() for line in text.splitlines()] + [""] * 4
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]*)"?', text, re.M)
    mac = re.search(r"^ProductVersion:\s*(\S+)", text, re.M)
    name = pretty.group(1) if pretty else "macOS " + mac.group(1) if mac else None
    return {
        "kernel": lines[0] or None,
        "release": lines[1] or None,
        "machine": lines[2] or None,
        "hostname": lines[3] or None,
        "name": name,
    }


def parse_cpu(text: str) -> Dict[str, Any]:
    """Model name and usable cores: /proc/cpuinfo or sysctl, `nproc`, a cgroup's quota."""
    names = r"^(?:model name|Model name|Model|Processor|machdep\.cpu\.brand_string)\s*:\s*(.+)$"
    model = re.search(names, text, re.M)
    cores = re.search(r"^cores=(\d+)", text, re.M)
    quota = re.search(r"^quota=(\d+) (\d+)", text, re.M)
    share = int(quota.group(1)) / int(quota.group(2)) if quota and int(quota.group(2)) else None
    return {
        "model": model.group(1).strip() if model else None,
        "cores": int(cores.group(1)) if cores else None,
        "quota_cores": share,
    }


def parse_memory(text: str) -> Dict[str, Optional[int]]:
    """Total and available bytes of /proc/meminfo, or of macOS's sysctl and vm_stat."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable|MemFree|SwapFree):\s+(\d+) kB", text, re.M))
    total = int(found["MemTotal"]) * 1024 if "MemTotal" in found else None
    free = found.get("MemAvailable", found.get("MemFree"))
    available = int(free) * 1024 if free is not None else None
    mac = re.search(r"^hw\.memsize: (\d+)", text, re.M)
    if mac:
        total, available = int(mac.group(1)), _mac_available(text)
    return {"total_bytes": total, "available_bytes": available}


def _mac_available(text: str) -> Optional[int]:
    page = re.search(r"page size of (\d+) bytes", text)
    counts = re.findall(r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)", text, re.M)
    return int(page.group(1)) * sum(map(int, counts)) if page and counts else None


NVIDIA_FIELDS = (
    "name",
    "memory.total",
    "memory.free",
    "driver_version",
    "power.draw",
    "temperature.gpu",
)


def parse_nvidia(text: str) -> List[Dict[str, Any]]:
    """GPUs of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; [N/A] is None."""
    gpus: List[Dict[str, Any]] = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(NVIDIA_FIELDS):
            continue
        values = [cell.strip() for cell in row]
        # Some Jetsons name 0 MiB where others say [N/A].
        total, free = number(values[1]) or None, number(values[2])
        free = free if total is not None else None
        driver = None if values[3].lower() in _NO_FIGURE else values[3]
        gpus.append(
            {
                "name": values[0] or "NVIDIA GPU",
                "memory_bytes": int(total * _MIB) if total is not None else None,
                "free_bytes": int(free * _MIB) if free is not None else None,
                "driver": driver,
                "power_w": number(values[4]),
                "temperature_c": number(values[5]),
            }
        )
    return gpus


def parse_amd(text: str) -> List[Dict[str, Any]]:
    """GPUs of `amd-smi static` and `amd-smi metric` in their plain form; N/A is None.

    A GPU of at most 2 GiB of its own beside more that it may map of main memory (GTT) is part
    of the processor: its own size says nothing of what it may use.
    """
    blocks: Dict[str, str] = {}
    parts = re.split(r"^GPU: (\d+)\s*$", text, flags=re.M)
    for index, block in zip(parts[1::2], parts[2::2]):
        blocks[index] = blocks.get(index, "") + block
    return [_amd_gpu(block) for block in blocks.values()]


def _amd_gpu(block: str) -> Dict[str, Any]:
    name = re.search(r"MARKET_NAME:[ \t]*(\S.*)$", block, re.M)
    driver = re.search(r"DRIVER:.*?VERSION:[ \t]*(\S+)", block, re.S)
    total = _amd_bytes(r"VRAM:\s.*?\bSIZE:", block)
    mapped = _amd_bytes(r"TOTAL_GTT:", block)
    shared = total is not None and total <= 2 << 30 and mapped is not None and mapped > total
    return {
        "name": name.group(1).strip() if name and _is_told(name.group(1)) else "AMD GPU",
        "memory_bytes": None if shared else total,
        "free_bytes": None if shared else _amd_bytes(r"FREE_VRAM:", block),
        "driver": driver.group(1) if driver and _is_told(driver.group(1)) else None,
        "power_w": parse_amd_power(block),
        "temperature_c": None,
    }


GPU_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


def parse_graphics(text: str) -> List[Dict[str, Optional[str]]]:
    """Graphics of `vendor|driver|name` lines, whatever tools their makers have; others left out."""
    found: List[Dict[str, Optional[str]]] = []
    for line in text.splitlines():
        vendor, driver, name = [*line.strip().split("|", 2), "", ""][:3]
        maker = GPU_MAKERS.get(vendor.lower())
        if maker is not None:
            shown = re.sub(r"\s*\(rev [0-9a-f]+\)$", "", name).strip()
            found.append(
                {"maker": maker, "name": shown or maker + " GPU", "driver": driver or None}
            )
    return found


def _is_told(text: str) -> bool:
    return text.strip().lower() not in _NO_FIGURE


def _amd_bytes(label: str, block: str) -> Optional[int]:
    """The size behind `label`, in MB unless it says GB (both are powers of two there)."""
    found = re.search(label + r"[ \t]*(\S+)(?:[ \t]+(MB|GB))?", block, re.S)
    size = number(found.group(1)) if found else None
    factor = 1 << 30 if found and found.group(2) == "GB" else _MIB
    return int(size * factor) if size is not None else None


def parse_amd_power(text: str) -> Optional[float]:
    """Watts of all GPUs of `amd-smi metric --power`; None when one of them tells none."""
    words = re.findall(r"^\s+(?:CURRENT_|AVERAGE_)?SOCKET_POWER:[ \t]*(\S+)", text, re.M)
    watts = [number(word) for word in words]
    known = [value for value in watts if value is not None]
    return sum(known) if known and len(known) == len(watts) else None


def parse_mac_power(text: str) -> Optional[float]:
    """Watts of `powermetrics`: CPU, GPU and ANE together, or an Intel Mac's package."""
    silicon = re.search(r"^Combined Power \(.*?\): *([\d.]+) *mW", text, re.M)
    if silicon:
        return float(silicon.group(1)) / 1000
    intel = re.search(r"derived package power \(.*?\): *([\d.]+) *W", text)
    return float(intel.group(1)) if intel else None


def parse_disk(text: str) -> Optional[int]:
    """Free bytes of the home folder's file system by `df -Pk`."""
    lines = text.strip().splitlines()
    fields = lines[-1].split() if lines else []
    return int(fields[3]) * 1024 if len(fields) >= 5 and fields[3].isdigit() else None


def parse_addresses(text: str) -> List[Dict[str, str]]:
    """Interface and address of `ip -o addr`, or of macOS's `ifconfig`; loopback left out."""
    found: List[Dict[str, str]] = []
    current = ""
    for line in text.splitlines():
        linux = re.match(r"\d+:\s+(\S+)\s+inet6?\s+([0-9A-Fa-f.:]+)", line)
        if linux:
            found.append({"interface": linux.group(1).split("@")[0], "address": linux.group(2)})
            continue
        head = re.match(r"(\S+): flags=", line)
        current = head.group(1) if head else current
        mac = re.match(r"\s+inet6? ([0-9A-Fa-f.:]+)", line)
        if mac and current:
            found.append({"interface": current, "address": mac.group(1)})
    return [a for a in found if a["interface"] not in ("lo", "lo0") and a["address"] != "127.0.0.1"]


def parse_interfaces(text: str) -> Dict[str, Dict[str, Any]]:
    """Label speed, MTU and kind of each interface, from `name|speed|mtu|kind|state` lines."""
    found: Dict[str, Dict[str, Any]] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        # A virtual interface states a speed that no wire stands for.
        speed = number(fields[1]) if fields[3] in ("", "wired", "wifi") else None
        mtu = number(fields[2])
        found[fields[0]] = {
            "label_bytes_per_s": speed * 1e6 / 8 if speed is not None and speed > 0 else None,
            "mtu": int(mtu) if mtu is not None else None,
            "kind": fields[3] or "wired",
            "state": fields[4] or None,
        }
    return found


def parse_rdma(text: str) -> List[str]:
    """RDMA devices of /sys/class/infiniband with the port's state and rate."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def parse_load(text: str) -> Optional[float]:
    """One-minute load average of /proc/loadavg or `sysctl -n vm.loadavg`."""
    return number(text.replace("{", " ").strip())


def parse_on_battery(text: str) -> Optional[bool]:
    """Whether it runs from its battery; None where there is no word of it."""
    if "Mains=0" in text or "Battery=Discharging" in text or "Battery Power" in text:
        return True
    if "Mains=1" in text or "AC Power" in text:
        return False
    return None


def parse_pythons(text: str) -> List[Dict[str, str]]:
    """Pythons of `path|version|library` lines, one with torch first, then one with numpy."""
    found: List[Dict[str, str]] = []
    for line in text.splitlines():
        path, version, library = [*line.strip().split("|"), "", ""][:3]
        if re.match(r"3\.(9|[1-9]\d)\b", version):
            found.append({"path": path, "version": version, "library": library})
    order = ["torch", "numpy"]
    return sorted(found, key=lambda p: order.index(p["library"]) if p["library"] in order else 9)


_INTERFACES = (
    "for d in /sys/class/net/*; do [ -e $d/mtu ] || continue; n=${d##*/}; k=wired; "
    "[ -d $d/wireless ] || [ -d $d/phy80211 ] && k=wifi; [ -d $d/bridge ] && k=bridge; "
    "[ -e $d/tun_flags ] && k=tunnel; [ -e $d/device ] || { [ $k = wired ] && k=virtual; }; "
    'echo "$n|$(cat $d/speed 2>/dev/null)|$(cat $d/mtu)|$k|$(cat $d/operstate)"; done'
)
_RDMA = (
    "for p in /sys/class/infiniband/*/ports/*; do [ -e $p/state ] && "
    'echo "$p $(cat $p/state) $(cat $p/rate)"; done'
)
_POWER = (
    "for s in /sys/class/power_supply/*; do [ -e $s/type ] || continue; "
    "case $(cat $s/type) in Mains) echo Mains=$(cat $s/online);; "
    "Battery) echo Battery=$(cat $s/status);; esac; done; pmset -g batt 2>/dev/null | head -1"
)
_PYTHONS = (
    'for p in "$HOME"/.local/share/homesplit/box/env/*/bin/python '
    "$(command -v python3) /usr/bin/python3 "
    "$(for v in 13 12 11 10 9; do command -v python3.$v; done); "
    'do [ -x "$p" ] || continue; '
    # On a Mac without developer tools this one only asks its user to install them.
    '[ "$p" = /usr/bin/python3 ] && [ "$(uname -s)" = Darwin ] && '
    "! xcode-select -p >/dev/null 2>&1 && continue; "
    'echo "$p|$("$p" -I -c \'import sys; from importlib.util import find_spec as f; '
    'print("%d.%d.%d" % sys.version_info[:3] + "|" + '
    '("torch" if f("torch") else "numpy" if f("numpy") else ""))\' 2>/dev/null)"; done'
)
_GRAPHICS = (
    "for d in /sys/class/drm/card[0-9]*/device; do [ -r $d/vendor ] || continue; "
    'echo "$(cat $d/vendor)|$(basename "$(readlink $d/driver)")|'
    '$(lspci -s "$(basename "$(readlink -f $d)")" | sed \'s/^[^ ]* [^:]*: //\')"; done'
)
_CPU = (
    "grep -m1 -E '^(model name|Model|Processor)' /proc/cpuinfo || "
    # An ARM core has a number there; lscpu knows its name.
    "lscpu | grep '^Model name' | paste -s -d+ - | sed 's/+Model name: */ + /g'; "
    "sysctl machdep.cpu.brand_string 2>/dev/null; "
    'echo "cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"; '
    "case $(cat /sys/fs/cgroup/cpu.max 2>/dev/null) in max*|'') ;; "
    '*) echo "quota=$(cat /sys/fs/cgroup/cpu.max)";; esac'
)

FACTS = (
    Fact(
        "system",
        "uname -s; uname -r; uname -m; hostname; cat /etc/os-release; sw_vers",
        parse_system,
    ),
    Fact("cpu", _CPU, parse_cpu),
    Fact(
        "memory",
        "cat /proc/meminfo 2>/dev/null || { sysctl hw.memsize; vm_stat; }",
        parse_memory,
    ),
    Fact(
        "nvidia",
        "nvidia-smi --query-gpu=" + ",".join(NVIDIA_FIELDS) + " --format=csv,noheader,nounits",
        parse_nvidia,
    ),
    Fact(
        "amd",
        "amd-smi static --asic --vram --driver; amd-smi metric --mem-usage --power",
        parse_amd,
    ),
    Fact("graphics", _GRAPHICS, parse_graphics),
    Fact("disk", 'df -Pk "$HOME"', parse_disk),
    Fact("addresses", "ip -o addr show 2>/dev/null || ifconfig", parse_addresses),
    Fact("interfaces", _INTERFACES, parse_interfaces),
    Fact("rdma", _RDMA, parse_rdma),
    Fact("load", "cat /proc/loadavg 2>/dev/null || sysctl -n vm.loadavg", parse_load),
    Fact("on_battery", _POWER, parse_on_battery),
    Fact("pythons", _PYTHONS, parse_pythons),
)


def script(separator: str) -> str:
    """One `sh` script that gathers all facts; `separator` must be random."""
    parts = ["PATH=$PATH:/usr/sbin:/sbin:/opt/rocm/bin; LC_ALL=C; export PATH LC_ALL"]
    for fact in FACTS:
        guarded = "{ %s\n} 2>/dev/null </dev/null" % fact.command
        parts.append("echo; echo '%s %s'; %s" % (separator, fact.name, guarded))
    return "\n".join(parts) + "\ntrue"


def parse(text: str, separator: str) -> Dict[str, Any]:
    """All facts by name from what `script` printed; a fact that can't be read is None."""
    outputs: Dict[str, str] = {}
    for part in text.split(separator + " ")[1:]:
        name, _, output = part.partition("\n")
        outputs[name.strip()] = output
    found: Dict[str, Any] = {}
    for fact in FACTS:
        try:
            found[fact.name] = fact.parse(outputs.get(fact.name, "").rstrip("\n"))
        except (ValueError, IndexError):
            found[fact.name] = None
    return found

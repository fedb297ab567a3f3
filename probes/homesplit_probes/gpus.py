"""GPUs by their makers' tools, and by the kernel or system where those are missing."""

from __future__ import annotations

import csv
import re
from typing import Any, Dict, List, Optional

from homesplit_probes.figures import MIB, is_told, number, size, told

NVIDIA_FIELDS = (
    "name",
    "memory.total",
    "memory.free",
    "driver_version",
    "power.draw",
    "temperature.gpu",
)
NVIDIA = (
    "nvidia_hangs=; within 8 nvidia-smi --query-gpu="
    + ",".join(NVIDIA_FIELDS)
    + " --format=csv,noheader,nounits; hung $? && nvidia_hangs=yes"
)
MIG = '[ -n "$nvidia_hangs" ] || within 4 nvidia-smi -L'
"""Asked behind `NVIDIA`: a tool that hangs is not asked twice."""
AMD = (
    "within 3 amd-smi static --asic --vram --driver; "
    "hung $? || within 3 amd-smi metric --mem-usage --power"
)
GRAPHICS = (
    "for d in /sys/class/drm/card[0-9]*/device; do [ -r $d/vendor ] || continue; "
    'echo "$(cat $d/vendor)|$(basename "$(readlink $d/driver)")|'
    '$(within 2 lspci -s "$(basename "$(readlink -f $d)")" | sed \'s/^[^ ]* [^:]*: //\')|'
    '$(cat $d/mem_info_vram_total)|$(cat $d/mem_info_vram_used)|$(cat $d/mem_info_gtt_total)"; '
    'done; [ "$(uname -s)" != Darwin ] || within 8 system_profiler SPDisplaysDataType'
)


def parse_nvidia(text: str) -> List[Dict[str, Any]]:
    """GPUs of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; [N/A] is None."""
    gpus: List[Dict[str, Any]] = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(NVIDIA_FIELDS) or row[0].strip() == NVIDIA_FIELDS[0]:
            continue
        # Some Jetsons name 0 MiB where others say [N/A].
        total, free = size(row[1]) or None, size(row[2])
        free = free if total is not None else None
        gpus.append(
            {
                "name": told(row[0]) or "NVIDIA GPU",
                "memory_bytes": int(total * MIB) if total is not None else None,
                "free_bytes": int(free * MIB) if free is not None else None,
                "driver": told(row[3]),
                "power_w": number(row[4]),
                "temperature_c": number(row[5]),
            }
        )
    return gpus


def parse_mig(text: str) -> Dict[str, str]:
    """By a GPU's number its first MIG instance, which is the one a program gets, by `-L`."""
    found: Dict[str, str] = {}
    gpu = ""
    for line in text.splitlines():
        head = re.match(r"GPU (\d+):", line)
        gpu = head.group(1) if head else gpu
        part = re.match(r"\s+MIG (\S+)\s+Device", line)
        if part and gpu:
            found.setdefault(gpu, part.group(1))
    return found


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
    shared = _is_shared(total, _amd_bytes(r"TOTAL_GTT:", block))
    return {
        "name": (told(name.group(1)) if name else None) or "AMD GPU",
        "memory_bytes": None if shared else total,
        "free_bytes": None if shared else _amd_bytes(r"FREE_VRAM:", block),
        "driver": told(driver.group(1)) if driver else None,
        "power_w": parse_amd_power(block),
        "temperature_c": None,
    }


def _is_shared(total: Optional[int], mapped: Optional[int]) -> bool:
    return total is not None and total <= 2 << 30 and mapped is not None and mapped > total


def _amd_bytes(label: str, block: str) -> Optional[int]:
    """The size behind `label`, in MB unless it says GB (both are powers of two there)."""
    found = re.search(label + r"[ \t]*(\S+)(?:[ \t]+(MB|GB))?", block, re.S)
    value = size(found.group(1)) if found else None
    factor = 1 << 30 if found and found.group(2) == "GB" else MIB
    return int(value * factor) if value is not None else None


def parse_amd_power(text: str) -> Optional[float]:
    """Watts of all GPUs of `amd-smi metric --power`; None when one of them tells none."""
    words = re.findall(r"^[ \t]+(?:CURRENT_|AVERAGE_)?SOCKET_POWER:[ \t]*(\S+)", text, re.M)
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


MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x106b": "Apple"}


def parse_graphics(text: str) -> List[Dict[str, Any]]:
    """Graphics of `vendor|driver|name|own bytes|used|mapped` lines, or of macOS's system_profiler.

    Whatever tools their makers have; other makers' are left out.
    """
    found: List[Dict[str, Any]] = []
    for line in text.splitlines():
        vendor, driver, name, total, used, mapped = [*line.strip().split("|", 5), *[""] * 6][:6]
        maker = MAKERS.get(vendor.lower())
        if maker is None:
            continue
        shown = re.sub(r"\s*\(rev [0-9a-f]+\)$", "", name).strip()
        own, taken, main = [None if v is None else int(v) for v in map(size, (total, used, mapped))]
        own = None if _is_shared(own, main) or not own else own
        found.append(
            {
                "maker": maker,
                "name": shown or maker + " GPU",
                "driver": driver or None,
                "memory_bytes": own,
                "free_bytes": None if own is None or taken is None else max(0, own - taken),
            }
        )
    return found + _mac_graphics(text)


def _mac_graphics(text: str) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    for block in re.split(r"^[ \t]*Chipset Model:", text, flags=re.M)[1:]:
        name = block.split("\n", 1)[0].strip()
        vendor = re.search(r"^[ \t]*Vendor:.*?\(?(0x[0-9a-fA-F]{4})\)?\s*$", block, re.M)
        maker = MAKERS.get(vendor.group(1).lower()) if vendor else None
        # An Apple chip's figure would be no more than what the system lends it, as "Dynamic" is.
        memory = re.search(r"^[ \t]*VRAM \(Total\):\s*(\d{1,9}) (MB|GB)", block, re.M)
        own = int(memory.group(1)) * (MIB if memory.group(2) == "MB" else 1 << 30) if memory else 0
        first = name.split(" ")[0]
        found.append(
            {
                "maker": maker or (first if first in MAKERS.values() else "GPU"),
                "name": name if is_told(name) else "GPU",
                "driver": None,
                "memory_bytes": own or None,
                "free_bytes": None,
            }
        )
    return found

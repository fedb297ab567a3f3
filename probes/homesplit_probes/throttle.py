"""Whether heat or a power limit slowed the machine while it was measured."""

from __future__ import annotations

import glob
import re
from typing import Dict, List

from homesplit_probes.said import said

_CPU_COUNTS = "/sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"
_GPU_FIELDS = (
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.sw_thermal_slowdown",
    "clocks_throttle_reasons.sw_power_cap",
)
_HEAT, _POWER = "heat slowed the %s while it was measured", "its power limit slowed the %s"


def counts() -> Dict[str, int]:
    """What this machine's counters and drivers say now; nothing where they say nothing."""
    found: Dict[str, int] = {}
    for path in glob.glob(_CPU_COUNTS):
        try:
            with open(path) as file:
                found["cpu"] = found.get("cpu", 0) + int(file.read())
        except (OSError, ValueError):
            continue
    query = ["nvidia-smi", "--query-gpu=" + ",".join(_GPU_FIELDS), "--format=csv,noheader"]
    found.update(parse_gpu(said(query)))
    found.update(parse_mac(said(["pmset", "-g", "therm"])))
    return found


def parse_gpu(text: str) -> Dict[str, int]:
    """1 for each reason that slows a GPU right now, from nvidia-smi's `Active` words."""
    heat = power = 0
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(_GPU_FIELDS):
            heat |= int("Active" in words[:2])
            power |= int(words[2] == "Active")
    return {"gpu_heat": heat, "gpu_power": power}


def parse_mac(text: str) -> Dict[str, int]:
    """`CPU_Speed_Limit` of `pmset -g therm`, in per cent."""
    found = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", text)
    return {"mac_limit": int(found.group(1))} if found else {}


def warnings(before: Dict[str, int], after: Dict[str, int]) -> List[str]:
    """A sentence for each thing that slowed the machine in between."""
    told: List[str] = []
    if after.get("cpu", 0) > before.get("cpu", after.get("cpu", 0)) or (
        after.get("mac_limit", 100) < 100
    ):
        told.append(_HEAT % "CPU")
    if after.get("gpu_heat"):
        told.append(_HEAT % "GPU")
    if after.get("gpu_power"):
        told.append(_POWER % "GPU")
    return told

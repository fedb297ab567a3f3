"""Whether heat or a power limit slowed the machine while it was measured."""

from __future__ import annotations

import glob
import re
from typing import Dict, List

from homesplit_probes.figures import is_told
from homesplit_probes.said import said

_CPU_COUNTS = "/sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"
_GPU_NAMES = ("clocks_event_reasons", "clocks_throttle_reasons")
"""What newer drivers call them, and older ones."""
_GPU_FIELDS = ("hw_thermal_slowdown", "sw_thermal_slowdown", "sw_power_cap")
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
    for name in _GPU_NAMES:
        fields = ",".join("%s.%s" % (name, field) for field in _GPU_FIELDS)
        answer = said(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"])
        told = parse_gpu(answer)
        found.update(told)
        # One that is not there, or hangs, need not be asked again.
        if told or not answer:
            break
    found.update(parse_mac(said(["pmset", "-g", "therm"])))
    return found


def parse_gpu(text: str) -> Dict[str, int]:
    """1 for each reason that slows a GPU right now, from nvidia-smi's `Active` words.

    Nothing where it answers otherwise.
    """
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    rows = [words for words in rows if len(words) == len(_GPU_FIELDS) and all(map(_is_word, words))]
    if not rows:
        return {}
    return {
        "gpu_heat": max(int("Active" in words[:2]) for words in rows),
        "gpu_power": max(int(words[2] == "Active") for words in rows),
    }


def _is_word(word: str) -> bool:
    return word in ("Active", "Not Active") or not is_told(word)


def parse_mac(text: str) -> Dict[str, int]:
    """`CPU_Speed_Limit` of `pmset -g therm`, in per cent."""
    found = re.search(r"CPU_Speed_Limit\s*=\s*(\d{1,9})\b", text)
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

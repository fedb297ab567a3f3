"""What a machine says of itself: each fact is an `sh` command and a pure parser of its output.

Nothing here needs Python on the box: the desk sends `script()` through `sh` and parses the
answer. A figure that the machine doesn't tell is None, never 0.
"""

from __future__ import annotations

import csv
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from homesplit_probes.figures import number, told
from homesplit_probes.gpus import (
    AMD,
    GRAPHICS,
    MIG,
    NVIDIA,
    parse_amd,
    parse_graphics,
    parse_mig,
    parse_nvidia,
)
from homesplit_probes.network import (
    ADDRESSES,
    INTERFACES,
    RDMA,
    parse_addresses,
    parse_interfaces,
    parse_rdma,
)

TOOLS = (
    "/usr/sbin:/sbin:/usr/local/bin:/opt/homebrew/bin:$HOME/.local/bin:/opt/rocm/bin:"
    "/usr/lib/wsl/lib"
)
"""Where tools lie that a login without a terminal doesn't find: macOS's, ROCm's, WSL's."""
WITHIN = r"""
held=$(mktemp -d 2>/dev/null) || held=
tidy() { trap '' HUP INT TERM PIPE; [ -z "$held" ] || rm -rf "$held"; }
trap tidy EXIT; trap 'tidy; exit 1' HUP INT TERM PIPE
begun_by() {
  cat "/proc/$1/task/$1/children" 2>/dev/null ||
    ps -A -o ppid= -o pid= 2>/dev/null | awk -v of="$1" '$1 == of { print $2 }'
}
# Ends a process and all that it began.
fell() {
  for each in $(begun_by "$1"); do fell "$each"; done
  kill -KILL "$1" 2>/dev/null
}
# On a busy box a turn lasts far longer than its sleep: the seconds are read, not counted. A time of
# day may be set meanwhile, so it is asked only where nothing tells the seconds since the start.
clock() {
  { read -r now _ </proc/uptime; } 2>/dev/null || now=$(date +%s)
  now=${now%%.*}
}
# Whether more than these seconds have gone by; a last second that has only begun does not count.
over() { clock; [ $((now - begun)) -gt "$1" ]; }
# Older ones of busybox know whole seconds only; what takes long is not asked often.
tick() {
  if [ $((now - begun)) -lt 3 ]; then sleep 0.1 2>/dev/null || sleep 1; else sleep 1; fi
}
within() {
  limit=$1; shift
  [ -n "$held" ] || { "$@"; return; }
  asked=$((asked + 1)); at="$held/answer.$job.$asked"; rm -f "$at.ended"
  { "$@" >"$at"; echo $? >"$at.ended"; } </dev/null >/dev/null 2>&1 &
  clock; begun=$now
  until [ -s "$at.ended" ]; do
    if over "$limit"; then
      fell $!; cat "$at"; echo "$job" >>"$held/silent"; return 124
    fi
    tick
  done
  cat "$at"; read -r ended <"$at.ended"; return "$ended"
}
# Whether it ended so, by its status.
hung() { case $1 in 124|137|143) ;; *) return 1;; esac; }
"""
"""`within SECONDS COMMAND`: a tool that hangs is given up, even in the kernel, where no signal ends
it: its answer goes to a file, so that nobody waits for it. Where nothing can be written all are
waited for."""


class Fact(NamedTuple):
    """A command for `sh` and the function that reads what it printed."""

    name: str
    command: str
    parse: Callable[[str], Any]


def parse_system(text: str) -> Dict[str, Optional[str]]:
    """`uname -s`, `-r`, `-m`, `-n`, then the name of the distribution."""
    lines = [line.strip() for line in text.splitlines()] + [""] * 4
    pretty = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]*)", text, re.M)
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
    """Model name and usable cores: /proc/cpuinfo or sysctl, `nproc`, control groups' quotas.

    `vnni`: whether it multiplies whole numbers 512 bits at a time.
    """
    names = r"^(?:model name|Model name|Model|Processor|machdep\.cpu\.brand_string)\s*:\s*(.+)$"
    models = [model for model in map(told, re.findall(names, text, re.M)) if model]
    cores = re.search(r"^cores=(\d{1,9})$", text, re.M)
    quotas = [
        int(quota) / int(period)
        for quota, period in re.findall(r"^quota=(\d{1,15}) (\d{1,15})$", text, re.M)
        if int(period)
    ]
    return {
        "model": models[0] if models else None,
        "cores": int(cores.group(1)) if cores else None,
        "quota_cores": min(quotas) if quotas else None,
        "vnni": re.search("^vnni=yes$", text, re.M) is not None,
    }


def parse_memory(text: str) -> Dict[str, Optional[int]]:
    """Total and available bytes of /proc/meminfo, or of macOS's sysctl and vm_stat.

    `limit=MOST USED CACHED` lines are what control groups allow; the tightest counts.
    `gpu_bytes`: what macOS lets its GPU use, where it tells.
    """
    found = dict(re.findall(r"^(MemTotal|MemAvailable|MemFree):\s+(\d{1,15}) kB", text, re.M))
    total = int(found["MemTotal"]) * 1024 if "MemTotal" in found else None
    free = found.get("MemAvailable", found.get("MemFree"))
    available = int(free) * 1024 if free is not None else None
    limit = None
    for most, used, cached in _limits(text):
        if total is None or most < total:
            limit = most if limit is None else min(limit, most)
            left = max(0, min(most, most - used + cached))
            available = left if available is None else min(available, left)
    mac = re.search(r"^hw\.memsize: (\d{1,18})\b", text, re.M)
    if mac:
        total, available = int(mac.group(1)), _mac_available(text)
    return {
        "total_bytes": total,
        "available_bytes": available,
        "limit_bytes": limit,
        "gpu_bytes": _mac_gpu(text, total) if mac else None,
    }


def _limits(text: str) -> List[List[int]]:
    lines = re.findall(r"^limit=(\d{1,19}) (\d{0,19}) (\d{0,19})$", text, re.M)
    return [[int(word or 0) for word in words] for words in lines]


def _mac_gpu(text: str, total: Optional[int]) -> Optional[int]:
    """What was set, else the system's own share: two thirds, three quarters from 36 GiB."""
    wired = re.search(r"^iogpu\.wired_limit_mb: (\d{1,9})\b", text, re.M)
    if wired and int(wired.group(1)):
        return int(wired.group(1)) << 20
    if not wired or total is None:
        return None
    return total * 3 // 4 if total >= 36 << 30 else total * 2 // 3


def _mac_available(text: str) -> Optional[int]:
    page = re.search(r"page size of (\d{1,9}) bytes", text)
    pages = r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d{1,15})\b"
    counts = re.findall(pages, text, re.M)
    return int(page.group(1)) * sum(map(int, counts)) if page and counts else None


def parse_disk(text: str) -> Optional[int]:
    """Free bytes of the home folder's file system by `df -Pk`; past its reserve there are none."""
    # A device's name or a mount's may hold blanks.
    found = re.search(r"\s\d+\s+\d+\s+(-?\d{1,15})\s+(?:\d+%|-)\s", text)
    return max(0, int(found.group(1))) * 1024 if found else None


def parse_load(text: str) -> Optional[float]:
    """One-minute load average of /proc/loadavg or `sysctl -n vm.loadavg`."""
    return number(text.replace("{", " ").strip())


def parse_on_battery(text: str) -> Optional[bool]:
    """Whether it runs from its battery; None where there is no word of it."""
    if "Mains=1" in text or "AC Power" in text:
        return False
    if "Battery=Discharging" in text or "Battery Power" in text:
        return True
    # Power by USB-C comes without a word from the mains.
    return False if re.search("Battery=(Charging|Full|Not charging)", text) else None


def parse_pythons(text: str) -> List[Dict[str, str]]:
    """Pythons of `path|version|library` lines, one with torch first, then one with numpy."""
    found: List[Dict[str, str]] = []
    for line in text.splitlines():
        path, version, library = [*line.strip().split("|"), "", ""][:3]
        if re.match(r"3\.(9|[1-9]\d)\b", version):
            found.append({"path": path, "version": version, "library": library})
    order = ["torch", "numpy"]
    return sorted(found, key=lambda p: order.index(p["library"]) if p["library"] in order else 9)


def parse_silent(text: str) -> List[str]:
    """Facts that gave no answer in time, each once."""
    known = [fact.name for fact in FACTS]
    return [name for name in known if name in text.split()]


_POWER = (
    # A mouse's battery is none of the machine's.
    "for s in /sys/class/power_supply/*; do [ -e $s/type ] || continue; "
    '[ "$(cat $s/scope 2>/dev/null)" = Device ] && continue; '
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
    # One that was built without these, or is only a part of one, runs no probe.
    'echo "$p|$("$p" -I -c \'import argparse, ctypes, json, statistics, sys, zlib; '
    "from importlib.util import find_spec as f; "
    'print("%d.%d.%d" % sys.version_info[:3] + "|" + '
    '("torch" if f("torch") else "numpy" if f("numpy") else ""))\' 2>/dev/null)"; done'
)
GROUPS = r"""
# Of the own control group and those around it: `groups FILE` prints the folders that have it, and
# `groups FILE CONTROLLER` those of the older kind, which has a tree for each controller.
groups() {
  # A container sees its own group where others have the tree's root.
  g=$(sed -n "s/^[0-9]*:\([^:]*,\)\{0,1\}$2\(,[^:]*\)\{0,1\}://p" /proc/self/cgroup)
  case $g in */..*) g=;; esac
  while :; do
    [ -r "/sys/fs/cgroup${2:+/$2}$g/$1" ] && echo "/sys/fs/cgroup${2:+/$2}$g"
    case $g in ''|/) break;; esac
    g=${g%/*}
  done
}
"""
_CPU = (
    "grep -m1 -E '^(model name|Model|Processor)' /proc/cpuinfo || "
    # An ARM core has a number there; lscpu knows its name.
    "lscpu | grep '^Model name' | paste -s -d+ - | sed 's/+Model name: */ + /g'; "
    "sysctl machdep.cpu.brand_string 2>/dev/null; "
    'echo "cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"; '
    'groups cpu.max | while read -r d; do echo "quota=$(cat "$d/cpu.max")"; done; '
    "groups cpu.cfs_quota_us cpu | while read -r d; do "
    'echo "quota=$(cat "$d/cpu.cfs_quota_us") $(cat "$d/cpu.cfs_period_us")"; done; '
    "grep -qw avx512_vnni /proc/cpuinfo && echo vnni=yes"
)
_MEMORY = (
    "cat /proc/meminfo 2>/dev/null || { sysctl hw.memsize iogpu.wired_limit_mb; vm_stat; }; "
    "cached() { awk '$1 ~ /^(total_)?(in)?active_file$/ {v[$1] = $2} END {"
    't = "total_inactive_file" in v ? "total_" : ""; '
    'printf "%.0f", v[t "inactive_file"] + v[t "active_file"]}\' "$1"; }; '
    # Beyond `memory.high` a group is slowed down until it gives back what a model never gives.
    "for most in memory.max memory.high; do groups $most | while read -r d; do "
    'echo "limit=$(cat "$d/$most") $(cat "$d/memory.current") $(cached "$d/memory.stat")"; '
    "done; done; groups memory.limit_in_bytes memory | while read -r d; do "
    'echo "limit=$(cat "$d/memory.limit_in_bytes") $(cat "$d/memory.usage_in_bytes") '
    '$(cached "$d/memory.stat")"; done'
)

FACTS = (
    Fact(
        "system",
        "uname -s; uname -r; uname -m; uname -n; cat /etc/os-release; sw_vers",
        parse_system,
    ),
    Fact("cpu", _CPU, parse_cpu),
    Fact("memory", _MEMORY, parse_memory),
    Fact("nvidia", NVIDIA, parse_nvidia),
    Fact("mig", MIG, parse_mig),
    Fact("amd", AMD, parse_amd),
    Fact("graphics", GRAPHICS, parse_graphics),
    Fact("disk", 'within 3 df -Pk "$HOME"', parse_disk),
    Fact("addresses", ADDRESSES, parse_addresses),
    Fact("interfaces", INTERFACES, parse_interfaces),
    Fact("rdma", RDMA, parse_rdma),
    Fact("load", "cat /proc/loadavg 2>/dev/null || sysctl -n vm.loadavg", parse_load),
    Fact("on_battery", _POWER, parse_on_battery),
    Fact("pythons", _PYTHONS, parse_pythons),
    Fact("silent", "echo $silent", parse_silent),
)
_BEHIND = {"mig": "nvidia"}
"""Asked when that one has answered: what hangs is not asked twice."""

_LONGEST = 1 << 17
"""Characters of one fact that are looked at: far more than any machine says."""


ANSWER_S = 20
"""For all facts, which are asked at once; of what has not answered then the box says so."""
_AT_ONCE = r"""
# Facts asked behind one another, apart from all others: what hangs holds up none of those.
begin() {
  job=$1
  (
    for fact; do "ask_$fact" >"$held/$fact"; : >"$held/$fact.told"; done
  ) </dev/null >/dev/null 2>&1 &
  for fact; do eval "pid_$fact=$!"; done
}
untold() {
  silent=
  for fact in $facts; do [ -e "$held/$fact.told" ] || silent="$silent $fact"; done
  [ -n "$silent" ]
}
answers() {
  clock; begun=$now
  while untold && ! over "$ANSWER_S"; do tick; done
  for fact in $silent; do eval "fell \$pid_$fact"; done
  silent="$silent $(cat "$held/silent" 2>/dev/null)"
}
"""


def script(separator: str) -> str:
    """One `sh` script that gathers all facts; `separator` must be random."""
    asked = [fact for fact in FACTS if fact.name != "silent"]
    chains = [[f.name] + [b for b in _BEHIND if _BEHIND[b] == f.name] for f in asked]
    begin = ["begin %s" % " ".join(chain) for chain in chains if chain[0] not in _BEHIND]
    told = 'echo; echo "%s $fact"; ' % separator
    return "\n".join(
        [
            "PATH=$PATH:%s; LC_ALL=C; export PATH LC_ALL; ANSWER_S=%d" % (TOOLS, ANSWER_S),
            *(WITHIN, GROUPS, _AT_ONCE),
            *("ask_%s() { %s\n}" % (fact.name, fact.command) for fact in FACTS),
            "facts='%s'" % " ".join(fact.name for fact in asked),
            'if [ -n "$held" ]; then\n%s\nanswers' % "\n".join(begin),
            'for fact in $facts; do %scat "$held/$fact"; done' % told,
            'else for fact in $facts; do %s"ask_$fact" 2>/dev/null </dev/null; done; fi' % told,
            "fact=silent; %sask_silent" % told,
        ]
    )


def parse(text: str, separator: str) -> Dict[str, Any]:
    """All facts by name from what `script` printed; a fact that can't be read is None."""
    outputs: Dict[str, str] = {}
    for part in text.split(separator + " ")[1:]:
        name, _, output = part.partition("\n")
        outputs[name.strip()] = output[:_LONGEST]
    found: Dict[str, Any] = {}
    for fact in FACTS:
        try:
            found[fact.name] = fact.parse(outputs.get(fact.name, "").rstrip("\n"))
        except (ValueError, IndexError, OverflowError, csv.Error):
            found[fact.name] = None
    return found

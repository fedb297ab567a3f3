"""From what the probes told to profiles: pure, with a warning where a figure is doubtful."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from homesplit.core.link import LatencyReading, LinkProfile, Way
from homesplit.core.machine import BUSY_WORDS, Accelerator, BoxProfile, not_used, silent_nvidia
from homesplit.core.reading import Reading, unknown
from homesplit.core.say import counted, listed, size
from homesplit.core.ways import interface, interface_of, ways_of

_DTYPES = ("fp32", "fp16", "bf16", "int8")
_BUSY_SHARE = 0.3
_BELOW_LABEL = 0.7
_NO_PYTHON = "there is no Python 3.9 or newer on this box; deployment brings one, then probe again"


def reading(raw: Any, *, taken_at: str | None = None) -> Reading:
    """A probe's figure as a Reading; anything malformed is unknown, with the reason."""
    if not isinstance(raw, dict):
        return unknown("the probe told nothing of it")
    try:
        found = msgspec.convert(raw, Reading, strict=False)
    except msgspec.ValidationError as error:
        return unknown(f"the probe's answer can't be read: {error}")
    if found.value is None:
        return unknown(found.why or "the probe gave no reason")
    return msgspec.structs.replace(found, taken_at=taken_at)


def device_of(facts: dict[str, Any]) -> str:
    """Where the engine would run by the machine's own word; AMD's and Intel's GPUs it can't use."""
    system = facts.get("system") or {}
    if facts.get("nvidia"):
        return "cuda"
    mac = system.get("kernel") == "Darwin" and system.get("machine") == "arm64"
    return "mps" if mac else "cpu"


def box_profile(
    name: str,
    host_key: str | None,
    facts: dict[str, Any],
    measured: dict[str, Any] | None,
    *,
    at: str,
) -> BoxProfile:
    """One box's profile from its facts and, when it has a Python, its measured rates."""
    device = device_of(facts)
    cpu, system = facts.get("cpu") or {}, facts.get("system") or {}
    memory, unified = _memory(facts, device, (measured or {}).get("gpu"))
    rates = _rates(device, measured, at)
    return BoxProfile(
        name=name,
        source="probe",
        host_key=host_key,
        probed_at=at,
        memory_bytes=memory,
        memory_total_bytes=_bytes(
            (facts.get("memory") or {}).get("total_bytes"), "the kernel's word on main memory", at
        ),
        memory_bytes_per_s=rates["read"],
        memory_copy_bytes_per_s=rates["copy"],
        flops_per_s={dtype: rates[dtype] for dtype in _DTYPES},
        unified=unified,
        device=device,
        cores=cpu.get("cores"),
        cores_allowed=cpu.get("quota_cores"),
        cpu=cpu.get("model"),
        vnni=cpu.get("vnni") is True,
        accelerators=tuple(_accelerators(facts)),
        os=system.get("name") or system.get("kernel"),
        python=_python(facts, measured),
        disk_free_bytes=_bytes(facts.get("disk"), "df of the home folder", at),
        rdma_devices=tuple(str(port) for port in facts.get("rdma") or ()),
        idle_w=_power(measured, "idle_w", at),
        load_w=_power(measured, "load_w", at),
        warnings=(*_warnings(facts), *_told(measured)),
    )


def _python(facts: dict[str, Any], measured: dict[str, Any] | None) -> str | None:
    if measured:
        return str(measured.get("python"))
    pythons = facts.get("pythons") or []
    return str(pythons[0]["version"]) if pythons else None


def _bytes(value: int | None, method: str, at: str) -> Reading:
    if value is None:
        return unknown(f"{method} told nothing")
    return Reading(value=float(value), unit="B", method=method, taken_at=at)


def _memory(facts: dict[str, Any], device: str, used: str | None) -> tuple[Reading, bool]:
    """What weights and KV may use, and whether GPU and CPU share it.

    Of several GPUs the engine has the one that the probe `used`, which CUDA puts first, not the
    driver.
    """
    known = facts.get("memory") or {}
    main, lent = known.get("available_bytes"), known.get("gpu_bytes")
    gpus = sorted(_nvidia(facts), key=lambda gpu: gpu["name"] != used)
    free, own = (gpus[0].get("free_bytes"), gpus[0].get("memory_bytes")) if gpus else (None, None)
    if device == "cuda" and free is not None:
        return _bytes(free, f"free memory of {gpus[0]['name']}", ""), False
    if device == "cuda" and own is not None:
        return _bytes(
            own, f"all memory of {gpus[0]['name']}; what is free it doesn't tell", ""
        ), False
    if device == "mps" and lent is not None and (main is None or lent < main):
        return _bytes(lent, "what macOS lets its GPU use of the unified memory", ""), True
    if device == "mps":
        return _bytes(main, "available unified memory", ""), True
    if device == "cuda":
        return _bytes(main, "available main memory (the GPU names none: unified)", ""), True
    return _bytes(main, "available main memory", ""), False


def _accelerators(facts: dict[str, Any]) -> list[Accelerator]:
    found: list[Accelerator] = []
    for gpu in [*_nvidia(facts), *(facts.get("amd") or [])]:
        none = "the driver names no memory of its own for it"
        found.append(_accelerator(gpu, "the driver", none))
    return found + [
        _accelerator(gpu, "the system", "the system tells only its name")
        for gpu in facts.get("graphics") or []
        if not facts.get(_TOOLS.get(gpu["maker"], ""))
    ]


def _accelerator(gpu: dict[str, Any], method: str, none: str) -> Accelerator:
    own = gpu.get("memory_bytes")
    told = unknown(none) if own is None else Reading(value=float(own), unit="B", method=method)
    return Accelerator(name=gpu["name"], memory_bytes=told, driver=gpu.get("driver"))


def _nvidia(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """NVIDIA's GPUs; one that is cut into instances (MIG) is what its first one is.

    A program gets no other. `3g.20gb` is one of 20 GB, of which the driver tells no free part.
    """
    parts = facts.get("mig") or {}
    gpus: list[dict[str, Any]] = []
    for number, gpu in enumerate(facts.get("nvidia") or []):
        part = parts.get(str(number))
        gigabytes = re.search(r"\.(\d{1,4})gb", part or "")
        if part and gigabytes:
            own = {"memory_bytes": int(gigabytes.group(1)) * 10**9, "free_bytes": None}
            gpu = {**gpu, **own, "name": f"{gpu['name']} MIG {part}"}
        gpus.append(gpu)
    return gpus


_TOOLS = {"NVIDIA": "nvidia", "AMD": "amd"}
"""By maker, the fact that tells more of a GPU than its name."""


def unused_gpus(facts: dict[str, Any]) -> tuple[str, ...]:
    """Makers of GPUs that are there and that the engine can't use."""
    graphics = facts.get("graphics") or []
    makers = {gpu["maker"] for gpu in graphics} & {"AMD", "Intel"}
    makers |= {"AMD"} if facts.get("amd") else set()
    nvidia = [gpu.get("driver") for gpu in graphics if gpu["maker"] == "NVIDIA"]
    makers |= {silent_nvidia(nvidia)} if nvidia and not facts.get("nvidia") else set()
    return tuple(sorted(makers))


def _rates(device: str, measured: dict[str, Any] | None, at: str) -> dict[str, Reading]:
    names = ("read", "copy", *_DTYPES)
    if measured is None:
        return {name: unknown(_NO_PYTHON) for name in names}
    if measured.get("device") != device:
        why = (
            f"the model would run on {device}, but no torch for it is on this box yet; "
            "deployment brings it, then probe again"
        )
        return {name: unknown(why) for name in names}
    memory, flops = measured.get("memory") or {}, measured.get("flops_per_s") or {}
    raw = {**{n: memory.get(n) for n in ("read", "copy")}, **{d: flops.get(d) for d in _DTYPES}}
    return {name: reading(value, taken_at=at) for name, value in raw.items()}


def _power(measured: dict[str, Any] | None, key: str, at: str) -> Reading:
    return unknown(_NO_PYTHON) if measured is None else reading(measured.get(key), taken_at=at)


def _warnings(facts: dict[str, Any]) -> list[str]:
    told: list[str] = []
    if device_of(facts) == "cpu":
        told += [not_used(maker) for maker in unused_gpus(facts)]
    load, cores = facts.get("load"), (facts.get("cpu") or {}).get("cores") or 1
    if load is not None and load > _BUSY_SHARE * cores:
        told.append(f"{BUSY_WORDS} (load {load:.1f} on {counted(cores, 'core')})")
    if facts.get("on_battery"):
        told.append("the box ran from its battery when it was measured")
    quota = (facts.get("cpu") or {}).get("quota_cores")
    if quota is not None and quota < cores:
        told.append(f"a quota lets it use {quota:g} of {cores} cores")
    limit = (facts.get("memory") or {}).get("limit_bytes")
    gpus = [gpu["name"] for gpu in facts.get("nvidia") or []]
    if len(gpus) > 1:
        told.append(f"the engine uses one of its {len(gpus)} NVIDIA GPUs ({', '.join(gpus)})")
    if limit is not None:
        told.append(f"a limit lets it use {size(limit)} of the machine's memory")
    silent = [_SILENT[name] for name in facts.get("silent") or [] if name in _SILENT]
    if silent:
        told.append(
            f"it gave no answer in time about {listed(silent)}: it is very busy, or something "
            "hangs there (a driver, a disk, a network drive), and this is unknown of it"
        )
    return told


_SILENT = {
    **{"system": "its system", "cpu": "its processor", "memory": "its memory"},
    **{"nvidia": "its NVIDIA GPU", "mig": "parts of its GPU", "amd": "its AMD GPU"},
    **{"graphics": "its graphics cards", "disk": "free space", "pythons": "its Pythons"},
    **{"addresses": "its addresses", "interfaces": "its interfaces", "rdma": "RDMA"},
    **{"load": "its load", "on_battery": "its battery"},
}
"""Facts that may get no answer, in words."""


def _told(measured: dict[str, Any] | None) -> list[str]:
    """What the probe itself warned of."""
    return [str(word) for word in (measured or {}).get("warnings") or []]


def link_profile(
    a: str,
    b: str,
    facts_a: dict[str, Any],
    facts_b: dict[str, Any],
    answer: dict[str, Any],
    *,
    at: str,
) -> LinkProfile:
    """The link as `a` (which drove the probe) and `b` (which listened) saw it."""
    if answer.get("why"):
        return unmeasured_link(a, b, str(answer["why"]), ways=ways_of(answer, facts_a, facts_b))
    near = answer.get("interface") or interface_of(facts_a, answer.get("local"))
    far = answer.get("peer_interface") or interface_of(facts_b, answer.get("peer"))
    told_a, told_b = interface(facts_a, near), interface(facts_b, far)
    told_labels = [told.get("label_bytes_per_s") for told in (told_a, told_b)]
    labels = [float(rate) for rate in told_labels if rate]
    label = min(labels) if labels else None
    figures = {name: reading(answer.get(name), taken_at=at) for name in _FIGURES}
    latency = answer.get("round_trip") or {}
    return LinkProfile(
        a=a,
        b=b,
        source="probe",
        a_to_b=figures["out_1"],
        b_to_a=figures["in_1"],
        streams_a_to_b=figures["out_4"],
        streams_b_to_a=figures["in_4"],
        zmq_a_to_b=figures["zmq_out"],
        zmq_b_to_a=figures["zmq_in"],
        encrypted_a_to_b=figures["sealed_out"],
        encrypted_b_to_a=figures["sealed_in"],
        busy_a_to_b=figures["out_busy"],
        busy_b_to_a=figures["in_busy"],
        latency_s=LatencyReading(
            p50=reading(latency.get("p50"), taken_at=at),
            p99=reading(latency.get("p99"), taken_at=at),
        ),
        label_bytes_per_s=label,
        interface_a=near,
        interface_b=far,
        address_a=answer.get("local"),
        address_b=answer.get("peer"),
        mtu_a=told_a.get("mtu"),
        mtu_b=told_b.get("mtu"),
        kind_a=told_a.get("kind"),
        kind_b=told_b.get("kind"),
        ways=ways_of(answer, facts_a, facts_b),
        probed_at=at,
        warnings=tuple(_link_warnings(figures, label, (told_a, told_b), (facts_a, facts_b))),
    )


_FIGURES = (
    *("out_1", "in_1", "out_4", "in_4", "out_busy", "in_busy"),
    *("zmq_out", "zmq_in", "sealed_out", "sealed_in"),
)
_BUSY_LOSS = 0.85


def unmeasured_link(
    a: str, b: str, why: str, *, loopback: bool = False, ways: tuple[Way, ...] = ()
) -> LinkProfile:
    """A link of which every figure is unknown for one reason."""
    none = unknown(why)
    return LinkProfile(
        a=a,
        b=b,
        source="probe",
        a_to_b=none,
        b_to_a=none,
        streams_a_to_b=none,
        streams_b_to_a=none,
        zmq_a_to_b=none,
        zmq_b_to_a=none,
        encrypted_a_to_b=none,
        encrypted_b_to_a=none,
        busy_a_to_b=none,
        busy_b_to_a=none,
        latency_s=LatencyReading(p50=none, p99=none),
        loopback=loopback,
        ways=ways,
        warnings=(why,),
    )


def _link_warnings(
    figures: dict[str, Reading],
    label: float | None,
    told: Sequence[dict[str, Any]],
    facts: Sequence[dict[str, Any]],
) -> list[str]:
    warnings: list[str] = []
    best = max((f.value for f in figures.values() if f.value is not None), default=None)
    if label is not None and best is not None and best < _BELOW_LABEL * label:
        share = 100 * best / label
        warnings.append(f"the link carries {share:.0f} % of what its interface's label says")
    if any(t.get("kind") == "wifi" for t in told):
        warnings.append("the bytes went over Wi-Fi: the rate will wander")
    single, several = figures["out_1"].value, figures["out_4"].value
    if single and several and several > 1.15 * single:
        warnings.append("one stream does not fill the link: four carry noticeably more")
    busy = figures["out_busy"].value
    if single and busy and busy < _BUSY_LOSS * single:
        warnings.append(
            f"while both boxes work the link carries {100 * busy / single:.0f} % of what it does "
            "at rest"
        )
    if any(f.get("rdma") for f in facts):
        warnings.append("an RDMA device is there, but plain TCP was used and measured")
    return warnings

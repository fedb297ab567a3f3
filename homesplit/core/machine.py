"""What is known of one box: who it is, how it is reached, what it can do."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from homesplit.core.reading import Reading, unknown

BUSY_WORDS = "the box was busy when it was measured"
"""How the warning of a probe that was disturbed begins."""


UNUSED_WORDS = "GPU is not used"
"""In the warning of a box whose GPU the engine can't use."""


NO_DRIVER = "NVIDIA without its driver"
"""Among makers' names: a GPU that the kernel runs by another driver than NVIDIA's, or by none."""


def silent_nvidia(drivers: Iterable[str | None]) -> str:
    """What stands for NVIDIA's GPUs that answer nobody, by the kernel drivers that run them."""
    return "NVIDIA" if any((driver or "").startswith("nvidia") for driver in drivers) else NO_DRIVER


FOREIGN_GPUS = ("rocm", "xpu")
"""Devices of profiles that the engine can't use."""


def not_used(maker: str) -> str:
    """That a box's GPU of this maker does nothing for the engine."""
    if maker == NO_DRIVER:
        return (
            f"its NVIDIA {UNUSED_WORDS}: NVIDIA's driver does not run it (install that; if it is "
            "installed, restart the box); the engine runs on the processor"
        )
    if maker == "NVIDIA":
        return (
            f"its NVIDIA {UNUSED_WORDS}: its driver does not answer (try `nvidia-smi` there; a "
            "driver that was updated needs a restart); the engine runs on the processor"
        )
    return (
        f"its {maker} {UNUSED_WORDS}: the engine runs on NVIDIA and Apple GPUs and on processors, "
        "here on the processor"
    )


def _unmeasured() -> Reading:
    return unknown("not measured yet")


class Address(Struct, frozen=True, kw_only=True):
    """One way to a box. `why` says in words why it is not usable, None when it is."""

    address: str
    port: int = 22
    interface: str | None = None
    usable: bool = True
    why: str | None = None


class FoundBox(Struct, frozen=True, kw_only=True):
    """A machine that discovery saw, listed once however many names and addresses it has."""

    name: str
    host_key: str | None = None
    """SHA256 fingerprint of the SSH host key, the machine's identity; None when no SSH answered."""
    addresses: tuple[Address, ...] = ()
    found_by: tuple[str, ...] = ()
    this_machine: bool = False
    usable: bool = True
    why: str | None = None
    trusted: bool = False
    """Whether the host key stands in a known_hosts file that we read."""
    user: str | None = None


class Accelerator(Struct, frozen=True, kw_only=True):
    """One GPU as its driver names it."""

    name: str
    memory_bytes: Reading = field(default_factory=_unmeasured)
    driver: str | None = None


class BoxProfile(Struct, frozen=True, kw_only=True):
    """One box's abilities, probed or from a hardware profile; the plan's input."""

    name: str
    source: str
    """`probe`, `profile: <file>` or `typed`; `calibrated` once the engine was timed on it."""
    host_key: str | None = None
    probed_at: str | None = None
    memory_bytes: Reading = field(default_factory=_unmeasured)
    """What weights and KV may use: GPU memory, or main memory on CPU and unified machines."""
    memory_total_bytes: Reading = field(default_factory=_unmeasured)
    """All main memory of the machine."""
    memory_bytes_per_s: Reading = field(default_factory=_unmeasured)
    """Read bandwidth beyond all caches on the device that runs the model."""
    memory_copy_bytes_per_s: Reading = field(default_factory=_unmeasured)
    """Bytes read plus bytes written per second by a plain copy."""
    flops_per_s: dict[str, Reading] = field(default_factory=dict[str, Reading])
    """Dense matrix-multiply rate by dtype name (`fp32`, `fp16`, `bf16`, `int8`)."""
    unified: bool = False
    device: str = "cpu"
    """Where the model would run: `cpu`, `cuda` or `mps`; a profile may name a GPU that this engine
    can't use, `rocm` or `xpu`."""
    cores: int | None = None
    cores_allowed: float | None = None
    """What a quota leaves of the cores, None without one."""
    cpu: str | None = None
    vnni: bool = False
    """Whether its processor was seen to multiply whole numbers quicker than floats (VNNI of
    AVX-512), which the engine then does with int8 weights."""
    accelerators: tuple[Accelerator, ...] = ()
    os: str | None = None
    python: str | None = None
    disk_free_bytes: Reading = field(default_factory=_unmeasured)
    rdma_devices: tuple[str, ...] = ()
    """Ports of RDMA devices with state and rate; named, not used: all bytes go by TCP."""
    idle_w: Reading = field(default_factory=_unmeasured)
    load_w: Reading = field(default_factory=_unmeasured)
    price: float | None = None
    warnings: tuple[str, ...] = ()

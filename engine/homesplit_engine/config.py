"""The settings files of a worker and of a router; refused with a sentence when wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from homesplit_engine.records import ModeSetting

Port = Annotated[int, Meta(ge=0, le=65_535)]
"""0 takes a free one."""
Count = Annotated[int, Meta(ge=1, lt=2**31)]
"""A C int: torch takes the number of its threads as one."""
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
"""Of nought or less every wait would end before it began, and a loop that waits would not wait;
of much more than 30 years a wait is an error, as Python's locks wait for 292 years at most."""


class ConfigError(Exception):
    """A settings or key file can't be used; the message says which and why."""


class Keys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CURVE keys of one process (Z85 text), made afresh for each deployment; file mode 0600.

    `allowed` maps a peer's name (`router` or a box) to its public key: no other key is let in.
    """

    name: str
    public: str
    secret: str
    allowed: dict[str, str]


class WorkerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything one worker process is told."""

    box: str
    model_dir: str
    keys_file: str
    ready_file: str
    """Written (JSON of `WorkerEndpoints`) once the sockets listen and the model is loaded."""
    bind_host: str = "127.0.0.1"
    control_port: Port = 0
    kv_bind_host: str | None = None
    """The interface that carries the hand-off; None is `bind_host`."""
    kv_port: Port = 0
    device: str = "cpu"
    dtype: str = "float32"
    weights: str = "same"
    """`same` as `dtype`, or `int8`: linear layers quantised (CPU, float32)."""
    cuda_graphs: bool = True
    """Record decode steps where the device is CUDA; elsewhere it means nothing."""
    threads: Count | None = None
    cpus: tuple[int, ...] | None = None
    """Cores to pin to; None leaves it to the system."""
    kv_blocks: Count | None = None
    """KV blocks to take; None takes `memory_fraction` of what is free."""
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    block_tokens: Count = 16
    max_batch_requests: Count = 64
    max_step_tokens: Count = 8192
    max_waiting: Count = 256
    prefix_cache: bool = True
    parent_pid: int | None = None
    """End when this process is gone (local demo); None lives on its own."""


class WorkerAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the router reaches one worker, and how its peer reaches its hand-off socket."""

    box: str
    control_endpoint: str
    kv_endpoint: str
    public_key: str


class WorkerEndpoints(Struct, frozen=True, kw_only=True):
    """What a worker writes into its ready file."""

    box: str
    pid: int
    control_endpoint: str
    kv_endpoint: str
    public_key: str
    fingerprint: str

    @property
    def address(self) -> WorkerAddress:
        """What others need of it."""
        return WorkerAddress(
            box=self.box,
            control_endpoint=self.control_endpoint,
            kv_endpoint=self.kv_endpoint,
            public_key=self.public_key,
        )


class RouterConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the router process is told."""

    model_dir: str
    model_name: str
    keys_file: str
    ready_file: str
    """Written (JSON of `RouterEndpoints`) once the HTTP door listens."""
    workers: tuple[WorkerAddress, ...]
    http_host: str = "127.0.0.1"
    http_port: Port = 0
    api_key_file: str | None = None
    setting: ModeSetting = field(default_factory=ModeSetting)
    max_waiting: Count = 512
    request_deadline_s: Seconds = 600.0
    detection_s: Seconds = 2.0
    """A worker that has been silent this long counts as lost."""
    ttft_target_s: Seconds | None = 1.0
    tpot_target_s: Seconds | None = 0.1
    first_token_deadline_s: Seconds | None = 60.0
    """A request that would wait longer than this for its first token behind others is refused
    at once; a client may ask for less by `x-first-token-deadline-s`. None refuses none.
    Whatever it is, a queue that stands above the TTFT target is cut to that target."""
    link_bytes_per_s: Annotated[float, Meta(gt=0)] | None = None
    """The boxes' measured payload rate, either way; None lets `auto` learn it."""
    loopback: bool = False
    """True when all workers are on this machine: measures no network."""
    parent_pid: int | None = None


class RouterEndpoints(Struct, frozen=True, kw_only=True):
    """What a router writes into its ready file."""

    pid: int
    url: str


_T = TypeVar("_T")


def write_ready(path: Path, endpoints: WorkerEndpoints | RouterEndpoints) -> None:
    """Tell whoever started us where we listen; the file appears whole or not at all.

    Raises ConfigError when it can't be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(msgspec.json.encode(endpoints))
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from error


_P = TypeVar("_P", WorkerConfig, RouterConfig)


def living_with(config: _P, parent_pid: int | None) -> _P:
    """The settings with the process named at the start to live with, where one was named."""
    return config if parent_pid is None else msgspec.structs.replace(config, parent_pid=parent_pid)


def load(path: Path, kind: type[_T]) -> _T:
    """Read a JSON settings file of type `kind`; raises ConfigError naming the file and field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from error

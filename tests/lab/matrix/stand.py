"""A deployment in a lab: two workers and a router as supervised processes on two boxes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
from homesplit_engine.config import Keys, RouterConfig, WorkerAddress, WorkerConfig
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.records import ModeSetting

from tests.engine.router_kit import make_tokenizer
from tests.engine.tiny import make_model
from tests.lab.api import RunningLab
from tests.lab.errors import LabError
from tests.lab.inside import exec_command
from tests.lab.kernel import mount
from tests.lab.matrix.cells import OTHER_BOX, ROUTER_BOX
from tests.lab.matrix.traffic import Traffic, wait_until
from tests.lab.matrix.waits import Waits
from tests.lab.matrix.wire import WireSettings
from tests.lab.processes import netns_path
from tests.lab.records import DESK
from tests.lab.store import CHECKOUT

BOXES = (ROUTER_BOX, OTHER_BOX)
CONTROL_PORT, KV_PORT, WIRE_PORT, HTTP_PORT = 7101, 7102, 7103, 7100
CONTEXT = 2048
BLOCKS = 320
LINK_MBIT = 20
"""The KV of a cell's target takes twice as long as its prompt takes to be read, and more."""
CHUNK_TOKENS = 64
DETECTION_S = 2.0
DEADLINE_S = 120.0
START_S = 600.0
DISK_BYTES = 8 * 2**20
MODEL: dict[str, Any] = {
    "vocab_size": 262,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": CONTEXT,
    # As lively as the tiny one of the other tests: its weights are scaled for a width of 32.
    "initializer_range": 0.007,
}
"""8 KiB of KV a token."""
SETTINGS = {
    "colocated": ModeSetting(mode="colocated", chunk_tokens=CHUNK_TOKENS, decode_box=OTHER_BOX),
    "replica": ModeSetting(mode="replica", chunk_tokens=CHUNK_TOKENS),
    "split": ModeSetting(
        mode="split", chunk_tokens=CHUNK_TOKENS, prefill_box=ROUTER_BOX, decode_box=OTHER_BOX
    ),
    "auto": ModeSetting(mode="auto", chunk_tokens=CHUNK_TOKENS),
}


class _Pid(msgspec.Struct):
    pid: int


class Stand:
    """Starts, finds and ends the processes."""

    def __init__(self, lab: RunningLab, folder: Path, *, wire: bool) -> None:
        self.lab = lab
        self.folder = folder
        self.order_file = folder / "order"
        self._wire = wire
        self._keys: dict[str, Keys] = make_keys(BOXES)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        address = lab.address(ROUTER_BOX)
        netns = netns_path(lab.lab.node(DESK).netns)
        self._api_key = secrets.token_urlsafe(32)
        self.traffic = Traffic(str(netns), f"http://{address}:{HTTP_PORT}", self._api_key)
        names = (*BOXES, "router")
        self.waits = Waits(lambda: {name: self.pid(name) for name in names} | {"": os.getpid()})

    @property
    def clock_file(self) -> Path:
        """Seconds by which the processes' wall clock is shifted."""
        return self.folder / "clock"

    @property
    def _key_file(self) -> Path:
        return self.folder / "api.key"

    def start(self) -> None:
        """Write every settings file and start everything; raises LabError."""
        self.clock_file.write_bytes((0).to_bytes(8, "little", signed=True))
        for name, keys in self._keys.items():
            write_keys(self.folder / f"{name}.keys", keys)
        self._key_file.touch(mode=0o600)
        self._key_file.write_text(self._api_key)
        for box in BOXES:
            self._write(box, self._worker(box))
            self.start_worker(box)
        if self._wire:
            self._start_wire()
        self._write("router", self._router())
        self._spawn(ROUTER_BOX, "router", "router")
        self.traffic.start()
        if not wait_until(self.is_whole, START_S, 0.1):
            raise LabError(f"the deployment did not come up: {self.last_words()}")
        self.waits.start()

    def start_worker(self, box: str) -> None:
        """Start a box's worker under its supervisor."""
        self._spawn(box, box, "worker")

    def start_again(self, name: str) -> None:
        """Start a worker or the router whose supervisor is gone."""
        self._running.pop(name).wait(15)
        self._spawn(ROUTER_BOX if name == "router" else name, name, _role(name))

    def start_router_anew(self) -> None:
        """End the router in good order and start another, which knows no rates; raises LabError."""
        process, since = self._running.pop("router"), len(self.traffic.events)
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        self._spawn(ROUTER_BOX, "router", "router")

        def seen() -> bool:
            return len(self.traffic.events) > since and self.is_whole() and self.traffic.healthy()

        if not wait_until(seen, START_S, 0.05):
            raise LabError(f"the router did not come up again: {self.last_words()}")

    def stop(self) -> None:
        """End everything that was started."""
        self.waits.stop()
        self.traffic.stop()
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def pid(self, name: str) -> int | None:
        """The process id of `router` or of a box's worker; None while it is not ready."""
        try:
            return msgspec.json.decode((self.folder / f"{name}.ready").read_bytes(), type=_Pid).pid
        except (OSError, msgspec.MsgspecError):
            return None

    def is_whole(self) -> bool:
        """Whether the router uses both boxes."""
        status = self.traffic.status()
        return status is not None and all(worker.usable for worker in status.workers)

    def held(self) -> str | None:
        """What requests or blocks are still held anywhere; None when nothing is."""
        status = self.traffic.status()
        if status is None:
            return "the router does not answer"
        held = [f"router {status.requests}"] if any_of(status.requests) else []
        for worker in status.workers:
            now = worker.status
            if now is None:
                held.append(f"{worker.box} has not told")
            elif now.blocks_free != now.blocks_total or now.running + now.waiting + now.reserved:
                held.append(f"{worker.box} {now}")
        return "; ".join(held) or None

    def last_words(self) -> str:
        """The end of each log."""
        logs = sorted(self.folder.glob("*.log"))
        return " | ".join(f"{log.name}: {log.read_text()[-300:]}" for log in logs)

    # -------------------------------------------------------------- settings

    def _worker(self, box: str) -> WorkerConfig:
        return WorkerConfig(
            box=box,
            model_dir=str(self.folder / "model"),
            keys_file=str(self.folder / f"{box}.keys"),
            ready_file=str(self.folder / f"{box}.ready"),
            bind_host=self.lab.address(box),
            control_port=CONTROL_PORT,
            kv_port=KV_PORT,
            threads=1,
            kv_blocks=BLOCKS,
        )

    def _router(self) -> RouterConfig:
        return RouterConfig(
            model_dir=str(self.folder / "model"),
            model_name="tiny",
            keys_file=str(self.folder / "router.keys"),
            ready_file=str(self.folder / "router.ready"),
            workers=tuple(self._address(box) for box in BOXES),
            http_host=self.lab.address(ROUTER_BOX),
            http_port=HTTP_PORT,
            api_key_file=str(self._key_file),
            detection_s=DETECTION_S,
            request_deadline_s=DEADLINE_S,
            first_token_deadline_s=None,
        )

    def _address(self, box: str) -> WorkerAddress:
        host = self.lab.address(box)
        port = WIRE_PORT if self._wire and box == OTHER_BOX else KV_PORT
        return WorkerAddress(
            box=box,
            control_endpoint=f"tcp://{host}:{CONTROL_PORT}",
            kv_endpoint=f"tcp://{host}:{port}",
            public_key=self._keys[box].public,
        )

    def _start_wire(self) -> None:
        host = self.lab.address(OTHER_BOX)
        settings = WireSettings(
            listen=f"tcp://{host}:{WIRE_PORT}",
            reach=f"tcp://{host}:{KV_PORT}",
            order_file=str(self.order_file),
        )
        self._write("wire", settings)
        command = [sys.executable, "-m", "tests.lab.matrix.wire", str(self.folder / "wire.json")]
        self._spawn_command(OTHER_BOX, "wire", command)

    def _write(self, name: str, settings: msgspec.Struct) -> None:
        (self.folder / f"{name}.json").write_bytes(msgspec.json.encode(settings))

    def _spawn(self, box: str, name: str, role: str) -> None:
        command = [sys.executable, "-m", "homesplit_engine", role]
        command += ["--config", str(self.folder / f"{name}.json"), "--supervised"]
        self._spawn_command(box, name, command)

    def _spawn_command(self, box: str, name: str, command: list[str]) -> None:
        clock = self.folder.parent / "clock.so"
        environment = {**os.environ, "HOMELAB_CLOCK": str(self.clock_file)}
        if clock.exists():
            environment["LD_PRELOAD"] = str(clock)
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*exec_command(self.lab.lab, box, "--host-fs"), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=CHECKOUT,
                env=environment,
            )


def _role(name: str) -> str:
    return "router" if name == "router" else "worker"


def end_in_good_order_when_told() -> None:
    """On SIGTERM or SIGINT leave every `with`: processes, mounts and namespaces go."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def any_of(counts: object) -> bool:
    """Whether any number of a record is not nought."""
    return any(msgspec.structs.astuple(counts))  # type: ignore[arg-type]


@contextlib.contextmanager
def standing(lab: RunningLab, folder: Path, *, wire: bool) -> Generator[Stand]:
    """A deployment with a small disk of its own, ended and unmounted whatever happens."""
    _make_parts(folder)
    place = folder / ("wired" if wire else "plain")
    place.mkdir(exist_ok=True)
    mount("tmpfs", place, "tmpfs", 0, f"size={DISK_BYTES},mode=700")
    stand = Stand(lab, place, wire=wire)
    try:
        (place / "model").symlink_to(folder / "model")
        stand.start()
        yield stand
    finally:
        stand.stop()
        for log in place.glob("*.log"):
            shutil.copy(log, folder / f"{place.name}-{log.name}")
        for _ in range(20):
            if subprocess.run(["umount", str(place)], capture_output=True).returncode == 0:
                break
            time.sleep(0.2)


def _make_parts(folder: Path) -> None:
    """The model, and the library that shifts clocks where there is a compiler."""
    if not (folder / "model/tokenizer.json").exists():
        make_model(folder / "model", "llama", **MODEL)
        make_tokenizer(folder / "model")
    clock = folder / "clock.so"
    if not clock.exists() and shutil.which("gcc"):
        source = Path(__file__).with_name("clock.c")
        words = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(clock), str(source)]
        subprocess.run(words, check=True, timeout=60)

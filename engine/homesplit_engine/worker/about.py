"""What a worker says of itself: who it is, and how it stands now."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil

from homesplit_engine.busy import OthersMeter
from homesplit_engine.handoff.layout import token_wire_bytes
from homesplit_engine.handoff.senders import Senders
from homesplit_engine.keys import ROUTER
from homesplit_engine.power import PowerMeter
from homesplit_engine.records import KV_WIRES, LinkSeen, WorkerStatus
from homesplit_engine.wire import tcp
from homesplit_engine.wire.messages import WIRE_VERSION, Ready
from homesplit_engine.worker.looking import Looking
from homesplit_engine.worker.state import State

_NOT_YET: tuple[float | None, str | None] = (None, "no reading yet")


class About:
    """The facts of one worker and of the box under it."""

    def __init__(self, state: State, kv_endpoint: str, senders: Senders) -> None:
        self._state = state
        self._senders = senders
        self._folder = Path(state.config.ready_file).parent
        self._kv_endpoint = kv_endpoint
        self._process = psutil.Process()
        # Whoever asks for the status waits for none of these: the router takes silence for a loss.
        self._disk = Looking("the disk", self._disk_free_bytes, None)
        self._power = Looking("the power", PowerMeter(state.config.device).read, _NOT_YET)
        self._others = Looking("other programs", OthersMeter().read, _NOT_YET)
        self._looking = (self._disk, self._power, self._others)

    def stop_soon(self) -> None:
        """Asks all that look at something to end."""
        for looking in self._looking:
            looking.stop_soon()

    def join(self) -> None:
        """Waits for their end, not for one that hangs."""
        for looking in self._looking:
            looking.join()

    def ready(self) -> Ready:
        """Who it is and what it holds."""
        state, loaded = self._state, self._state.loaded
        return Ready(
            box=state.config.box,
            wire_version=WIRE_VERSION,
            fingerprint=loaded.fingerprint,
            fingerprint_fields=loaded.fields,
            model=loaded.name,
            max_context=loaded.max_context,
            block_tokens=state.config.block_tokens,
            blocks_total=state.scheduler.pool.blocks_total,
            kv_bytes_per_token=loaded.kv_shape.bytes_per_token,
            kv_endpoint=self._kv_endpoint,
            public_key=state.keys.public,
            device=str(loaded.device),
            dtype=loaded.dtype,
            eos_token_ids=loaded.eos_token_ids,
            kv_wire_bytes_per_token={
                wire: token_wire_bytes(loaded.kv_shape, wire) for wire in KV_WIRES
            },
        )

    def _rss_bytes(self) -> int | None:
        """None where strangers hold every file that this process may open."""
        try:
            return int(self._process.memory_info().rss)
        except (OSError, psutil.Error):
            return None

    def _disk_free_bytes(self) -> int | None:
        """None where the place is gone, or strangers hold every file."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None

    def _links(self) -> tuple[LinkSeen, ...]:
        seen = tcp.look(self._state.router_fd)
        if seen is None:
            return self._senders.links()
        router = LinkSeen(peer=ROUTER, sent=seen.sent, resent=seen.resent, rtt_s=seen.rtt_s)
        return (router, *self._senders.links())

    def status(self) -> WorkerStatus:
        """How it stands now."""
        power_w, power_why = _with_why(self._power)
        others_cores, others_why = _with_why(self._others)
        rss_bytes, disk_free_bytes = self._rss_bytes(), self._disk.last()
        links, sending = self._links(), self._senders.sending()
        with self._state.changed:
            scheduler = self._state.scheduler
            return WorkerStatus(
                box=self._state.config.box,
                clock_s=time.monotonic(),
                running=scheduler.running,
                waiting=scheduler.waiting,
                reserved=scheduler.reserved,
                blocks_free=scheduler.pool.blocks_available,
                blocks_total=scheduler.pool.blocks_total,
                prefix_blocks=scheduler.pool.blocks_cached,
                power_w=power_w,
                power_why=power_why,
                rss_bytes=rss_bytes,
                others_cores=others_cores,
                others_why=others_why,
                wall_s=time.time(),
                disk_free_bytes=disk_free_bytes,
                disk_hangs_s=self._disk.hangs_s(),
                block_shortages=scheduler.block_shortages,
                links=links,
                sending=sending,
            )


def _with_why(looking: Looking[tuple[float | None, str | None]]) -> tuple[float | None, str | None]:
    """The newest figure, or why there is none."""
    figure, hangs_s = looking.last(), looking.hangs_s()
    return figure if hangs_s is None else (None, f"reading it has hung for {hangs_s:.0f} s")

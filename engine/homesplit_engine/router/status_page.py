"""What the router tells of itself when asked: its status, and what a new watcher has to know."""

from __future__ import annotations

import time

from homesplit_engine.events import EngineEvent, FaultSeen, StatusSeen, WorkerBack, WorkerLost
from homesplit_engine.router.fleet import Fleet
from homesplit_engine.router.link import WorkerLink
from homesplit_engine.status import RouterStatus, Targets, WorkerSeen


def snapshot(fleet: Fleet) -> list[EngineEvent]:
    """What a new watcher has to know first."""
    now_s = time.monotonic()
    events: list[EngineEvent] = []
    for link in fleet.links.values():
        kind = WorkerBack if link.alive else WorkerLost
        events.append(kind(box=link.box, at_s=now_s))
        if link.status is not None:
            events.append(StatusSeen(status=link.status))
    events += [FaultSeen(fault=fault) for fault in fleet.lasting(now_s)]
    return events


def status_of(fleet: Fleet) -> RouterStatus:
    """Everything that is known now."""
    config, now_s = fleet.config, time.monotonic()
    return RouterStatus(
        model=config.model_dir,
        model_name=config.model_name,
        fingerprint=fleet.fingerprint,
        setting=fleet.setting,
        loopback=config.loopback,
        targets=Targets(ttft_s=config.ttft_target_s, tpot_s=config.tpot_target_s),
        workers=tuple(_seen(fleet, link) for link in fleet.links.values()),
        requests=fleet.board.counts(),
        faults=fleet.lasting(now_s),
        clock_s=now_s,
    )


def _seen(fleet: Fleet, link: WorkerLink) -> WorkerSeen:
    why = fleet.why_not(link)
    return WorkerSeen(
        box=link.box,
        alive=link.alive,
        usable=why is None,
        why=why,
        ready=link.ready,
        status=link.status,
        clock_offset_s=link.clock.offset_s,
        clock_error_s=link.clock.error_s,
        prefill_tokens_per_s=fleet.rates.prefill_tokens_per_s.get(link.box),
        decode_step_s=fleet.rates.decode_step_s.get(link.box),
    )

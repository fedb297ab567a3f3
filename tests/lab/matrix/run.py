"""Runs one cell and says what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec
from homesplit_engine.events import FaultSeen, TransferSeen, WorkerBack, WorkerLost

from tests.lab.matrix.cells import FRAME_FAULTS, OTHER_BOX, ROUTER_BOX, Cell
from tests.lab.matrix.harm import Harm
from tests.lab.matrix.moments import KINDS, TOKENS, Reached, Scene, prompt_of
from tests.lab.matrix.stand import DEADLINE_S, DETECTION_S, SETTINGS, Stand
from tests.lab.matrix.traffic import Stream, wait_all, wait_until

ENDED_S = DEADLINE_S + 20
CLEAN_S = 30.0
BACK_S = 90.0
TELLS = {
    "kill-a": ROUTER_BOX,
    "kill-b": OTHER_BOX,
    "stop-5": OTHER_BOX,
    "stop-60": OTHER_BOX,
    "cut": OTHER_BOX,
    "cut-and-back": OTHER_BOX,
    "reboot": OTHER_BOX,
}
"""Whose loss the monitor has to tell."""


HIT = {
    "kill-a": ROUTER_BOX,
    "kill-b": OTHER_BOX,
    "kill-router": "router",
    "reboot": OTHER_BOX,
}
"""Which process dies of a fault, and is to be another one afterwards."""


class Result(msgspec.Struct, kw_only=True):
    """What came of one cell."""

    cell: str
    ok: bool
    why: list[str] = []
    """What was not as it must be."""
    moment_met: bool = True
    pause_s: float | None = None
    """Longest time without a token after the fault; None where the answer broke off."""
    bound_s: float | None = None
    """Detection and reading again, where the target lost its box."""
    target: str = ""
    told: list[str] = []
    took_s: float = 0.0


@dataclass(slots=True)
class Known:
    """The undisturbed answer of each prompt, and how long one took to be read."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    read_s: float = 0.0

    @classmethod
    def learn(cls, stand: Stand) -> Known:
        """Ask every prompt alone."""
        known = cls()
        stand.traffic.set_mode(SETTINGS["colocated"])
        for kind in KINDS:
            began_s = time.monotonic()
            name = f"alone-{time.monotonic_ns()}"
            stream = stand.traffic.ask(name, prompt_of(kind), TOKENS)
            stream.done.wait(ENDED_S)
            if stream.error or stream.counted != TOKENS:
                raise AssertionError(f"undisturbed, {kind} gave {stream.error or stream.counted}")
            known.texts[kind] = stream.text
            known.read_s = max(known.read_s, stream.times[0] - began_s)
        return known


def run_cell(stand: Stand, cell: Cell, known: Known) -> Result:
    """One cell on a deployment that is whole; it is whole again afterwards, or said not to be."""
    began_s = time.monotonic()
    stand.traffic.set_mode(SETTINGS[cell.mode])
    pids = {name: stand.pid(name) for name in (ROUTER_BOX, OTHER_BOX, "router")}
    harm, scene = Harm(stand, cell.fault), Scene(stand.traffic)
    seen = len(stand.traffic.events)
    result = Result(cell=cell.name, ok=False)
    if cell.moment == "idle":
        fault_s = time.monotonic()
        with harm.done_to(lambda: [reached.target]):
            reached = _ask_until_taken(scene, cell)
    else:
        reached = scene.reach(cell)
        fault_s = time.monotonic()
        with harm.done_to(lambda: list(reached.streams.values())):
            pass
        result.moment_met = reached.met
    asked = [*reached.streams.values(), reached.target, *harm.flood]
    asked += [reached.sampled] if reached.sampled else []
    if not wait_all(asked, ENDED_S):
        result.why.append("an answer neither came nor failed within its deadline")
    if cell.mode == "auto" and cell.moment in ("hand-off", "commit"):
        result.moment_met = _was_handed_over(stand, seen, reached.target.name)
    if cell.through_wire and stand.order_file.exists():
        stand.order_file.unlink()
        result.moment_met = False  # no frame came any more that could have been damaged
    _judge_texts(result, cell, reached, harm.flood, known)
    _judge_after(result, cell, stand, pids)
    _judge_told(result, cell, stand, seen)
    _note_pause(result, cell, reached, fault_s, known)
    result.ok = not result.why
    result.took_s = time.monotonic() - began_s
    return result


def _was_handed_over(stand: Stand, seen: int, name: str) -> bool:
    """Whether `auto` had one box read this prompt and another write the answer."""
    return any(
        isinstance(event, TransferSeen) and event.event.request_id == name
        for _, event in stand.traffic.events[seen:]
    )


def _ask_until_taken(scene: Scene, cell: Cell) -> Reached:
    """With nobody there a request is refused at once; a client then asks again."""
    end_s = time.monotonic() + BACK_S
    while True:
        reached = scene.reach(cell)
        reached.met = True
        reached.target.done.wait(ENDED_S)
        refused = (reached.target.error or "").startswith("503") or not reached.target.times
        if not (refused and reached.target.error) or time.monotonic() > end_s:
            return reached
        time.sleep(0.5)


def _judge_texts(
    result: Result, cell: Cell, reached: Reached, flood: list[Stream], known: Known
) -> None:
    broken_is_right = cell.fault == "kill-router" and cell.moment != "idle"
    every = {"target": reached.target, **reached.streams}
    for kind, stream in every.items():
        if broken_is_right and stream.broken:
            if not known.texts[kind].startswith(stream.text):
                result.why.append(f"{kind}: another text before the router died")
        elif stream.error:
            result.why.append(f"{kind}: {stream.error}")
        elif stream.text != known.texts[kind] or stream.counted != TOKENS:
            result.why.append(f"{kind}: {stream.counted} tokens, another text")
    beside = [reached.sampled] if reached.sampled else []
    for stream in [*flood, *beside]:
        refused = stream in flood and (stream.error or "").startswith("429")
        if stream.error and not refused and not (broken_is_right and stream.broken):
            result.why.append(f"{stream.name}: {stream.error}")
    result.target = reached.target.finish or reached.target.error or "broken off"


def _judge_after(result: Result, cell: Cell, stand: Stand, pids: dict[str, int | None]) -> None:
    """Both boxes used again, nothing held, and whoever was not hit is the same process."""
    hit = HIT.get(cell.fault)
    if hit and not wait_until(lambda: stand.pid(hit) not in (None, pids[hit]), BACK_S, 0.05):
        result.why.append(f"{hit} was not started again")
    if not wait_until(stand.is_whole, BACK_S, 0.1):
        result.why.append("not whole again")
    if not wait_until(lambda: stand.held() is None, CLEAN_S, 0.1):
        result.why.append(f"still held: {stand.held()}")
    for name, pid in pids.items():
        if name != hit and stand.pid(name) != pid:
            result.why.append(f"{name} is another process afterwards")


def _judge_told(result: Result, cell: Cell, stand: Stand, seen: int) -> None:
    events = [event for _, event in stand.traffic.events[seen:]]
    lost = {event.box for event in events if isinstance(event, WorkerLost)}
    back = {event.box for event in events if isinstance(event, WorkerBack)}
    result.told = [e.fault.sentence for e in events if isinstance(e, FaultSeen)][:6]
    box = TELLS.get(cell.fault)
    if box and box not in lost:
        result.why.append(f"the loss of {box} was not told")
    if box and box not in back:
        result.why.append(f"the return of {box} was not told")
    kinds = {event.fault.kind for event in events if isinstance(event, FaultSeen)}
    if cell.fault in FRAME_FAULTS and result.moment_met and "handoff" not in kinds:
        result.why.append("the failed hand-off was not told")


def _note_pause(result: Result, cell: Cell, reached: Reached, fault_s: float, known: Known) -> None:
    """The target's longest pause, judged where it is detection and reading again that bound it.

    The time to read again is four times what it took alone: all that were on the lost box are
    read again at once.
    """
    if reached.target.broken:
        return
    result.pause_s = reached.target.pause_s(fault_s)
    if cell.fault in TELLS and cell.moment in ("commit", "decoding", "hand-off"):
        result.bound_s = DETECTION_S + 4 * known.read_s + 1.0
        if result.pause_s > result.bound_s:
            result.why.append(f"paused {result.pause_s:.1f} s, {result.bound_s:.1f} s are right")

"""Runs one cell and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from homesplit_engine.events import (
    EngineEvent,
    FaultSeen,
    StatusSeen,
    TransferSeen,
    WorkerBack,
    WorkerLost,
)

from tests.lab.errors import LabError
from tests.lab.matrix.answers import CHOICES, TOKENS, Answers
from tests.lab.matrix.cells import (
    FRAME_FAULTS,
    HIT_BOX,
    NAMED,
    OTHER_BOX,
    ROUTER_BOX,
    SEEN_OVER,
    Cell,
)
from tests.lab.matrix.harm import Harm
from tests.lab.matrix.moments import AGAIN_TOKENS, BESIDE, BESIDE_TOKENS, Reached, Scene
from tests.lab.matrix.pauses import Pause, pause_of
from tests.lab.matrix.stand import DEADLINE_S, SETTINGS, Stand
from tests.lab.matrix.traffic import Stream, wait_all, wait_until

ENDED_S = DEADLINE_S + 20
CLEAN_S = 60.0
BACK_S = 300.0
NAMED_S = 30.0
"""How long the monitor may take to name what is over."""
RULE = 2
ROUTER_ENDED = "router_ended"
"""The code of the error that ends what a killed router was answering."""
SLOW_BYTES, SLOW_S = 256 * 2**10, 0.5
"""A hand-off of so much that was under way for so long on a slow link shows that it is slow."""
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
    """Nothing was as it must not be; whether the moment was met is another matter."""
    why: list[str] = []
    """What was not as it must be."""
    moment_met: bool = True
    pause: Pause | None = None
    """The target's longest pause after the fault; None where the answer broke off."""
    target: str = ""
    told: list[str] = []
    """What the monitor said, what names the fault first."""
    named_s: float | None = None
    """From the fault until the monitor named it; None where there was nothing to be seen of it."""
    rule: int = 1
    """By which it was judged: the first one judged no pause but of lost boxes and damaged frames,
    and did not ask the monitor for the names of other faults."""
    took_s: float = 0.0
    """Its share, where one fault was judged at several moments."""
    parts_s: dict[str, float] = {}
    """Where the whole time of that fault went."""


class Laps:
    """How long each part of something took."""

    def __init__(self) -> None:
        self.parts_s: dict[str, float] = {}
        self._last_s = time.monotonic()

    def over(self, part: str) -> None:
        """The part that was under way until now."""
        now_s = time.monotonic()
        self.parts_s[part] = round(now_s - self._last_s, 1)
        self._last_s = now_s


def check_undisturbed(stand: Stand, answers: Answers) -> None:
    """A deployment that nothing is done to gives the engine's own texts; raises LabError."""
    for mode, setting in SETTINGS.items():
        stand.traffic.set_mode(setting)
        pairs = [
            (stand.traffic.ask(f"alone-{mode}", BESIDE, TOKENS), answers.greedy(BESIDE)),
            (
                stand.traffic.ask(f"alone-sampled-{mode}", BESIDE, TOKENS, sampled=True),
                answers.sampled(BESIDE),
            ),
        ]
        for stream, wanted in pairs:
            if not stream.done.wait(ENDED_S) or stream.texts[: len(wanted)] != wanted:
                raise LabError(f"undisturbed, {stream.name} gave {stream.error or stream.texts}")


def run_together(stand: Stand, cells: Sequence[Cell], answers: Answers) -> list[Result]:
    """One fault, judged at each of these cells' moments, on a deployment that is whole.

    Of several cells only those are judged whose moment was met; a cell alone is judged in any
    case. Afterwards the deployment is whole again, or said not to be.
    """
    laps, began_s = Laps(), time.monotonic()
    stand.waits.forget()
    if any(cell.needs_first_handoff for cell in cells):
        stand.start_router_anew()
    scene = Scene(stand.traffic, cells)
    stand.traffic.set_mode(scene.setting)
    wanted = dict(zip(scene.prompts, answers.greedy(*scene.prompts), strict=True))
    wanted |= {BESIDE: answers.greedy(BESIDE, tokens=BESIDE_TOKENS)[0]}
    laps.over("prepared")
    results = _Case(stand, cells, scene, wanted, answers).run(laps)
    for result in results:
        result.took_s = (time.monotonic() - began_s) / len(results)
        result.parts_s = laps.parts_s
    return results


class _Case:
    """One fault and its cells under way."""

    def __init__(
        self,
        stand: Stand,
        cells: Sequence[Cell],
        scene: Scene,
        wanted: dict[str, str],
        answers: Answers,
    ) -> None:
        self._stand = stand
        self._cells = cells
        self._fault = cells[0].fault
        self._idle = cells[0].moment == "idle"
        self._scene = scene
        self._wanted = wanted
        self._answers = answers
        self._drawn = answers.sampled(BESIDE)
        self._pids = {name: stand.pid(name) for name in (ROUTER_BOX, OTHER_BOX, "router")}
        self._seen = len(stand.traffic.events)
        self._fault_s = 0.0
        self._why: list[str] = []
        """What was not as it must be, whatever the moment."""

    def run(self, laps: Laps) -> list[Result]:
        """Moments, fault, answers, and everything back as it was."""
        harm = Harm(self._stand, self._fault, self._cells[0].mode)
        self._fault_s = time.monotonic()
        if self._idle:
            with harm.done_to(lambda: reached.greedy, self._was_told):
                reached = self._ask_until_taken()
        else:
            reached = self._scene.reach()
            laps.over("moment")
            self._fault_s = time.monotonic()
            with harm.done_to(lambda: reached.greedy, self._was_told):
                pass
        asked = [*reached.greedy, *harm.flood, *([reached.sampled] if reached.sampled else [])]
        if not wait_all(asked, ENDED_S):
            self._why.append("an answer neither came nor failed within its deadline")
        more = [prompt for prompt in self._scene.prompts if prompt not in self._wanted]
        self._wanted |= dict(zip(more, self._answers.greedy(*more), strict=True))
        laps.over("answered")
        if not self._frame_was_met():
            reached.targets.clear()
        self._judge_texts(reached, harm.flood)
        self._judge_after()
        laps.over("whole again")
        self._judge_told(frame_met=bool(reached.targets))
        self._judge_again()
        laps.over("asked again")
        judged = [cell for cell in self._cells if cell.moment in reached.targets]
        if not judged and (self._why or len(self._cells) == 1):
            judged = list(self._cells)
        return [self._result(cell, reached) for cell in judged]

    def _result(self, cell: Cell, reached: Reached) -> Result:
        met = cell.moment in reached.targets
        target = reached.targets.get(cell.moment, reached.last)
        pause, why = self._judged_pause(target)
        named = self._namings()
        return Result(
            cell=cell.name,
            rule=RULE,
            ok=not self._why and why is None,
            moment_met=met,
            pause=pause,
            target=target.finish or target.error or "broken off",
            told=self._told(),
            named_s=named[0] - self._fault_s if named else None,
            why=[*self._why, *([why] if why else [])],
        )

    def _told(self) -> list[str]:
        faults = [event.fault for event in self._events() if isinstance(event, FaultSeen)]
        kinds = self._kinds()
        naming = [fault.sentence for fault in faults if fault.kind in kinds]
        others = [fault.sentence for fault in faults if fault.kind not in kinds]
        return [*naming[:3], *others][:6]

    def _kinds(self) -> tuple[str, ...]:
        """Of what the monitor has to say."""
        if self._fault in HIT_BOX:
            return ("worker_lost",)
        return ("handoff",) if self._fault in FRAME_FAULTS else NAMED[self._fault]

    def _namings(self) -> list[float]:
        """When the monitor named the fault."""
        kinds = self._kinds()
        return [
            heard_s
            for heard_s, event in self._stand.traffic.events[self._seen :]
            if isinstance(event, FaultSeen)
            and event.fault.kind in kinds
            and heard_s >= self._fault_s
        ]

    def _is_to_be_named(self) -> bool:
        """Whether there was anything to be seen of a fault that takes no box away."""
        if self._fault != "rate":
            return self._fault in NAMED
        moved = [event.event for event in self._events() if isinstance(event, TransferSeen)]
        return any(
            one.bytes >= SLOW_BYTES and one.end_s - max(one.start_s, self._fault_s) > SLOW_S
            for one in moved
        )

    def _events(self) -> list[EngineEvent]:
        return [event for _, event in self._stand.traffic.events[self._seen :]]

    def _ask_until_taken(self) -> Reached:
        """With nobody there a request is refused at once; a client then asks again."""
        end_s = time.monotonic() + BACK_S
        while True:
            reached = self._scene.ask_target()
            target = reached.last
            target.done.wait(ENDED_S)
            refused = (target.error or "").startswith("503") or not target.times
            if not (refused and target.error) or time.monotonic() > end_s:
                return reached
            time.sleep(0.2)

    def _frame_was_met(self) -> bool:
        order = self._stand.order_file
        if self._fault in FRAME_FAULTS and order.exists():
            order.unlink()
            return False  # no frame came any more that could have been damaged
        return True

    # -------------------------------------------------------------- judging

    def _judge_texts(self, reached: Reached, flood: list[Stream]) -> None:
        ended_is_right = self._fault == "kill-router" and not self._idle
        for stream in reached.greedy:
            self._judge_text(stream, [self._wanted[stream.prompt]], ended_is_right)
        if reached.sampled:
            self._judge_text(reached.sampled, self._drawn, ended_is_right)
        for stream in flood:
            error = stream.error or ("broken off" if stream.broken else "")
            if error and not error.startswith("429"):
                self._why.append(f"{stream.name}: {error}")

    def _judge_text(self, stream: Stream, wanted: list[str], ended_is_right: bool) -> None:
        pairs = list(zip(stream.texts, wanted, strict=False))
        if ended_is_right and ROUTER_ENDED in (stream.error or "") and not stream.broken:
            if not all(whole.startswith(text) for text, whole in pairs):
                self._why.append(f"{stream.name}: another text before the router died")
        elif stream.error or stream.broken:
            self._why.append(f"{stream.name}: {stream.error or 'broken off'}")
        elif stream.counted != stream.tokens * len(wanted):
            self._why.append(f"{stream.name}: {stream.counted} tokens")
        elif any(text != whole for text, whole in pairs):
            self._why.append(f"{stream.name}: another text")
        elif stream.sampled and stream.logprobs != TOKENS * CHOICES:
            self._why.append(f"{stream.name}: {stream.logprobs} log-probabilities")

    def _judge_after(self) -> None:
        """Both boxes used again, nothing held, and whoever was not hit is the same process."""
        stand, hit = self._stand, HIT.get(self._fault)
        if hit:
            before = (None, self._pids[hit])
            if not wait_until(lambda: stand.pid(hit) not in before, BACK_S, 0.05):
                self._why.append(f"{hit} was not started again")
        if not wait_until(stand.is_whole, BACK_S, 0.05):
            self._why.append("not whole again")
        if not wait_until(self._nothing_held(), CLEAN_S, 0.05):
            self._why.append(f"still held: {stand.held()}")
        if not wait_until(lambda: not self._still_told(), CLEAN_S, 0.1):
            self._why.append(f"still told as lasting: {self._still_told()}")
        for name, pid in self._pids.items():
            if name != hit and stand.pid(name) != pid:
                self._why.append(f"{name} is another process afterwards")

    def _still_told(self) -> list[str]:
        """What the router calls lasting of a fault that was undone."""
        status = self._stand.traffic.status()
        kinds = set(self._kinds()) & set(SEEN_OVER)
        return [] if status is None else [f.sentence for f in status.faults if f.kind in kinds]

    def _nothing_held(self) -> Callable[[], bool]:
        """Each box is to say so itself, after all answers have ended."""
        stand, since = self._stand, len(self._stand.traffic.events)

        def so() -> bool:
            later = [event for _, event in stand.traffic.events[since:]]
            told = {event.status.box for event in later if isinstance(event, StatusSeen)}
            return told == {ROUTER_BOX, OTHER_BOX} and stand.held() is None

        return so

    def _was_told(self) -> bool:
        named = self._fault not in NAMED or bool(self._namings())
        return self._loss_was_told() and (named or not self._is_to_be_named())

    def _loss_was_told(self) -> bool:
        box = HIT_BOX.get(self._fault)
        return box is None or any(
            isinstance(event, WorkerLost) and event.box == box for event in self._events()
        )

    def _judge_told(self, *, frame_met: bool) -> None:
        box = HIT_BOX.get(self._fault)
        if not self._loss_was_told():
            self._why.append(f"the loss of {box} was not told")
        back = {event.box for event in self._events() if isinstance(event, WorkerBack)}
        if box and box not in back:
            self._why.append(f"the return of {box} was not told")
        if self._is_to_be_named() and not wait_until(lambda: bool(self._namings()), NAMED_S, 0.05):
            self._why.append("the monitor did not name it")
        kinds = {event.fault.kind for event in self._events() if isinstance(event, FaultSeen)}
        if self._fault in FRAME_FAULTS and frame_met and "handoff" not in kinds:
            self._why.append("the failed hand-off was not told")

    def _judge_again(self) -> None:
        """What was kept of the target's prompt, on whichever box, is right."""
        again = self._scene.ask_again()
        wanted = self._wanted[again.prompt]
        if not again.done.wait(CLEAN_S) or again.error or again.broken:
            self._why.append(f"asked again afterwards: {again.error or 'no answer'}")
        elif again.counted != AGAIN_TOKENS or not wanted.startswith(again.text.rstrip("\ufffd")):
            self._why.append("asked again afterwards, its text is another")

    def _judged_pause(self, target: Stream) -> tuple[Pause | None, str | None]:
        """A target's pause; where the router was killed there is none to judge."""
        if target.broken or target.error:
            return None, None
        heard = self._stand.traffic.events[self._seen :]
        # What a frame's damage takes to be noticed is nothing, as is a lost connection.
        lost = self._fault in HIT_BOX or self._fault in FRAME_FAULTS
        coreless_s = self._stand.waits.outside_s
        pause = pause_of(target, self._fault_s, heard, coreless_s, lost=lost)
        return pause, pause.why_too_long

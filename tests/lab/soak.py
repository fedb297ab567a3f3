"""Mixed traffic with faults at random for as long as asked, watched for growth and wrong text.

    python -m tests.lab.soak --minutes N [--seed S] [--out FILE]

The deployment is that of the fault matrix. Four clients ask at random, some leave early, some
sample; the mode changes; about every half minute something breaks. Every text is compared with
that of the engine alone. Between faults, with nobody asking, what each process holds is noted:
resident bytes by kind, open files, blocks. What ends the worker on the router's box, or the router,
is done in the first part only, so that their growth can be seen. Prints one JSON document, which
lies in FILE after each round; exit 1 when something was lost, another text came, blocks stayed, or
a process that lived on kept growing.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
from homesplit_engine.events import FaultSeen

from tests.lab.api import running_lab
from tests.lab.matrix.answers import TOKENS, Answers
from tests.lab.matrix.cells import HIT_BOX, MODES, OTHER_BOX, ROUTER_BOX
from tests.lab.matrix.harm import Harm
from tests.lab.matrix.moments import BESIDE, fresh_prompt
from tests.lab.matrix.run import ROUTER_ENDED, check_undisturbed
from tests.lab.matrix.stand import (
    DETECTION_S,
    SETTINGS,
    Stand,
    end_in_good_order_when_told,
    standing,
)
from tests.lab.matrix.traffic import Stream, wait_until
from tests.lab.resident import resident

CLIENTS = 4
FAULTS = (
    *("kill-a", "kill-b", "kill-router", "stop-5", "cut-and-back", "loss", "latency", "rate"),
    *("no-blocks", "clock-back", "disk-full", "reboot"),
)
EARLY = {"kill-a": 0.15, "kill-router": 0.35}
"""These faults come in so much of the time only: afterwards who they hit is to live on."""
LENGTHS = range(80, 980, 75)
"""Of the known prompts: more than the blocks of a box hold, so that prefixes are kept and lost."""
CALM_S = 20.0
"""Traffic between two faults."""
WHOLE_S = 600.0
GROWTH, LATE_GROWTH = 1.25, 1.05
"""A process may hold at its end so many times what it held after warm-up, and at half its life."""
WARM_ROUNDS, LONG_ROUNDS = 5, 20
FILES_MORE = 16


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one process held after a round."""

    pid: int
    made_code_bytes: int
    data_bytes: int
    files_bytes: int
    open_files: int

    @property
    def whole_bytes(self) -> int:
        """Everything that is resident."""
        return self.made_code_bytes + self.data_bytes + self.files_bytes


@dataclass(slots=True)
class Tally:
    """What came of everything."""

    rounds: int = 0
    asked: int = 0
    whole: int = 0
    left: int = 0
    refused: int = 0
    """Answered with 429 or 503 before they were taken in."""
    broken_with_router: int = 0
    lost: list[str] = field(default_factory=list[str])
    wrong_text: list[str] = field(default_factory=list[str])
    still_held: list[str] = field(default_factory=list[str])
    grown: list[str] = field(default_factory=list[str])
    faults: dict[str, int] = field(default_factory=dict[str, int])
    modes: dict[str, int] = field(default_factory=dict[str, int])
    unasked_losses: list[str] = field(default_factory=list[str])
    """Boxes told as lost that the round's fault did not take away, and what they lacked."""
    held: dict[str, list[Held]] = field(default_factory=dict[str, list[Held]])
    """Of each process, after each round."""

    @property
    def good(self) -> bool:
        """Whether nothing was as it must not be."""
        return not (self.lost or self.wrong_text or self.still_held or self.grown)


class Soak:
    """The clients and the breaking of things."""

    def __init__(self, stand: Stand, answers: Answers, seed: int, out: Path | None) -> None:
        self._stand = stand
        self._out = out
        prompts = [BESIDE, *(fresh_prompt("soak", length) for length in LENGTHS)]
        self._prompts = prompts
        self._greedy = dict(zip(prompts, answers.greedy(*prompts), strict=True))
        self._drawn = answers.sampled(BESIDE)
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._calm = threading.Event()
        self._router_dies = False
        self.tally = Tally()

    def run(self, minutes: float) -> Tally:
        """Round after round until the time is over."""
        began_s, all_s = time.monotonic(), 60 * minutes
        while (share := (time.monotonic() - began_s) / all_s) < 1.0:
            self._round([fault for fault in FAULTS if share < EARLY.get(fault, 1.0)])
            self._write_down(share * minutes)
            if self.tally.still_held:
                break
        self.tally.grown = [
            why for name, rows in self.tally.held.items() for why in grown(name, rows)
        ]
        return self.tally

    def _round(self, faults: Sequence[str]) -> None:
        """Traffic, a fault in the middle of it, silence, a look at what is held."""
        mode, fault = self._chance.choice(MODES), self._chance.choice(faults)
        self._stand.traffic.set_mode(SETTINGS[mode])
        self._router_dies = fault == "kill-router"
        self._calm.clear()
        self._stand.traffic.events.clear()
        self._stand.waits.forget()
        clients = [
            threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        time.sleep(CALM_S / 2)
        with Harm(self._stand, fault, mode).done_to(list):
            time.sleep(CALM_S / 2)
        self._calm.set()
        for client in clients:
            client.join()
        tally = self.tally
        tally.rounds += 1
        tally.faults[fault] = tally.faults.get(fault, 0) + 1
        tally.modes[mode] = tally.modes.get(mode, 0) + 1
        if not wait_until(self._stand.is_whole, WHOLE_S, 0.2):
            tally.still_held.append(f"not whole after {fault}: {self._stand.last_words()}")
        elif not wait_until(lambda: self._stand.held() is None, WHOLE_S, 0.2):
            tally.still_held.append(f"after {fault}: {self._stand.held()}")
        self._note_losses(fault)
        self._note_processes()
        print(f"round {tally.rounds} {fault}: {tally.whole} whole", file=sys.stderr, flush=True)

    def _client(self, number: int) -> None:
        chance = random.Random(f"{number} {self.tally.rounds} {self._chance.random()}")
        while not self._calm.is_set():
            self._ask(chance)
            time.sleep(chance.uniform(0.0, 1.0))

    def _ask(self, chance: random.Random) -> None:
        sampled = chance.random() < 0.2
        # The short one whose answer is known is asked throughout.
        prompt = BESIDE if sampled or chance.random() < 0.3 else chance.choice(self._prompts)
        name = f"soak-{time.monotonic_ns()}-{chance.randrange(10**6)}"
        stream = self._stand.traffic.ask(name, prompt, TOKENS, sampled=sampled)
        leaves = chance.random() < 0.25
        if leaves and not stream.done.wait(chance.uniform(0.0, 3.0)):
            self._stand.traffic.cancel(name)
        ended = stream.done.wait(180)
        with self._lock:
            tally = self.tally
            tally.asked += 1
            error = stream.error or ""
            if not ended:
                tally.lost.append(f"{name}: never ended")
            elif leaves and (not stream.finish or error.startswith("cancelled")):
                # One of its choices may have been whole.
                tally.left += 1
            elif self._router_dies and (stream.broken or ROUTER_ENDED in error):
                tally.broken_with_router += 1
            elif error.startswith(("429", "503")):
                tally.refused += 1
            elif error or stream.broken:
                tally.lost.append(f"{name}: {error or 'broken off'}")
            elif self._is_wrong(stream):
                tally.wrong_text.append(f"{name}: {stream.prompt[:20]}")
            else:
                tally.whole += 1

    def _is_wrong(self, stream: Stream) -> bool:
        wanted = self._drawn if stream.sampled else [self._greedy[stream.prompt]]
        return stream.texts[: len(wanted)] != wanted or stream.counted != len(wanted) * TOKENS

    def _note_losses(self, fault: str) -> None:
        for heard_s, event in self._stand.traffic.events:
            if not isinstance(event, FaultSeen) or event.fault.kind != "worker_lost":
                continue
            if event.fault.box == HIT_BOX.get(fault):
                continue
            coreless_s = self._stand.waits.outside_s(heard_s - DETECTION_S, heard_s)
            self.tally.unasked_losses.append(
                f"{fault}: {event.fault.sentence}; {coreless_s:.2f} of the {DETECTION_S:g} s "
                "before that a process wanted a core and had none"
            )

    def _note_processes(self) -> None:
        for name in (ROUTER_BOX, OTHER_BOX, "router"):
            pid = self._stand.pid(name)
            if pid is not None:
                seen = resident(pid)
                held = Held(
                    pid=pid,
                    made_code_bytes=seen.made_code,
                    data_bytes=seen.data,
                    files_bytes=seen.files,
                    open_files=psutil.Process(pid).num_fds(),
                )
                self.tally.held.setdefault(name, []).append(held)

    def _write_down(self, minutes: float) -> None:
        if self._out is not None:
            self._out.write_bytes(document(self.tally, minutes))


def grown(name: str, rows: Sequence[Held]) -> list[str]:
    """What is wrong with the growth of each of a box's processes, from its own warm-up on."""
    found: list[str] = []
    for pid in dict.fromkeys(row.pid for row in rows):
        lived = [row for row in rows if row.pid == pid][WARM_ROUNDS:]
        if len(lived) < WARM_ROUNDS:
            continue
        first, half, last = lived[0], lived[len(lived) // 2], lived[-1]
        late = len(lived) >= LONG_ROUNDS and last.whole_bytes > LATE_GROWTH * half.whole_bytes
        if late or last.whole_bytes > GROWTH * first.whole_bytes:
            sizes = [row.whole_bytes for row in (first, half, last)]
            found.append(f"{name}: {sizes[0]}, {sizes[1]}, {sizes[2]} bytes")
        if last.open_files > first.open_files + FILES_MORE:
            found.append(f"{name}: {first.open_files} to {last.open_files} open files")
    return found


def document(tally: Tally, minutes: float) -> bytes:
    """All that is known, as JSON."""
    known = msgspec.to_builtins(tally) | {"minutes": minutes}
    return msgspec.json.format(msgspec.json.encode(known), indent=1)


def main() -> int:
    """Run and print; 1 when something was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--subnet", default="10.87.0.0/24")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    end_in_good_order_when_told()
    with (
        tempfile.TemporaryDirectory(prefix="homesplit-soak-") as folder,
        running_lab(2, "100mbit", subnet=args.subnet) as lab,
        standing(lab, Path(folder), wire=False) as stand,
    ):
        answers = Answers(Path(folder) / "model")
        check_undisturbed(stand, answers)
        tally = Soak(stand, answers, args.seed, args.out).run(args.minutes)
    print(document(tally, args.minutes).decode())
    return int(not tally.good)


if __name__ == "__main__":
    raise SystemExit(main())

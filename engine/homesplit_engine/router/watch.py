"""Names what goes wrong without anybody being lost: only what was seen, with its figures. Pure.

Disks that are full or hang, clocks that were set, blocks that ran out, and links that lose, delay
or slow down; each is told once while it lasts. What lasts ends at a bound of its own, well away
from the one at which it began, so that what hovers about a bound is not told again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from homesplit_engine.records import LinkSeen, TransferEvent, WorkerStatus

DISK_BYTES, DISK_AGAIN_BYTES = 256 * 2**10, 2**20
"""With less room nothing more can be written that matters; with so much it can again."""
CLOCK_S = 2.0
"""A wall clock that moves so much against the machine's own was set, or the machine slept."""
LOSS_WINDOW_S, LOSS_LEAST, LOSS_SHARE = 30.0, 3, 0.02
LOSS_OVER_SHARE = 0.01
LATE_S, IN_TIME_S = 0.06, 0.03
"""The first is more than what an acknowledgement may be held back by habit (40 ms on Linux)."""
QUIET_S = 3.0
"""After a hand-off its own queue on the link is not taken for a delay of the link."""
SLOWER, AS_FAST = 3.0, 2.0
LINK_BOUND_SHARE, LEAST_BYTES = 0.5, 256 * 2**10
"""Only such hand-offs show the link's rate (as in `rates.py`)."""
HIDDEN_AGAIN = 3
"""After so many in a row that no answer waited for, a slow link holds nobody up any more."""


class Connection(Protocol):
    """The router's own side of a connection."""

    @property
    def sent(self) -> int:
        """Segments with data."""
        ...

    @property
    def resent(self) -> int:
        """Of them those sent again."""
        ...

    @property
    def rtt_s(self) -> float:
        """There and back."""
        ...


class _Counts:
    """What was sent, and sent again, over one connection within the last while."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, now_s: float, sent: int, resent: int) -> None:
        if self._seen and sent < self._seen[-1][1]:
            self._seen.clear()  # another connection
        self._seen.append((now_s, sent, resent))
        while len(self._seen) > 2 and now_s - self._seen[1][0] > LOSS_WINDOW_S:
            self._seen.popleft()

    @property
    def lately(self) -> tuple[int, int]:
        first, last = self._seen[0], self._seen[-1]
        return last[1] - first[1], last[2] - first[2]


class Watch:
    """Looks at every status that comes, and says what is wrong."""

    def __init__(
        self,
        tell: Callable[[str, str, str], None],
        over: Callable[[str, str], None],
    ) -> None:
        """`tell` gets box, kind and sentence; `over` box and kind of what lasted until now."""
        self._tell = tell
        self._over = over
        self._standing: set[tuple[str, str]] = set()
        self._clocks: dict[str, float] = {}
        self._shortages: dict[str, int] = {}
        self._counts: dict[str, dict[tuple[str, str], _Counts]] = {}
        """By box, then by (from, to)."""
        self._best_rtt_s: dict[str, float] = {}
        self._hidden: dict[str, int] = {}
        """Hand-offs to the box, one behind the other, that hid behind their prompts."""
        self._busy_s: dict[str, float] = {}
        """When a hand-off was last under way on the box's link."""

    def lost(self, box: str) -> None:
        """The box is away: what it said before is no measure of what it says next."""
        self._clocks.pop(box, None)
        self._shortages.pop(box, None)
        self._counts.pop(box, None)
        self._hidden.pop(box, None)
        for known, kind in sorted(self._standing):
            if known == box:
                self._judge(box, kind, None)

    def heard(self, status: WorkerStatus, connection: Connection | None, now_s: float) -> None:
        """A box told how it stands; `connection` is the router's own connection to it."""
        self._look_at_disk(status)
        self._look_at_clock(status)
        self._look_at_blocks(status)
        if status.sending or status.reserved:
            self._busy_s[status.box] = now_s
        self._look_for_loss(status, connection, now_s)
        if connection is not None:
            self._look_for_delay(status.box, connection.rtt_s, now_s)

    def handed_over(
        self, event: TransferEvent, can: Mapping[tuple[str, str], float], sharing: int
    ) -> None:
        """A hand-off ended; `can` is what each link is known to carry."""
        took_s = event.end_s - event.start_s
        known = can.get((event.box_from, event.box_to))
        shows = event.committed and event.bytes >= LEAST_BYTES
        if not known or not shows:
            return
        if event.exposed_s <= LINK_BOUND_SHARE * took_s:
            self._hid(event.box_to)
            return
        self._hidden.pop(event.box_to, None)
        rate = event.bytes / took_s
        slower = known / rate / max(1, sharing + 1)
        sentence = (
            f"hand-offs from {event.box_from} to {event.box_to} take {slower:.0f} times what they "
            f"took: {rate / 1e6:.3g} MB a second, before {known / 1e6:.3g} MB"
        )
        bound = AS_FAST if self._stands(event.box_to, "slow_link") else SLOWER
        self._judge(event.box_to, "slow_link", sentence if slower >= bound else None)

    def _hid(self, box: str) -> None:
        """A hand-off took no longer than its prompt: a link that recovered shows no other."""
        self._hidden[box] = self._hidden.get(box, 0) + 1
        if self._hidden[box] >= HIDDEN_AGAIN:
            self._judge(box, "slow_link", None)

    def _stands(self, box: str, kind: str) -> bool:
        return (box, kind) in self._standing

    def _judge(self, box: str, kind: str, wrong: str | None) -> None:
        """Tell of what is wrong when it begins."""
        key = (box, kind)
        if wrong is None and key in self._standing:
            self._standing.discard(key)
            self._over(box, kind)
        elif wrong is not None and key not in self._standing:
            self._standing.add(key)
            self._tell(box, kind, wrong)

    def _look_at_disk(self, status: WorkerStatus) -> None:
        hangs_s = status.disk_hangs_s
        hangs = (
            f"{status.box}: its disk has not answered for {hangs_s:.0f} s where the worker writes; "
            "is it a network disk that is away?"
            if hangs_s is not None
            else None
        )
        self._judge(status.box, "disk_hangs", hangs)
        free = status.disk_free_bytes
        if free is None:
            return
        full = f"{status.box}: its disk is full, {free:,} bytes are left where the worker writes"
        bound = DISK_AGAIN_BYTES if self._stands(status.box, "disk_full") else DISK_BYTES
        self._judge(status.box, "disk_full", full if free < bound else None)

    def _look_at_clock(self, status: WorkerStatus) -> None:
        if status.wall_s is None:
            return
        now = status.wall_s - status.clock_s
        moved_s = now - self._clocks.get(status.box, now)
        self._clocks[status.box] = now
        if abs(moved_s) < CLOCK_S:
            return
        way = f"went back by {-moved_s:,.0f} s" if moved_s < 0 else f"jumped by {moved_s:,.0f} s"
        slept = "" if moved_s < 0 else " (it was set, or the box slept)"
        self._tell(status.box, "clock", f"{status.box}: its clock {way}{slept}")
        self._over(status.box, "clock")

    def _look_at_blocks(self, status: WorkerStatus) -> None:
        before = self._shortages.get(status.box, status.block_shortages)
        self._shortages[status.box] = status.block_shortages
        times = status.block_shortages - before
        short = (
            f"{status.box}: KV blocks ran short {times} times: {status.blocks_free} of "
            f"{status.blocks_total} are free now, {status.waiting} requests wait"
        )
        if status.block_shortages > before:
            self._judge(status.box, "no_blocks", short)
        elif not status.waiting:
            # Shortages are counted a step; a long one lies between two statuses.
            self._judge(status.box, "no_blocks", None)

    def _look_for_loss(
        self, status: WorkerStatus, connection: Connection | None, now_s: float
    ) -> None:
        counts = self._counts.setdefault(status.box, {})
        seen = {(status.box, link.peer): (link.sent, link.resent) for link in _merged(status.links)}
        if connection is not None:
            seen["router", status.box] = connection.sent, connection.resent
        for way in counts.keys() - seen.keys():
            del counts[way]  # its connection is gone, and with it what it lost
        if not seen:
            self._judge(status.box, "packet_loss", None)
            return
        for way, (sent, resent) in seen.items():
            counts.setdefault(way, _Counts()).add(now_s, sent, resent)
        lately = {way: one.lately for way, one in counts.items()}
        sent, resent = (sum(column) for column in zip(*lately.values(), strict=True))
        told = None
        stands = self._stands(status.box, "packet_loss")
        least, share = (1, LOSS_OVER_SHARE) if stands else (LOSS_LEAST, LOSS_SHARE)
        if resent >= least and resent >= share * sent:
            begin, end = max(lately, key=lambda way: lately[way][1])
            told = (
                f"packets get lost, most of them from {begin} to {end}: {resent} of {sent} were "
                f"sent again within {LOSS_WINDOW_S:.0f} s"
            )
        self._judge(status.box, "packet_loss", told)

    def _look_for_delay(self, box: str, rtt_s: float, now_s: float) -> None:
        best_s = min(rtt_s, self._best_rtt_s.get(box, rtt_s))
        self._best_rtt_s[box] = best_s
        if any(now_s - at_s < QUIET_S for at_s in self._busy_s.values()):
            return
        late = (
            f"messages to {box} take {rtt_s * 1e3:.0f} ms there and back, "
            f"{best_s * 1e3:.1f} ms at best before"
        )
        bound_s = IN_TIME_S if self._stands(box, "latency") else LATE_S
        self._judge(box, "latency", late if rtt_s > best_s + bound_s else None)


def _merged(links: tuple[LinkSeen, ...]) -> list[LinkSeen]:
    """One entry for each peer."""
    return list({link.peer: link for link in links}.values())

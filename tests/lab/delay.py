"""Holds packets back without netem: each waits in a kernel queue until its time has come.

Only the packets' numbers come here, over netlink (NFQUEUE); the packets stay in the kernel.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import select
import signal
import socket
import struct
import time
from typing import Any, cast

from tests.lab.kernel import NEWNET, enter, enter_open, wake_precisely
from tests.lab.processes import netns_path
from tests.lab.store import Lab

_NETLINK_NETFILTER = 12
_SOL_NETLINK = 270
_NETLINK_NO_ENOBUFS = 5
_SO_RCVBUFFORCE = 33
_SUBSYSTEM_QUEUE = 3
_MSG_CONFIG = 2
_MSG_VERDICT_BATCH = 3
_HOLD_AT_MOST = 200_000
_LATE_AT_MOST_S = 5e-4
_FEW = 4
"""While no more packets wait, this process wakes earlier and spins: it holds nobody up."""


def _attribute(kind: int, data: bytes) -> bytes:
    body = struct.pack("=HH", 4 + len(data), kind) + data
    return body + b"\0" * (-len(body) % 4)


class HeldQueue:
    """The packets from one sender to one receiver that wait for their time."""

    def __init__(self, namespace: str, number: int, delay_s: float, jitter_s: float) -> None:
        self.number = number
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self._last = 0.0
        self._held: collections.deque[tuple[float, bytes]] = collections.deque()
        self.socket = _netlink_socket_in(namespace)
        self._say(_MSG_CONFIG, _attribute(1, struct.pack(">BxH", 1, 0)))
        copy_nothing = _attribute(2, struct.pack(">IB", 0, 1))
        self._say(_MSG_CONFIG, copy_nothing)
        self._say(_MSG_CONFIG, _attribute(3, struct.pack(">I", _HOLD_AT_MOST)))
        whole_super_packets = struct.pack(">I", 4)
        self._say(
            _MSG_CONFIG, _attribute(4, whole_super_packets) + _attribute(5, whole_super_packets)
        )
        self.socket.setblocking(False)

    @property
    def held(self) -> int:
        """How many packets wait."""
        return len(self._held)

    @property
    def due(self) -> float | None:
        """When the oldest packet may go, on the monotonic clock."""
        return self._held[0][0] if self._held else None

    def take_in(self, now: float) -> None:
        """Note the packets that have arrived; their order is kept."""
        for _ in range(512):
            try:
                message = self.socket.recv(2048)
            except BlockingIOError:
                return
            if message[4:6] == bytes((0, _SUBSYSTEM_QUEUE)):
                extra = random.random() * self.jitter_s
                self._last = max(self._last, now + self.delay_s + extra)
                self._held.append((self._last, message[24:28]))

    def let_go(self, now: float) -> None:
        """Accept every packet whose time has come, with one message."""
        last: bytes | None = None
        while self._held and self._held[0][0] <= now:
            last = self._held.popleft()[1]
        if last is not None:
            self._say(_MSG_VERDICT_BATCH, _attribute(2, struct.pack(">I", 1) + last))

    def _say(self, kind: int, attributes: bytes) -> None:
        body = struct.pack(">BBH", 0, 0, self.number) + attributes
        head = struct.pack("=IHHII", 16 + len(body), _SUBSYSTEM_QUEUE << 8 | kind, 1, 0, 0)
        self.socket.send(head + body)


def _netlink_socket_in(namespace: str) -> socket.socket:
    """A socket that belongs to another network namespace than this process."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    enter(netns_path(namespace), NEWNET)
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    finally:
        enter_open(home, NEWNET)
        os.close(home)
    made.bind((0, 0))
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
    made.setsockopt(_SOL_NETLINK, _NETLINK_NO_ENOBUFS, 1)
    return made


class Delays:
    """All held queues of a lab, kept as its list on disk says."""

    def __init__(self, lab: Lab) -> None:
        self._list = lab.folder / "delays.json"
        self._queues: dict[tuple[int, int], HeldQueue] = {}
        self._late_s = 0.0
        self._lead_s = 0.0
        self._handed_s = 0.0

    def read_list(self) -> None:
        """Open queues that are new, change those that stay, close the rest.

        A queue is known by its namespace's inode: a rebooted machine has another of the name.
        """
        kept: dict[tuple[int, int], HeldQueue] = {}
        for entry in cast("list[dict[str, Any]]", json.loads(self._list.read_text())):
            # A machine may be gone between the writing of the list and this.
            with contextlib.suppress(OSError):
                inode = netns_path(entry["namespace"]).stat().st_ino
                key = (inode, int(entry["number"]))
                queue = self._queues.pop(key, None) or HeldQueue(**entry)
                queue.delay_s, queue.jitter_s = entry["delay_s"], entry["jitter_s"]
                kept[key] = queue
        for queue in self._queues.values():
            queue.socket.close()
        self._queues = kept

    def wait_and_work(self, wake: int) -> None:
        """Wait for a packet, a packet's time, or a byte on `wake`; then do what is due."""
        due = [queue.due for queue in self._queues.values() if queue.due is not None]
        few = sum(queue.held for queue in self._queues.values()) <= _FEW
        go = min(due) - self._handed_s if due else None
        early = None if go is None else go - (self._lead_s if few else self._late_s)
        wait = None if early is None else max(0.0, early - time.monotonic())
        by_socket = {queue.socket: queue for queue in self._queues.values()}
        ready, _, _ = select.select([*by_socket, wake], [], [], wait)
        now = time.monotonic()
        if early is not None and go is not None and not ready:
            if wait:
                self._learn(now - early)
            while now < go:  # less than a waking takes
                now = time.monotonic()
        for source in ready:
            if isinstance(source, int):
                os.read(source, 100)
            else:
                by_socket[source].take_in(now - self._late_s)
        for queue in self._queues.values():
            self._let_go(queue)

    def _let_go(self, queue: HeldQueue) -> None:
        """Accept what is due; how long the kernel takes to hand it on is learned, too."""
        begin, held = time.monotonic(), queue.held
        queue.let_go(begin + self._handed_s)
        if queue.held < held:
            took = min(time.monotonic() - begin, _LATE_AT_MOST_S)
            self._handed_s += (took - self._handed_s) / 16

    def _learn(self, late_s: float) -> None:
        """How late this process wakes, for a time or for a packet alike: the mean and the most.

        A packet's coming is put back by the mean. A packet's going waits for a time that nine of
        ten wakings meet, since what is late is never made up for.
        """
        late_s = min(max(late_s, 0.0), _LATE_AT_MOST_S)
        self._late_s += (late_s - self._late_s) / 16
        self._lead_s += (9e-6 if late_s > self._lead_s else -1e-6) * 2


def main(lab: Lab) -> None:
    """Run until ended; SIGHUP has the list read again."""
    wake_precisely()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    changed = True

    def note_change(*_: object) -> None:
        nonlocal changed
        changed = True
        with contextlib.suppress(OSError):
            os.write(writer, b"x")

    signal.signal(signal.SIGHUP, note_change)
    delays = Delays(lab)
    said = False
    while True:
        if changed:
            changed = False
            delays.read_list()
            if not said:
                print("on", flush=True)
                said = True
        delays.wait_and_work(reader)

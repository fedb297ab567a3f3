"""Whether a hand-off is still worth waiting for, from how fast its bytes arrive. Pure.

Its client has the first token and waits for the second. A link that is known to be slow is no
fault, and gets the time that it needs; beside that the client waits no longer than the loss of a
box would have it wait, detection and reading again. A link that is no longer what it is known to
be gets no time of its own: from when it became slow, the whole wait is detection and reading again.

Nothing is sent before the box that is to write has kept room: where that came late, it and not the
link is what a hand-off was given up for, unless the link is slow as well.

Several hand-offs share a link, layer by layer where their prompts were read together: each waits
for what goes before its own last layer, too, and that counts as its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOWS_PER_DETECTION = 2.0
"""The rate now is that over half a detection time."""
SLOW_SHARE = 0.5
"""A link that carries less than this share of what it is known to carry is not what it was."""


@dataclass(frozen=True, slots=True)
class Way:
    """What is known of the way that a hand-off takes, and of reading its prompt again."""

    whole_bytes: int | None
    """Of the prompt's KV; None when the box does not say now what it holds."""
    link_bytes_per_s: float | None
    """What the link carries when all is well; None when that was never measured."""
    read_s: float | None
    """What reading the prompt again takes, behind those that wait to be read there; None when that
    was never measured."""


@dataclass(frozen=True, slots=True)
class Late:
    """What made a hand-off too late to be waited for."""

    why: str
    """In words with numbers."""
    room_s: float | None = None
    """So long after the first token the reservation was answered, where that made it late; None
    where its way did."""


def allowed_s(way: Way, left_bytes: int | None, detection_s: float) -> float:
    """How long a hand-off may keep the second token back, from the first one on.

    `left_bytes` is what was left then, of it and of those before it; None when nobody told, so all
    of it counts.
    """
    left = way.whole_bytes if left_bytes is None else left_bytes
    link_s = left / way.link_bytes_per_s if left and way.link_bytes_per_s else 0.0
    return detection_s + link_s + (way.read_s or 0.0)


class Handover:
    """What is known of one hand-off's way, on the router's clock."""

    def __init__(self, detection_s: float) -> None:
        self._detection_s = detection_s
        self._window_s = detection_s / WINDOWS_PER_DETECTION
        self._seen: deque[tuple[float, int]] = deque()
        self._moved_s: float | None = None
        """When fewer bytes were left than before."""
        self._first_token_s: float | None = None
        """When it began to keep the second token back."""
        self._left_then: int | None = None
        self._allowed_s = 0.0
        self._room_s: float | None = None
        """When the box that is to write had answered that it kept room."""
        self._slow_since_s: float | None = None
        """Since when the link carries much less than it is known to carry."""

    def first_token_came(self, now_s: float) -> None:
        """From now on it keeps the second token back."""
        self._first_token_s, self._left_then = now_s, self.left_bytes

    def room_came(self, now_s: float) -> None:
        """From now on its bytes may be sent."""
        self._room_s = now_s

    def kept_back_s(self, now_s: float) -> float:
        """How long it has kept the second token back."""
        return 0.0 if self._first_token_s is None else now_s - self._first_token_s

    def until_s(self, way: Way) -> float | None:
        """When it is given up at the latest; None before the first token.

        That only moves on, but for a link that turns out to be slow.
        """
        if self._first_token_s is None:
            return None
        now_allowed_s = allowed_s(way, self._left_then, self._detection_s)
        self._allowed_s = max(self._allowed_s, now_allowed_s)
        until_s = self._first_token_s + self._allowed_s
        if self._slow_since_s is not None:
            slow_until_s = self._slow_since_s + self._detection_s + (way.read_s or 0.0)
            until_s = min(until_s, slow_until_s)
        return until_s

    def seen(self, left_bytes: int, now_s: float) -> None:
        """So much is left until it is through, of those before it as well."""
        if not self._seen or left_bytes < self._seen[-1][1]:
            self._moved_s = now_s
        if self._first_token_s is not None:
            # What goes before it is known for certain only once it was read to its end.
            self._left_then = max(self._left_then or 0, left_bytes)
        self._seen.append((now_s, left_bytes))
        # One that is older than the window stays, so that the window is covered.
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= self._window_s:
            self._seen.popleft()

    @property
    def left_bytes(self) -> int | None:
        """What was left when it was last told."""
        return self._seen[-1][1] if self._seen else None

    def bytes_per_s(self) -> float | None:
        """What arrives now; None before it was watched for a window."""
        if not self._seen:
            return None
        (began_s, first), (ended_s, last) = self._seen[0], self._seen[-1]
        took_s = ended_s - began_s
        return max(0, first - last) / took_s if took_s >= self._window_s else None

    def not_committed(self, now_s: float) -> Late:
        """Its time is over, and nobody said that it is through."""
        kept_s, room_late_s = self.kept_back_s(now_s), self._room_late_s()
        why = f"it was not committed within {kept_s:.1f} s"
        # When it would have been through, had it had room at once, is not known here.
        return Late(why, room_late_s if room_late_s > kept_s / 2 else None)

    def _room_late_s(self) -> float:
        """How long a second token was kept back for want of room, 0 where the link is slow."""
        first_token_s, room_s = self._first_token_s, self._room_s
        if first_token_s is None or room_s is None or self._slow_since_s is not None:
            return 0.0
        return max(0.0, room_s - first_token_s)

    def look(self, way: Way, now_s: float) -> Late | None:
        """What makes it not worth waiting for; None while it is."""
        first_token_s = self._first_token_s
        if first_token_s is None or self._moved_s is None or self.left_bytes == 0:
            return None  # nothing is known, or all is there and only the commit is to come
        still_s = now_s - max(self._moved_s, first_token_s)
        if still_s >= self._detection_s:
            return Late(f"not a byte of it arrived for {still_s:.1f} s")
        rate, left = self.bytes_per_s(), self._seen[-1][1]
        # Before the first token nothing may have been there to send; standing still is above.
        if not rate or self._seen[0][0] < first_token_s:
            return None
        self._judge_link(way.link_bytes_per_s, rate)
        until_s, ends_s = self.until_s(way), now_s + left / rate
        if until_s is None or ends_s <= until_s:
            return None
        told = f"{left / 1e6:.3g} MB are left and {rate / 1e6:.3g} MB arrive a second"
        allowed, room_late_s = f"the {until_s - first_token_s:.1f} s", self._room_late_s()
        if ends_s - room_late_s <= until_s:
            return Late(f"{told}, which ends after {allowed} that it may take", room_late_s)
        return Late(f"{told}, too slow for {allowed} that it may take")

    def _judge_link(self, known: float | None, rate: float) -> None:
        """Since when the link is slower than it should be."""
        if known is None or rate >= SLOW_SHARE * known:
            self._slow_since_s = None
        elif self._slow_since_s is None:
            self._slow_since_s = self._seen[0][0]

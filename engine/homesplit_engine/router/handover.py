"""Whether a hand-off is still worth waiting for, from how fast its bytes arrive. Pure.

Its client has the first token and waits for the second. It waits no longer than the loss of a
box would have it wait, detection and reading again, unless the link is known to need more.
"""

from __future__ import annotations

from collections import deque

SLOWER = 2.0
"""Times what the link is known to need that a hand-off may take."""
READINGS, UNKNOWN_READINGS = 8.0, 4.0
"""Times the reading of the prompt that a hand-off may take at most; over an unknown link."""
WINDOWS_PER_DETECTION = 2.0
"""The rate now is that over half a detection time."""


def allowed_s(expected_s: float | None, read_s: float | None, detection_s: float) -> float | None:
    """How long a hand-off may keep the second token back, from the first one on.

    `expected_s` is what the link is known to need, `read_s` what reading the prompt again takes.
    None when neither is known.
    """
    if read_s is None:
        return None if expected_s is None else max(detection_s, SLOWER * expected_s)
    if expected_s is None:
        return detection_s + UNKNOWN_READINGS * read_s
    wanted_s = max(detection_s + read_s, SLOWER * expected_s)
    return min(wanted_s, detection_s + READINGS * read_s)


class Handover:
    """What is known of one hand-off's way, on the router's clock."""

    def __init__(self, detection_s: float) -> None:
        self._detection_s = detection_s
        self._window_s = detection_s / WINDOWS_PER_DETECTION
        self._seen: deque[tuple[float, int]] = deque()
        self._moved_s: float | None = None
        """When fewer bytes were left than before."""

    def seen(self, left_bytes: int, now_s: float) -> None:
        """So much is left."""
        if not self._seen or left_bytes < self._seen[-1][1]:
            self._moved_s = now_s
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

    def hopeless(self, now_s: float, first_token_s: float, allowed: float | None) -> str | None:
        """Why it is not worth waiting for, in words with numbers; None while it is."""
        if self._moved_s is None or self.left_bytes == 0:
            return None  # nothing is known, or all is there and only the commit is to come
        still_s = now_s - max(self._moved_s, first_token_s)
        if still_s >= self._detection_s:
            return f"not a byte of it arrived for {still_s:.1f} s"
        rate, left = self.bytes_per_s(), self._seen[-1][1]
        # Before the first token nothing may have been there to send; standing still is above.
        if not rate or allowed is None or self._seen[0][0] < first_token_s:
            return None
        needs_s = left / rate
        if now_s + needs_s - first_token_s <= allowed:
            return None
        told = f"{left / 1e6:.3g} MB are left and {rate / 1e6:.3g} MB arrive a second"
        return f"{told}, too slow for the {allowed:.1f} s that it may take"

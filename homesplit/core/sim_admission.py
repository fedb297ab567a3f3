"""Whom the router lets in, in the simulator: the engine's own judges over the simulated queue."""

from __future__ import annotations

from collections.abc import Mapping

from homesplit_engine.records import ModeSetting
from homesplit_engine.router.overload import Overload
from homesplit_engine.router.pressure import MIN_SAMPLES, Pressure

from homesplit.core.load import LoadPlan
from homesplit.core.sim_worker import SimWorker

SURE_SHARE = 0.8
"""As the router's: let in when the expected wait is within this share of the limit."""
FIRST_TOKEN_S = 60.0
"""As the router's settings have it: nobody is let in to wait longer."""
DEPLOYED_TTFT_S = 1.0
"""As the router's settings have it: by this target a queue counts as standing, unless the requests
name a shorter one."""


class SimAdmission:
    """Refuses whom waiting could only disappoint, once a queue stands; nobody without a target."""

    def __init__(
        self, ttft_target_s: float | None, *, prompt_tokens: float = 0.0, read_s: float = 0.0
    ) -> None:
        """`ttft_target_s` is what the requests name.

        A router that serves has measured how fast its boxes read: so many prompt tokens in so
        many seconds.
        """
        self._target_s = ttft_target_s
        self._overload = Overload(DEPLOYED_TTFT_S)
        self._pressure = Pressure()
        self._waiting: dict[int, tuple[float, int]] = {}
        self._tokens = 0
        if prompt_tokens > 0 and read_s > 0:
            for turn in range(-MIN_SAMPLES, 0):
                self._pressure.learn(
                    received_s=turn * read_s,
                    prompt_tokens=round(prompt_tokens),
                    now_s=(turn + 1) * read_s,
                )

    def lets_in(self, number: int, prompt_tokens: int, now_s: float) -> bool:
        """Judge a request that came now; one that is let in waits until `first_token`."""
        if self._target_s is None:
            return True
        if self._hopeless(prompt_tokens, now_s):
            return False
        self._waiting[number] = (now_s, prompt_tokens)
        self._tokens += prompt_tokens
        return True

    def _hopeless(self, prompt_tokens: int, now_s: float) -> bool:
        if not self._tokens:
            self._pressure.nobody_waits(now_s)
        wait_s = self._pressure.wait_s(self._tokens + prompt_tokens)
        if wait_s is None:
            return False
        ahead_s = self._pressure.wait_s(self._tokens) or 0.0
        alone_s = self._pressure.wait_s(prompt_tokens) or 0.0
        target_s = self._overload.limit_s(
            ahead_s, alone_s, now_s, waiting=len(self._waiting), own_s=self._target_s
        )
        limit_s = FIRST_TOKEN_S if target_s is None else min(FIRST_TOKEN_S, target_s)
        return bool(self._tokens) and wait_s > SURE_SHARE * limit_s

    def first_token(self, number: int, now_s: float) -> None:
        """A request no longer waits: its first token is out, or it has ended without one."""
        known = self._waiting.pop(number, None)
        if known is None:
            return
        received_s, tokens = known
        self._tokens -= tokens
        if self._waiting:
            # Nobody behind it would tell nothing of a queue.
            self._pressure.learn(received_s=received_s, prompt_tokens=tokens, now_s=now_s)


def admission(
    setting: ModeSetting,
    workers: Mapping[str, SimWorker],
    load: LoadPlan,
    ttft_target_s: float | None,
) -> SimAdmission:
    """The router's judges, who know how fast the boxes that read do so."""
    if ttft_target_s is None or not load.requests:
        return SimAdmission(None)
    mean = sum(r.prompt_tokens for r in load.requests) / len(load.requests)
    only = setting.prefill_box if setting.mode == "split" else None
    reading = [box for name, box in workers.items() if only in (None, name)]
    rate = sum(1.0 / box.cost.step_seconds([(0, round(mean))], 0, 0) for box in reading)
    return SimAdmission(ttft_target_s, prompt_tokens=mean, read_s=1.0 / rate)

"""Prompts in the simulator, token by token where boxes may have read their beginnings before."""

from __future__ import annotations

from homesplit_engine.request import Request

from homesplit.core.counted_blocks import PrefixNames
from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.scene import BLOCK_TOKENS
from homesplit.core.sim_flight import Flight


class Prompts:
    """What the engine is given of each prompt; only its length where nothing is `shared`."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._names = PrefixNames(BLOCK_TOKENS)

    def write(self, flight: Flight) -> None:
        """Its tokens and the names of its blocks, as far as anyone looks for them."""
        if not self._shared:
            return
        runs = _runs(flight.offered)
        flight.tokens = []
        for value, count in runs:
            flight.tokens += [value] * count
        flight.hashes = self._blocks(flight.offered, runs)

    def names(self, request: OfferedRequest) -> list[bytes]:
        """Of the full blocks of its prompt and answer, in order."""
        return self._blocks(request, _runs(request))

    def _blocks(self, request: OfferedRequest, runs: list[tuple[int, int]]) -> list[bytes]:
        # Answers are zeros here, so that their blocks are known beforehand too.
        return self._names.of_runs([*runs, (0, request.output_tokens)])

    def request(self, flight: Flight, chunk_tokens: int | None, now_s: float) -> Request:
        """The engine's own request for it."""
        return Request(
            request_id=str(flight.offered.id),
            tokens=list(flight.tokens) if self._shared else [0] * flight.prompt_tokens,
            hashes=flight.hashes,
            prompt_tokens=flight.prompt_tokens,
            max_tokens=flight.offered.output_tokens,
            arrived_s=now_s,
            deadline_s=float("inf"),
            chunk_tokens=chunk_tokens,
        )


def have_prefixes(load: LoadPlan) -> bool:
    """Whether prompts of the load may begin alike."""
    return any(
        len(request.prompt) > 1 or request.shared_group is not None for request in load.requests
    )


def _runs(request: OfferedRequest) -> list[tuple[int, int]]:
    """The prompt's tokens, as (value, how many in a row)."""
    found: list[tuple[int, int]] = []
    replies = list(request.replies)
    for part in request.prompt:
        found.append((part.seed & 0x7FFFFFFF, part.tokens))
        if replies and part.seed + 1 == replies[0].seed:
            # The engine's own answers are what is cached, and the model writes zeros.
            found.append((0, replies.pop(0).tokens))
    return found

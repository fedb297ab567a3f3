"""Where requests are placed in the simulator: the engine's own policy, asked as the router asks."""

from __future__ import annotations

from homesplit_engine.policy import BoxView, Decision, Question, decide, resume
from homesplit_engine.records import ModeSetting

from homesplit.core.scene import BLOCK_TOKENS, Scene
from homesplit.core.sim_boxes import SimBoxes
from homesplit.core.sim_flight import Flight, Held
from homesplit.core.sim_worker import SimWorker


class SimPolicy:
    """Asks the policy with what the router knows by then, and has measured."""

    def __init__(self, scene: Scene, setting: ModeSetting, boxes: SimBoxes) -> None:
        self._setting = setting
        self._workers = boxes.workers
        self._board = boxes.board
        self._rates = {pair: wire.bytes_per_s for pair, wire in scene.wires.items()}
        self._kv_bytes_per_token = scene.shape.kv_bytes_per_token(scene.kv_dtype)
        self._alike: dict[bool, Decision] = {}
        self._turn = 0

    def place(self, flight: Flight) -> Decision:
        """Who reads its prompt and who writes its answer."""
        self._turn += 1
        question = Question(
            prompt_tokens=flight.prompt_tokens,
            max_tokens=flight.offered.output_tokens,
            kv_bytes_per_token=self._kv_bytes_per_token,
        )
        if self._setting.mode not in ("colocated", "split"):
            made = decide(
                self._setting, self._views(flight), self._rates, question, self._turn, told=False
            )
            assert made is not None
            return made
        # These place every request alike, whatever is under way, but for answers of one token.
        short = question.max_tokens <= 1
        known = self._alike.get(short)
        if known is None:
            views = [BoxView(box=name) for name in self._workers]
            known = decide(self._setting, views, self._rates, question, self._turn)
            assert known is not None
            self._alike[short] = known
        return known

    def elsewhere(self, flight: Flight, avoid: str | None = None) -> Decision:
        """Where one goes on that lost its place; on the box to `avoid` only where it must."""
        made = resume(self._setting, self._views(flight), "", avoid)
        assert made is not None
        return made

    def read_again_s(self, flight: Flight) -> float:
        """What its prompt would wait and be read for where it would go on now."""
        name = self.elsewhere(flight).prefill_box
        tokens = self._board.held[name].unread_tokens + flight.prompt_tokens
        return tokens / self._workers[name].reading_rate(flight.prompt_tokens)

    def _views(self, asking: Flight) -> list[BoxView]:
        """The boxes as the router knows them when `asking` is to be placed."""
        return [self._view(name, held, asking) for name, held in self._board.held.items()]

    def _view(self, name: str, held: Held, asking: Flight) -> BoxView:
        box, rated = self._workers[name], self._setting.mode == "auto"
        return BoxView(
            box=name,
            requests=held.requests,
            decoding=held.writing,
            pending_prefill_tokens=held.unread_tokens,
            cached_tokens=_cached(box, asking),
            handing_over_tokens=held.handing_over_tokens,
            free_tokens=box.scheduler.pool.blocks_available * BLOCK_TOKENS,
            prefill_tokens_per_s=box.reading_rate(asking.prompt_tokens) if rated else None,
            decode_step_s=_writing_step_s(box, held) if rated else None,
        )


def _cached(box: SimWorker, asking: Flight) -> int:
    """Leading tokens of a prompt that a box holds; the last one is always computed."""
    if not asking.hashes:
        return 0
    whole = asking.hashes[: (asking.prompt_tokens - 1) // BLOCK_TOKENS]
    return len(box.scheduler.pool.match(whole)) * BLOCK_TOKENS


def _writing_step_s(box: SimWorker, held: Held) -> float:
    """A step with what the box writes now, over the contexts of what is under way."""
    context = held.context_tokens / held.known if held.known else 0.0
    batch = max(1, held.writing)
    return box.cost.step_seconds([], batch, int(batch * context))

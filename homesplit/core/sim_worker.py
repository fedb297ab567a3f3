"""One worker in the simulator: the engine's own scheduler, and steps that only take their time.

Stretches of steps in which a box only writes answers, or reads chunk after chunk of one prompt
beside them, are taken in one leap; an event that comes meanwhile ends the leap after the step it
falls into, as it would have in service.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from homesplit_engine.pages import BlockPool, blocks_for
from homesplit_engine.request import Phase, Request
from homesplit_engine.scheduler import Limits, PrefillWork, Scheduler, StepOutcome, StepPlan

from homesplit.core.cost import StepClock
from homesplit.core.counted_blocks import CountedBlocks
from homesplit.core.scene import BLOCK_TOKENS, MAX_BATCH, MAX_STEP_TOKENS, MAX_WAITING, SimBox
from homesplit.core.sim_flight import Flight

_MOST_BLOCKS = 20_000
_NOTHING = StepOutcome()


class SimWorker:
    """One worker: its scheduler and the step (or leap of steps) in flight."""

    def __init__(
        self, box: SimBox, *, longest: int, prefix_cache: bool, leaps: bool = True
    ) -> None:
        """Without `leaps` every step is taken for itself, which takes longer and gives the same."""
        room = max(1, box.kv_tokens // BLOCK_TOKENS)
        most = max(_MOST_BLOCKS, 8 * blocks_for(longest, BLOCK_TOKENS))
        blocks = min(room, most)
        pool = (
            BlockPool(blocks, BLOCK_TOKENS) if prefix_cache else CountedBlocks(blocks, BLOCK_TOKENS)
        )
        limits = Limits(
            max_batch_requests=MAX_BATCH,
            max_step_tokens=MAX_STEP_TOKENS,
            max_waiting=MAX_WAITING,
            max_context=longest,
        )
        self.name = box.name
        self.cost = StepClock(box.cost)
        self._rates: dict[int, float] = {}
        self.together = box.together
        self.leaps = leaps
        self.sending = 1.0
        """How many times as long a step takes of which KV is being sent."""
        self.handing = 0
        """Tokens of the prompt in flight whose KV is being sent while it is read; else 0."""
        self.scheduler = Scheduler(pool, limits)
        self.plan: StepPlan | None = None
        self.start_s = 0.0
        self.end_s = 0.0
        self.steps = 1
        self.first_s = 0.0
        self.growth_s = 0.0
        self.ends_s: list[float] = []
        """When each step of a leap over chunks ends; empty in any other step or leap."""
        self.told_s: list[float] = []
        """When the tokens of each step that wrote any left the router."""
        self._joining: list[Flight] = []
        self._rest = 0
        """Tokens of a prompt's last piece, where this leap over chunks ends with it; else 0."""
        self._left = 0
        """Steps until the first answer of the batch ends."""
        self._changed = True
        """Whether the batch is another one than `_left` was counted for."""

    def reading_rate(self, prompt_tokens: int) -> float:
        """Tokens per second, as the router would have measured them by now."""
        known = self._rates.get(prompt_tokens)
        if known is None:
            took_s = self.cost.step_seconds([(0, prompt_tokens)], 0, 0)
            known = self._rates[prompt_tokens] = prompt_tokens / max(took_s, 1e-9)
        return known

    def fill(self, hashes: Sequence[bytes]) -> None:
        """It holds this prefix, in no use, as the newest that it was given."""
        pool = self.scheduler.pool
        known = pool.match(hashes)
        fresh = len(hashes) - len(known)
        if fresh > pool.available_beside(known):
            return
        pool.take(known)
        blocks = known + pool.allocate(fresh, after=known[-1] if known else None)
        for block, value in zip(blocks, hashes, strict=True):
            pool.remember(block, value)
        pool.release(blocks)

    def joins(self, flight: Flight) -> None:
        """Its answer is written here from the next step on."""
        self._joining.append(flight)
        self._changed = True

    def cancel(self, request_id: str) -> None:
        """As the scheduler's; a step that it is in goes on without it."""
        self.scheduler.cancel(request_id)
        self.scheduler.handoff_ended(request_id)
        # Nobody may be taken for going on unseen.
        self._left, self._changed = 0, True

    def begin(self, now_s: float, *, beside: bool, opening: float = 0.0) -> bool:
        """Start the next step or leap, perhaps beside the other box's; False when there is none.

        `opening` is the share of the computing that KV which comes here takes.
        """
        plan = self.scheduler.schedule(now_s)
        self.plan = plan
        self.handing = 0
        if plan is None:
            return False
        for work in plan.prefill:
            if work.request.hand_over:
                self.handing = work.request.prompt_tokens
        for flight in self._joining:
            flight.written_s, flight.written_from = self.told_s, len(self.told_s)
        self._joining.clear()
        if plan.decode and (self._changed or plan.preempted):
            ends = [r.max_tokens + r.prompt_tokens - len(r.tokens) for r in plan.decode]
            self._left, self._changed = min(ends), False
        batch, context = len(plan.decode), plan.context_tokens
        pieces = [(work.start, work.tokens) for work in plan.prefill]
        self.start_s = now_s
        self.ends_s = []
        self._rest = 0
        self.growth_s = 0.0
        slower = self.together if beside else 1.0
        if self.handing > 0:
            slower *= self.sending
        if opening > 0.0:
            slower /= 1.0 - opening
        if pieces:
            chunks = self._chunks_ahead(plan)
            if chunks > 1:
                return self._over_chunks(plan, chunks, slower)
        self.first_s = self.cost.step_seconds(pieces, batch, context)
        self.steps = 1 if pieces else self._leap_length(plan)
        if self.steps > 1:
            last = self.cost.step_seconds([], batch, context + batch * (self.steps - 1))
            self.growth_s = (last - self.first_s) / (self.steps - 1)
        if slower != 1.0:
            self.first_s *= slower
            self.growth_s *= slower
        self.end_s = now_s + self.after(self.steps)
        return True

    def _chunks_ahead(self, plan: StepPlan) -> int:
        """Steps from this one on that each read a chunk of the same prompt.

        Who waits changes nothing about them, but would share the last one's step; an answer that
        ends would change them, and so would others who may find what was read.
        """
        work = plan.prefill[0]
        request, pool = work.request, self.scheduler.pool
        if work.last or len(plan.prefill) > 1 or pool.prefix_cache or not self.leaps:
            return 1
        if work.tokens != request.chunk_tokens:
            return 1
        steps, rest = divmod(request.uncomputed - 1, work.tokens)
        ends = self.scheduler.waiting == 0 and self.scheduler.prefilling == 1
        if not plan.decode:
            self._rest = rest + 1 if ends else 0
            return steps + ends
        found = min(steps + ends, self._left - 1)
        if found <= 1 or not self._has_blocks(plan, found):
            return 1
        self._rest = rest + 1 if found > steps else 0
        return found

    def _over_chunks(self, plan: StepPlan, steps: int, slower: float) -> bool:
        """Start a leap over so many chunks of one prompt, beside the answers of the plan."""
        work, batch, context = plan.prefill[0], len(plan.decode), plan.context_tokens
        ends_s, at_s, start, tokens = self.ends_s, self.start_s, work.start, work.tokens
        last = steps if self._rest else 0
        for step in range(1, steps + 1):
            piece = (start, self._rest if step == last else tokens)
            took_s = self.cost.step_seconds([piece], batch, context)
            at_s += took_s if slower == 1.0 else took_s * slower
            ends_s.append(at_s)
            start, context = start + tokens, context + batch
        self.steps, self.end_s = steps, at_s
        return True

    def after(self, steps: int) -> float:
        """Seconds from the start to the end of so many steps of this leap."""
        return steps * self.first_s + self.growth_s * steps * (steps - 1) / 2.0

    def _leap_length(self, plan: StepPlan) -> int:
        """Steps until the first answer ends, or 1 where blocks are short."""
        steps = self._left if self.leaps else 1
        return steps if steps > 1 and self._has_blocks(plan, steps) else 1

    def _has_blocks(self, plan: StepPlan, steps: int) -> bool:
        """Whether so many steps of these answers find all blocks that they need."""
        pool = self.scheduler.pool
        if len(plan.decode) * (steps // pool.block_tokens + 1) <= pool.blocks_available:
            return True
        return self._more_blocks(plan, steps) <= pool.blocks_available

    def _more_blocks(self, plan: StepPlan, steps: int) -> int:
        """Blocks that the answers take beyond theirs until the last of so many steps."""
        size = self.scheduler.pool.block_tokens
        return sum(
            max(0, blocks_for(len(request.tokens) + steps, size) - len(request.blocks))
            for request in plan.decode
        )

    def make_way(self, tokens: int, now_s: float) -> None:
        """Before others take room for so many tokens: a leap that needed it ends with this step."""
        plan, pool = self.plan, self.scheduler.pool
        if plan is None or self.steps <= 1:
            return
        size, left = (
            pool.block_tokens,
            pool.blocks_available - blocks_for(tokens, pool.block_tokens),
        )
        if len(plan.decode) * (self.steps // size + 1) <= left:
            return
        if self._more_blocks(plan, self.steps) <= left:
            return
        self.interrupt(now_s)
        for request in plan.decode:
            self._grow(request, len(request.tokens) + self.steps - 1)

    def _grow(self, request: Request, known: int) -> None:
        """The blocks of so many tokens."""
        blocks, pool = request.blocks, self.scheduler.pool
        if known > len(blocks) * pool.block_tokens:
            more = blocks_for(known, pool.block_tokens) - len(blocks)
            blocks += pool.allocate(more, after=blocks[-1])

    def let_wait(self, now_s: float) -> None:
        """Someone waits from now on: chunks that fill their step go on, but for the last one."""
        if not self.ends_s:
            self.interrupt(now_s)
        elif self._rest and self.steps > 1 and now_s <= self.ends_s[-2]:
            self._cut_chunks(self.steps - 1)

    def interrupt(self, now_s: float) -> bool:
        """Cut a leap at the end of the step that `now_s` falls into; True when it was cut."""
        if self.plan is None or self.steps <= 1 or now_s >= self.end_s:
            return False
        if self.ends_s:
            return self._cut_chunks(bisect_left(self.ends_s, now_s) + 1)
        low, high = 1, self.steps
        while low < high:
            middle = (low + high) // 2
            if self.start_s + self.after(middle) >= now_s:
                high = middle
            else:
                low = middle + 1
        if low == self.steps:
            return False
        self.steps = low
        self.end_s = self.start_s + self.after(low)
        return True

    def _cut_chunks(self, steps: int) -> bool:
        if steps >= self.steps:
            return False
        del self.ends_s[steps:]
        self.steps, self.end_s, self._rest = steps, self.ends_s[-1], 0
        return True

    def pieces(self, work: PrefillWork) -> list[tuple[int, float, float]]:
        """What each step of this leap read of a prompt: tokens, and the step's start and end."""
        if not self.ends_s:
            return [(work.tokens, self.start_s, self.end_s)]
        each = self.plan.prefill[0].tokens if self.plan else work.tokens
        found: list[tuple[int, float, float]] = []
        start_s = self.start_s
        for end_s in self.ends_s:
            found.append((each, start_s, end_s))
            start_s = end_s
        if self._rest:
            found[-1] = (self._rest, *found[-1][1:])
        return found

    def read(self, plan: StepPlan) -> tuple[PrefillWork, ...]:
        """What the step or leap has read of prompts; a leap over chunks as one piece."""
        if not self.ends_s:
            return plan.prefill
        work, rest = plan.prefill[0], self._rest
        tokens = work.tokens * (self.steps - 1) + (rest or work.tokens)
        return (PrefillWork(request=work.request, start=work.start, tokens=tokens, last=rest > 0),)

    def finish(self, plan: StepPlan, read: tuple[PrefillWork, ...]) -> StepOutcome:
        """Take in the step or leap, which has `read` so much: the scheduler must act on that.

        An answer that goes on only grows by its tokens, which needs nobody's decision.
        """
        ending: Sequence[Request] = ()
        if self.steps < self._left:
            self._write_on(plan.decode)
        elif plan.decode:
            ending = self._write_last(plan.decode)
            self._changed = True
        if plan.decode:
            self._left -= self.steps
        if not ending and not read:
            return _NOTHING
        sampled = {request.request_id: 0 for request in ending}
        for work in read:
            if work.last:
                sampled[work.request.request_id] = 0
        left = plan
        if len(ending) < len(plan.decode) or self.steps > 1:
            left = StepPlan(step=plan.step, prefill=read, decode=tuple(ending))
        return self.scheduler.finish_step(left, sampled, now_s=self.end_s)

    def _write_on(self, decode: Sequence[Request]) -> None:
        """Tokens for answers that all go on after this step or leap."""
        steps = self.steps
        if steps == 1:
            for request in decode:
                request.tokens.append(0)
                request.computed += 1
            return
        size, grown = self.scheduler.pool.block_tokens, [0] * steps
        for request in decode:
            tokens = request.tokens
            tokens += grown
            request.computed += steps
            if len(tokens) - 1 > len(request.blocks) * size:
                self._grow(request, len(tokens) - 1)

    def _write_last(self, decode: Sequence[Request]) -> list[Request]:
        """The same where some end: those are given back, before their last token."""
        steps, ahead, size = self.steps, self.steps - 1, self.scheduler.pool.block_tokens
        grown, grown_before = [0] * steps, [0] * ahead
        ending: list[Request] = []
        for request in decode:
            if request.phase is Phase.ENDED:
                ending.append(request)
                continue
            tokens = request.tokens
            known = len(tokens) + ahead
            if known > len(request.blocks) * size:
                self._grow(request, known)
            if known + 1 < request.prompt_tokens + request.max_tokens:
                tokens += grown
                request.computed += steps
            else:
                tokens += grown_before
                request.computed += ahead
                ending.append(request)
        return ending

    def tell(self, plan: StepPlan, back_s: float) -> float:
        """Note when the tokens of the step or leap are out; the last one's moment."""
        last_s = self.end_s + back_s
        if plan.decode:
            if self.steps > 1:
                self.told_s += self.before_last(back_s)
            self.told_s.append(last_s)
        return last_s

    def before_last(self, back_s: float) -> list[float]:
        """When the tokens of a leap's steps but the last are out."""
        if self.ends_s:
            return [end_s + back_s for end_s in self.ends_s[:-1]]
        began_s, each_s, half_s = self.start_s + back_s, self.first_s, self.growth_s / 2.0
        return [began_s + i * (each_s + half_s * (i - 1)) for i in range(1, self.steps)]

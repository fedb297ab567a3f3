"""Which requests will be offered, when and of what kind: fixed before the first is sent.

The same workload, seed and length give the same plan for every mode and every server.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from homesplit.core.arrivals import send_times
from homesplit.core.prng import Prng
from homesplit.core.workload import LengthClass, Workload

MAX_REQUESTS = 200_000
"""More than one process can send in a day here; a plan beyond it is a slip of the pen."""

MAX_BURSTINESS = 20.0
"""Beyond it nearly all requests come at one moment."""

_LENGTHS, _TIMES, _PROMPTS, _CANCEL, _THINK = range(5)


class PromptPart(Struct, frozen=True, kw_only=True):
    """`tokens` tokens of made-up text from `seed`: equal parts are equal text."""

    seed: int
    tokens: int


class OfferedRequest(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One request as it will be offered.

    `send_at_s` counts from the start of the run; None means `pause_s` after request `after`
    has ended (closed loop and conversations), or at once where `after` is None too.
    """

    id: int
    class_: str
    prompt: tuple[PromptPart, ...]
    output_tokens: int
    send_at_s: float | None = None
    after: int | None = None
    pause_s: float = 0.0
    user: int | None = None
    """Closed loop: whose request it is."""
    conversation: int | None = None
    turn: int = 0
    replies: tuple[PromptPart, ...] = ()
    """What the assistant is made to have said in the earlier turns; fixed, not the server's own
    answers, so that every server gets the same requests."""
    shared_group: int | None = None
    """The group of requests whose prompts begin alike; None when nothing is shared."""
    cancel_after_s: float | None = None
    """The user closes the connection this long after sending; None stays to the end."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt with the earlier turns, before any chat template."""
        if len(self.prompt) == 1 and not self.replies:
            return self.prompt[0].tokens
        return sum(p.tokens for p in self.prompt) + sum(p.tokens for p in self.replies)


class LoadPlan(Struct, frozen=True, kw_only=True):
    """All requests of one run and how long requests are offered."""

    workload: str
    seed: int
    seconds: float
    closed: bool
    requests: tuple[OfferedRequest, ...]
    notes: tuple[str, ...] = ()
    speed: float | None = None
    """How many times as fast as it was recorded; None of a load that was drawn."""


class Extent(Struct, frozen=True, kw_only=True):
    """A load that ends: a prediction is then of these requests, not of a load that goes on."""

    seconds: float
    """How long requests are offered."""
    seed: int
    each: int | None = None
    """Closed loop: only the first so many conversations of each user."""


def bounded_load(workload: Workload, extent: Extent) -> LoadPlan:
    """The requests of a load that ends; raises ValueError on impossible settings."""
    load = plan_load(workload, seed=extent.seed, seconds=extent.seconds, each=extent.each)
    if not load.requests:
        raise ValueError(f"no request comes within {extent.seconds:g} s")
    return load


def plan_load(
    workload: Workload, *, seed: int, seconds: float, each: int | None = None
) -> LoadPlan:
    """The requests of `workload` during `seconds`; raises ValueError on impossible settings.

    `each` keeps the first so many conversations of every user of a closed loop.
    """
    _check(workload, seconds)
    rng = Prng(seed)
    if workload.arrivals.kind == "closed":
        requests = _closed_loop(workload, rng, seconds, each)
    else:
        requests = _open_loop(workload, rng, seconds)
    return LoadPlan(
        workload=workload.name,
        seed=seed,
        seconds=seconds,
        closed=workload.arrivals.kind == "closed",
        requests=requests,
    )


def with_load(
    workload: Workload,
    *,
    rate_requests_per_s: float | None = None,
    users: int | None = None,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
) -> Workload:
    """The workload with another offered load or other targets where given."""
    arrivals, targets = workload.arrivals, workload.targets
    if users is not None:
        arrivals = replace(arrivals, kind="closed", users=users)
    if rate_requests_per_s is not None:
        arrivals = replace(arrivals, kind="open", rate_requests_per_s=rate_requests_per_s)
    if ttft_s is not None:
        targets = replace(targets, ttft_s=ttft_s)
    if tpot_s is not None:
        targets = replace(targets, tpot_s=tpot_s)
    return replace(workload, arrivals=arrivals, targets=targets)


def _check(workload: Workload, seconds: float) -> None:
    if not 0 < seconds < float("inf"):
        raise ValueError("a run needs a length above 0 seconds")
    if not workload.classes:
        raise ValueError(f"workload {workload.name} has no class of requests")
    for kind in workload.classes:
        if not 1 <= kind.prompt_tokens_low <= kind.prompt_tokens_high:
            raise ValueError(f"class {kind.name}: prompt tokens must be 1 or more, low to high")
        if not 1 <= kind.output_tokens_low <= kind.output_tokens_high:
            raise ValueError(f"class {kind.name}: output tokens must be 1 or more, low to high")
    if not 0 <= workload.cancel_share <= 1:
        raise ValueError("the share of users who cancel must lie between 0 and 1")
    if workload.turns < 1:
        raise ValueError("a conversation has at least one turn")
    if workload.shared_prefix_tokens < 0 or workload.shared_prefix_groups < 1:
        raise ValueError("a shared prefix has 0 or more tokens and at least one group")
    if workload.cancel_share and not 0 < workload.cancel_after_s < float("inf"):
        raise ValueError("users who give up need a patience above 0 seconds")
    arrivals = workload.arrivals
    if not 0 <= arrivals.burstiness <= MAX_BURSTINESS:
        raise ValueError(f"the burstiness must lie between 0 and {MAX_BURSTINESS:g}")
    if not 0 <= arrivals.think_s < float("inf"):
        raise ValueError("a think time must be 0 or more seconds")
    ramp_to = arrivals.ramp_to_requests_per_s
    if arrivals.pattern == "ramp" and ramp_to is not None and not 0 < ramp_to < float("inf"):
        raise ValueError("a ramp needs a rate above 0 at its end")
    if arrivals.kind == "closed" and (arrivals.users is None or arrivals.users < 1):
        raise ValueError("a closed loop needs at least one user")
    if arrivals.kind == "open" and (arrivals.rate_requests_per_s or 0) * seconds > MAX_REQUESTS:
        raise ValueError(f"more than {MAX_REQUESTS} requests in one run are not supported")


def _open_loop(workload: Workload, rng: Prng, seconds: float) -> tuple[OfferedRequest, ...]:
    """Conversations start at fixed times; each turn follows its predecessor's answer."""
    times = send_times(workload.arrivals, seconds=seconds, rng=rng.fork(_TIMES))
    requests: list[OfferedRequest] = []
    for conversation, moment in enumerate(times):
        turns = _conversation(workload, rng, conversation, first_id=len(requests))
        requests.append(replace(turns[0], send_at_s=moment))
        requests.extend(turns[1:])
    return tuple(requests)


def _closed_loop(
    workload: Workload, rng: Prng, seconds: float, each: int | None
) -> tuple[OfferedRequest, ...]:
    """Each user's requests one after the other; more than a run can use, the rest is not sent."""
    users = workload.arrivals.users or 1
    chats = min(max(8, int(seconds * 20 / workload.turns)), MAX_REQUESTS // users + 1, 2000)
    requests: list[OfferedRequest] = []
    for user in range(users):
        think = rng.fork(_THINK, user)
        last: int | None = None
        for number in range(chats if each is None else min(chats, each)):
            pause_s = _pause(think, workload.arrivals.think_s)
            label = user * chats + number
            for turn in _conversation(workload, rng, label, first_id=len(requests)):
                after, pause = (last, pause_s) if turn.turn == 0 else (turn.after, turn.pause_s)
                # Users don't all ask in the same instant: the first question waits its think time.
                requests.append(replace(turn, user=user, after=after, pause_s=pause))
                last = turn.id
    return tuple(requests)


def _pause(rng: Prng, mean_s: float) -> float:
    """A think time spread evenly over 0.5 to 1.5 times its mean."""
    return mean_s * (0.5 + rng.uniform()) if mean_s > 0 else 0.0


def _conversation(
    workload: Workload, rng: Prng, conversation: int, *, first_id: int
) -> list[OfferedRequest]:
    """All turns of one conversation; each turn's prompt repeats the earlier ones."""
    lengths = rng.fork(_LENGTHS, conversation)
    kind = workload.classes[lengths.weighted([c.share for c in workload.classes])]
    cancel, think = rng.fork(_CANCEL, conversation), rng.fork(_THINK, 1 << 32, conversation)
    shared, group = _shared(workload, rng, conversation)
    prompt: tuple[PromptPart, ...] = shared
    replies: tuple[PromptPart, ...] = ()
    turns: list[OfferedRequest] = []
    for turn in range(workload.turns):
        prompt_tokens, output_tokens = _drawn(kind, lengths)
        if turn == 0:
            whole = workload.first_prompt_tokens(prompt_tokens)
            prompt_tokens = whole - workload.shared_prefix_tokens
        seed = rng.fork(_PROMPTS, conversation, turn).bits()
        prompt = (*prompt, PromptPart(seed=seed, tokens=prompt_tokens))
        turns.append(
            OfferedRequest(
                id=first_id + turn,
                class_=kind.name,
                prompt=prompt,
                output_tokens=output_tokens,
                after=first_id + turn - 1 if turn else None,
                pause_s=_pause(think, workload.turn_think_s) if turn else 0.0,
                conversation=conversation if workload.turns > 1 else None,
                turn=turn,
                replies=replies,
                shared_group=group,
                cancel_after_s=_patience(workload, cancel),
            )
        )
        replies = (*replies, PromptPart(seed=seed + 1, tokens=output_tokens))
    return turns


def _drawn(kind: LengthClass, lengths: Prng) -> tuple[int, int]:
    """Tokens of one prompt and of its answer."""
    if kind.pairs:
        prompt, output, _ = kind.pairs[lengths.weighted([weight for _, _, weight in kind.pairs])]
        return prompt, output
    prompt = lengths.integer(kind.prompt_tokens_low, kind.prompt_tokens_high)
    return prompt, lengths.integer(kind.output_tokens_low, kind.output_tokens_high)


def _shared(
    workload: Workload, rng: Prng, conversation: int
) -> tuple[tuple[PromptPart, ...], int | None]:
    """The shared beginning of this conversation's prompts and its group."""
    if workload.shared_prefix_tokens <= 0:
        return (), None
    group = rng.fork(_PROMPTS, 1 << 40, conversation).below(max(1, workload.shared_prefix_groups))
    seed = rng.fork(_PROMPTS, 1 << 41, group).bits()
    return (PromptPart(seed=seed, tokens=workload.shared_prefix_tokens),), group


def _patience(workload: Workload, rng: Prng) -> float | None:
    """When this request's user gives up, None for those who stay."""
    if rng.uniform() >= workload.cancel_share:
        return None
    return rng.exponential(workload.cancel_after_s)

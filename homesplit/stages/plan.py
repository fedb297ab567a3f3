"""Works out the advice: reads what is known of boxes, link, model and load, and decides."""

from __future__ import annotations

import itertools

from msgspec import Struct, field
from msgspec.structs import replace

from homesplit.core.calibration import Calibration, Weights
from homesplit.core.candidates import Asked
from homesplit.core.compared import Compared
from homesplit.core.cost import why_no_int8
from homesplit.core.decide import Thinking, decide
from homesplit.core.events import PlanMade
from homesplit.core.handoff_fit import HandoffFit
from homesplit.core.link import LinkProfile
from homesplit.core.load import Extent, with_load
from homesplit.core.machine import BoxProfile
from homesplit.core.plan import Plan
from homesplit.core.shape import ModelShape
from homesplit.core.workload import Arrivals, Targets, Workload, fixed_lengths
from homesplit.errors import ProfileError, UsageError
from homesplit.io import calibration_store, probe_store, profiles
from homesplit.stages.context import Context

MAX_BOXES = 2
MAX_TOKENS = 10_000_000
MAX_USERS = 1024
MAX_SECONDS = 86_400.0
SEED = 1
"""Of a load that ends: `compare` draws the same requests unless it is told another."""


class PlanQuestion(Struct, frozen=True, kw_only=True):
    """What is asked: names or files as typed; `targets` None takes the workload's own."""

    boxes: tuple[str, ...]
    link: str | None = None
    model: str = "smollm2-135m"
    weights: Weights = "same"
    """What the engine makes of the linear layers, as `up --weights` says."""
    workload: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    users: int | None = None
    rate_requests_per_s: float | None = None
    seconds: float | None = None
    """How long the load is offered; None asks of one that goes on."""
    targets: Targets | None = None
    flips: bool = True
    thinking: Thinking = field(default_factory=Thinking)


def make_plan(ctx: Context, question: PlanQuestion) -> Plan:
    """The advice, also told as PlanMade; raises UsageError and ProfileError."""
    asked = read_question(ctx, question)
    thinking = replace(question.thinking, flips=question.flips)
    try:
        plan = decide(asked, thinking, read_compared(ctx, asked))
    except ValueError as error:
        raise UsageError(f"The load can't be as given: {error}.") from error
    ctx.emit(PlanMade(plan=plan))
    return plan


def read_question(ctx: Context, question: PlanQuestion) -> Asked:
    """Everything the question names, read in; raises UsageError and ProfileError."""
    if not 1 <= len(question.boxes) <= MAX_BOXES:
        raise UsageError(
            f"{len(question.boxes)} boxes were named.", do_next="Give one or two: --boxes A,B."
        )
    boxes = _apart(tuple(read_box(ctx, text) for text in question.boxes))
    workload = read_workload(ctx, question)
    shape = profiles.load_model(question.model, ctx.paths)
    check_weights(question.weights, boxes, shape)
    return Asked(
        boxes=boxes,
        link=read_link(ctx, question.link, boxes),
        shape=shape,
        workload=workload,
        targets=question.targets or workload.targets,
        weights=question.weights,
        calibrations=read_calibrations(ctx, boxes, shape),
        handoffs=read_handoffs(ctx, boxes),
        extent=None if question.seconds is None else Extent(seconds=question.seconds, seed=SEED),
    )


def check_weights(weights: Weights, boxes: tuple[BoxProfile, ...], shape: ModelShape) -> None:
    """Raise UsageError where one of the boxes can't have the model with these weights."""
    reasons = [why_no_int8(box, shape) for box in boxes] if weights == "int8" else []
    why = next((reason for reason in reasons if reason), None)
    if why is not None:
        raise UsageError(f"{why}.", do_next="Leave --weights out.")


def read_calibrations(
    ctx: Context, boxes: tuple[BoxProfile, ...], shape: ModelShape
) -> tuple[Calibration, ...]:
    """What the real engine's steps told of these boxes with this model, where it was timed.

    With weights as they are and in int8, whichever were timed.
    """
    sizes = {shape.kv_bytes_per_token(dtype) for dtype in ("fp16", "fp32")}
    kinds: tuple[Weights, ...] = ("same", "int8")
    found = [
        (
            box.name,
            calibration_store.load(ctx.paths, box.name, box.host_key, shape.name, sizes, weights),
        )
        for box in boxes
        for weights in kinds
    ]
    return tuple(replace(fit, box=name) for name, fit in found if fit is not None)


def read_handoffs(ctx: Context, boxes: tuple[BoxProfile, ...]) -> tuple[HandoffFit, ...]:
    """What hand-offs between these boxes were timed to take beside their bytes, each way."""
    found: list[HandoffFit] = []
    for sender, receiver in itertools.permutations(boxes, 2):
        fit = calibration_store.load_handoff(
            ctx.paths, (sender.name, sender.host_key), (receiver.name, receiver.host_key)
        )
        if fit is not None:
            found.append(replace(fit, sender=sender.name, receiver=receiver.name))
    return tuple(found)


def read_compared(ctx: Context, asked: Asked) -> Compared | None:
    """The newest comparison that was measured of this very question; None if there is none.

    A load asked about with an end of its own was not measured.
    """
    if asked.extent is not None:
        return None
    names = [box.name for box in asked.boxes]
    rate = link_rate(asked.link)
    workload = replace(asked.workload, targets=asked.targets)
    return next(
        (
            seen
            for seen in calibration_store.list_compared(ctx.paths)
            if seen.answers(names, asked.shape.name, workload, rate, asked.weights)
        ),
        None,
    )


def link_rate(link: LinkProfile | None) -> float | None:
    """The payload rate of the slower direction that is known, bytes per second."""
    known = [r.value for r in (link.a_to_b, link.b_to_a) if r.value] if link else []
    return min(known, default=None)


def read_box(ctx: Context, text: str) -> BoxProfile:
    """A probed box, else a hardware profile by name or file."""
    if not text.endswith(".toml"):
        probed = probe_store.load_box(ctx.paths, text)
        if probed is not None:
            return probed
    return profiles.load_hardware(text, ctx.paths)


def _apart(boxes: tuple[BoxProfile, ...]) -> tuple[BoxProfile, ...]:
    """Two boxes of one profile are told apart by a number."""
    if len(boxes) == 2 and boxes[0].name == boxes[1].name:
        return tuple(
            replace(box, name=f"{box.name} #{number}") for number, box in enumerate(boxes, 1)
        )
    return boxes


def read_link(ctx: Context, text: str | None, boxes: tuple[BoxProfile, ...]) -> LinkProfile | None:
    """The link as typed or named; without a word, the measured one. None for one box."""
    if len(boxes) < 2:
        return None
    first, second = (box.name for box in boxes)
    if text is not None and text != "probed":
        return profiles.load_link(text, first, second, ctx.paths)
    found = probe_store.load_link(ctx.paths, first, second)
    if found is None and text == "probed":
        raise ProfileError(
            f"The link between {first} and {second} was never measured.",
            do_next=f"Run: homesplit probe {first} {second}",
        )
    return found


def read_workload(ctx: Context, question: PlanQuestion) -> Workload:
    """The named workload, or one of the typed lengths; users or rate replace its own."""
    _check(question)
    if question.workload is not None:
        if question.prompt_tokens is not None or question.output_tokens is not None:
            raise UsageError(
                "A workload and typed lengths exclude one another.",
                do_next="Give --workload, or --prompt-tokens with --output-tokens.",
            )
        named = profiles.load_workload(question.workload, ctx.paths)
    else:
        named = typed_workload(question)
    return with_load(named, rate_requests_per_s=question.rate_requests_per_s, users=question.users)


def typed_workload(question: PlanQuestion) -> Workload:
    """One class of requests, all of the typed lengths; one user where nothing is said."""
    prompt, output = question.prompt_tokens, question.output_tokens
    if prompt is None or output is None:
        raise UsageError(
            "It isn't said what will be asked.",
            do_next="Give --workload W, or --prompt-tokens P --output-tokens O.",
        )
    return fixed_lengths(
        prompt,
        output,
        name=f"{prompt} in, {output} out",
        arrivals=Arrivals(kind="closed", users=1),
        targets=Targets(ttft_s=None, tpot_s=None),
    )


def _check(question: PlanQuestion) -> None:
    """Refuse impossible figures by name."""
    for name, value, most in (
        ("--prompt-tokens", question.prompt_tokens, MAX_TOKENS),
        ("--output-tokens", question.output_tokens, MAX_TOKENS),
        ("--users", question.users, MAX_USERS),
    ):
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"{name} is {value}; it must lie between 1 and {most}.")
    rate = question.rate_requests_per_s
    if rate is not None and not 0 < rate < 10_000:
        raise UsageError(f"--rate is {rate}; it must lie between 0 and 10,000 requests/s.")
    if question.users is not None and rate is not None:
        raise UsageError("--users and --rate exclude one another.")
    if question.seconds is not None and not 0 < question.seconds <= MAX_SECONDS:
        raise UsageError(f"--seconds is {question.seconds}; a load lasts from above 0 to a day.")
    targets = question.targets
    for name, target in (
        ("--ttft", targets.ttft_s if targets else None),
        ("--tpot", targets.tpot_s if targets else None),
    ):
        if target is not None and not 0 < target < 1e6:
            raise UsageError(f"{name} is {target}; it must be a number of seconds above 0.")

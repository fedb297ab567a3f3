"""Which arrangements of two boxes can be run at all, and with what settings."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from msgspec import Struct, structs

from homesplit.core.calibration import Calibration, Weights
from homesplit.core.cost import CostModel, cost_model, kv_dtype_of, placed, refitted, run_dtype
from homesplit.core.handoff import COMMIT_S, OPEN_BYTE_S, SEND_BYTE_S, Wire
from homesplit.core.handoff_fit import HandoffFit
from homesplit.core.link import LinkProfile
from homesplit.core.load import Extent
from homesplit.core.machine import BoxProfile
from homesplit.core.scene import Arrangement, Scene, SimBox
from homesplit.core.shape import DTYPE_BYTES, ModelShape
from homesplit.core.workload import Targets, Workload
from homesplit.errors import ProfileError

MEMORY_SHARE = 0.90
"""Of a GPU's memory, for weights and KV; the rest is the engine's working set."""
SHARED_MEMORY_SHARE = 0.80
"""Of memory that the operating system and other programs live in too."""
KV_OF_FREE = 0.5
"""Of what is free beside the weights, the engine takes so much for KV (`memory_fraction`)."""
CHUNKS = (2048, 1024, 512, 256, 128, 64, 32)
DEFAULT_CHUNK = 256
CHUNK_BATCH = 4
CHUNK_SLOWER = 1.5
"""How many times as long as in the largest chunks a prompt may take to be read in small ones."""
SENT_TOKENS = 512
"""The prompt whose reading is held against its sending, where no hand-off was timed."""


class Asked(Struct, frozen=True, kw_only=True):
    """The whole question: one or two boxes, the link, a model, a load and its targets."""

    boxes: tuple[BoxProfile, ...]
    link: LinkProfile | None
    shape: ModelShape
    workload: Workload
    targets: Targets
    weights: Weights = "same"
    """What the engine makes of the linear layers, as `up --weights` says."""
    calibrations: tuple[Calibration, ...] = ()
    extent: Extent | None = None
    """How long the load is offered; None for one that goes on."""
    handoffs: tuple[HandoffFit, ...] = ()
    """What hand-offs between these boxes were timed to take beside their bytes."""


class Room(Struct, frozen=True, kw_only=True):
    """What a box's memory holds of the model, bytes; `memory` None when it isn't known."""

    box: str
    memory: float | None
    weights: float
    kv_needed: float
    """KV of the longest conversation alone."""
    copy: float = 0.0
    """A second copy of the linear layers' weights, laid out for many rows, which the engine keeps
    where it is small beside what is free."""
    free: float | None = None
    """What is free beside the weights when the engine starts; None where ours won't run."""
    loading: float = 0.0
    """What the weights take as they come, where the engine makes narrower ones of them."""

    @property
    def needed(self) -> float:
        """Bytes of weights and one longest conversation, or of loading where that takes more.

        The second copy is only taken where there is room for it, so it is not needed.
        """
        return max(self.weights + self.kv_needed, self.loading)

    @property
    def fits(self) -> bool:
        """Whether that has room."""
        return self.memory is None or (
            self.needed <= self.memory
            and (self.free is None or self.kv_needed <= KV_OF_FREE * self.free)
        )

    @property
    def kv_room(self) -> float:
        """Bytes left for KV."""
        left = max(0.0, (self.memory or 4 * self.weights) - self.weights - self.copy)
        return left if self.free is None else min(left, KV_OF_FREE * (self.free - self.copy))


def longest_tokens(workload: Workload) -> int:
    """Tokens of the longest conversation that the load holds."""
    return max(
        workload.first_prompt_tokens(k.prompt_tokens_high)
        + k.prompt_tokens_high * (workload.turns - 1)
        + k.output_tokens_high * workload.turns
        for k in workload.classes
    )


def kv_dtype(asked: Asked) -> str:
    """The KV cache's format, which both boxes must share."""
    dtypes = {kv_dtype_of(run_dtype(box, asked.shape, beside=asked.boxes)) for box in asked.boxes}
    return "fp32" if "fp32" in dtypes else dtypes.pop()


def room_of(box: BoxProfile, asked: Asked) -> Room:
    """What fits into a box."""
    share = SHARED_MEMORY_SHARE if box.unified or box.device == "cpu" else MEMORY_SHARE
    memory = box.memory_bytes.value
    shape = placed(box, asked.shape, asked.weights, beside=asked.boxes)
    ours = box.source == "probe" and memory is not None
    # Int8 weights are made by this engine alone, once all have come.
    comes, loading = _comes_as(asked.shape) if asked.weights == "int8" else (shape.weights_bytes, 0)
    return Room(
        box=box.name,
        memory=None if memory is None else memory * share,
        weights=shape.weights_bytes,
        kv_needed=_conversation_bytes(asked, ours=ours),
        copy=second_copy(box, shape, comes) if ours else 0.0,
        free=max((memory or 0.0) - shape.weights_bytes, 0.0) if ours else None,
        loading=loading,
    )


def _comes_as(shape: ModelShape) -> tuple[float, float]:
    """Bytes of weights that are to be made int8, as they are loaded; and the most until then."""
    wide = DTYPE_BYTES["fp32"]
    # A GGUF file comes as fp32, whatever it holds.
    if shape.dtype not in ("bf16", "fp16") or shape.source.endswith(".gguf"):
        return wide * shape.parameters, wide * shape.parameters
    looked_up = shape.embedding_parameters or shape.head_parameters
    comes = DTYPE_BYTES[shape.dtype] * (shape.parameters - looked_up) + wide * looked_up
    # A head of its own is there in fp32 as well while the engine compares its logits.
    return comes, comes + (wide * shape.head_parameters if shape.embedding_parameters else 0.0)


def _conversation_bytes(asked: Asked, *, ours: bool) -> float:
    """KV of the longest conversation; this engine keeps all of it, behind a window too."""
    tokens, kept = longest_tokens(asked.workload), kv_dtype(asked)
    whole = tokens * asked.shape.kv_bytes_per_token(kept)
    return whole if ours else asked.shape.kv_bytes(tokens, kept)


def second_copy(box: BoxProfile, shape: ModelShape, comes: float) -> float:
    """Bytes of the copy of the linear layers that the engine keeps on this box for many rows.

    `comes` is what the weights take when they are loaded.

    It does so on a processor with float32 or int8 weights, where those of all linear layers are
    at most a quarter of the memory that is free beside the weights as they came
    (`kernels.copy_fits`); the output head has no copy (`hasten_linears`). A processor that is
    quick with whole numbers keeps int8 weights once only.
    """
    if box.device != "cpu" or shape.dtype != "fp32" or (box.vnni and shape.table_bytes):
        return 0.0
    width = DTYPE_BYTES["int8" if shape.table_bytes else "fp32"]
    linear = width * (shape.parameters - shape.embedding_parameters)
    free = (box.memory_bytes.value or 0.0) - comes
    return linear - width * shape.head_parameters if linear <= free / 4.0 else 0.0


def build_scene(asked: Asked) -> Scene:
    """The scene of all boxes; raises ProfileError naming a missing figure."""
    kept, longest = kv_dtype(asked), longest_tokens(asked.workload)
    boxes: list[SimBox] = []
    for box in asked.boxes:
        cost = _cost(box, asked, kept)
        fit = cost.fit
        room = room_of(box, asked)
        told = fit.kv_tokens if fit else None
        # Windows and states make a token of a long conversation cheaper than one of a short.
        per_token = max(room.kv_needed / longest, 1.0)
        room_tokens = int(room.kv_room // per_token) if told is None else told
        together = fit.together if fit else 1.0
        made = SimBox(name=box.name, cost=cost, kv_tokens=room_tokens, together=together)
        boxes.append(made)
    scene = Scene(boxes=tuple(boxes), wires={}, shape=boxes[0].cost.shape, kv_dtype=kept)
    routers = [c.router_s for c in asked.calibrations if c.router_s is not None]
    if routers:
        # What was timed is the way there and back; the scene counts it once before and once after.
        scene = structs.replace(scene, router_s=max(routers) / 2.0)
    clients = [c.client_s for c in asked.calibrations if c.client_s is not None]
    return structs.replace(
        scene, wires=_wires(asked, scene), client_s=max(clients, default=scene.client_s)
    )


def _cost(box: BoxProfile, asked: Asked, kept: str) -> CostModel:
    """By the fit of these weights; else by that of the others, changed as far as is known."""
    shape = placed(box, asked.shape, asked.weights, beside=asked.boxes)
    own = [fit for fit in asked.calibrations if fit.box == box.name]
    fit = next((fit for fit in own if fit.weights == asked.weights), None)
    if fit is None and own and box.memory_bytes_per_s.value:
        had = placed(box, asked.shape, own[0].weights, beside=asked.boxes)
        bare = (cost_model(box, each, kv_dtype=kept) for each in (had, shape))
        fit = refitted(own[0], *bare)
    return cost_model(box, shape, calibration=fit, kv_dtype=kept)


def _wires(asked: Asked, scene: Scene) -> dict[tuple[str, str], Wire]:
    link = asked.link
    if link is None or len(asked.boxes) < 2:
        return {}
    first, second = asked.boxes[0].name, asked.boxes[1].name
    forward, back = payload(link)
    if link.a == second and link.b == first:
        forward, back = back, forward
    round_trip_s = link.latency_s.p50.value or 0.0
    return {
        pair: Wire(
            bytes_per_s=rate,
            round_trip_s=round_trip_s,
            commit_s=commit_of(asked, pair).commit_s,
            # As much as the router's part of a request: one message to a worker, one back.
            reserve_s=2.0 * scene.router_s,
            sending=_sending_of(asked, pair, scene.box(pair[0]).cost),
            opening_byte_s=_opening_of(asked, pair),
        )
        for pair, rate in (((first, second), forward), ((second, first), back))
    }


def commit_of(asked: Asked, pair: tuple[str, str]) -> HandoffFit:
    """What a hand-off from one box to another takes beside its bytes.

    That of the other direction where only it was timed; without any the stated default, with
    0 hand-offs behind it.
    """
    timed = {(fit.sender, fit.receiver): fit for fit in asked.handoffs}
    found = timed.get(pair) or timed.get((pair[1], pair[0]))
    return found or HandoffFit(
        sender=pair[0], receiver=pair[1], commit_s=COMMIT_S, spread_s=0.0, handoffs=0
    )


def _sending_of(asked: Asked, pair: tuple[str, str], cost: CostModel) -> float:
    """How many times as long a box reads while it sends, by its own hand-offs.

    Where none were timed: all sending has to be done while the prompt is read, by the cores that
    read it. A GPU's reading feels nothing of it.
    """
    fit, box = commit_of(asked, pair), _profile(asked, pair[0])
    if fit.handoffs and fit.sender == pair[0]:
        return fit.sending
    cores = box.cores_allowed or box.cores
    if box.device != "cpu" or not cores:
        return 1.0
    sent = cost.shape.handoff_bytes(SENT_TOKENS, cost.kv_dtype, last=True)
    return 1.0 + SEND_BYTE_S * sent / cores / cost.prefill_s(SENT_TOKENS).mid


def _opening_of(asked: Asked, pair: tuple[str, str]) -> float:
    """Seconds of the receiver's computing that each byte of KV takes, by its own hand-offs.

    Where none came while it wrote: what was measured, shared out to its cores. A GPU's steps feel
    nothing of it.
    """
    fit, box = commit_of(asked, pair), _profile(asked, pair[1])
    if fit.opening_byte_s is not None and fit.receiver == pair[1]:
        return fit.opening_byte_s
    cores = box.cores_allowed or box.cores
    return OPEN_BYTE_S / cores if box.device == "cpu" and cores else 0.0


def payload(link: LinkProfile) -> tuple[float, float]:
    """Bytes per second from a to b and back, as the hand-off would get them.

    Where the sealed rate was measured, that one. One direction that is not known is taken to be as
    the other; raises ProfileError where neither is known.
    """
    forward, back = link.a_to_b.value, link.b_to_a.value
    if link.encrypted_a_to_b.value and link.encrypted_b_to_a.value:
        forward, back = link.encrypted_a_to_b.value, link.encrypted_b_to_a.value
    known = forward or back
    if not known:
        raise ProfileError(
            f"the link's payload rate is not known: {link.a_to_b.why}.",
            where=f"link {link.a} - {link.b}",
            do_next="Probe it, or give --link a rate such as 2.35Gbit/s.",
        )
    return forward or known, back or known


def chunk_for(boxes: Sequence[SimBox], targets: Targets, context_tokens: int) -> int:
    """The largest chunk whose step, beside a few answers, keeps the TPOT target on all boxes.

    None that one of them reads much slower in than in large ones: it would hold answers up for
    longer in all, as where each step reads most of a mixture's experts. Where none keeps the
    target, the smallest.
    """
    if targets.tpot_s is None:
        return DEFAULT_CHUNK
    able = [chunk for chunk in CHUNKS if all(_reads_well(box, chunk) for box in boxes)]
    context = CHUNK_BATCH * context_tokens
    for chunk in able:
        steps_s = (box.cost.step_seconds([(0, chunk)], CHUNK_BATCH, context) for box in boxes)
        if max(steps_s) <= targets.tpot_s:
            return chunk
    return able[-1]


def _reads_well(box: SimBox, chunk: int) -> bool:
    return _token_seconds(box, chunk) <= CHUNK_SLOWER * _token_seconds(box, CHUNKS[0])


def _token_seconds(box: SimBox, chunk: int) -> float:
    """What one token of a prompt that is read in such chunks takes."""
    return box.cost.step_seconds([(0, chunk)], 0, 0) / chunk


def arrangements(asked: Asked, scene: Scene) -> tuple[Arrangement, ...]:
    """Every arrangement that fits, simplest first; none over a link of which nothing is known."""
    fits = [box for box in scene.boxes if room_of(_profile(asked, box.name), asked).fits]
    context = longest_tokens(asked.workload)
    found: list[Arrangement] = []
    for box in fits:
        found += _on_one(box.name, chunk_for([box], asked.targets, context))
    if len(fits) == 2:
        first, second = fits[0].name, fits[1].name
        chunk = chunk_for(fits, asked.targets, context)
        found += _on_both(first, second, chunk, linked=bool(scene.wires))
    return tuple(found)


def _profile(asked: Asked, name: str) -> BoxProfile:
    return next(box for box in asked.boxes if box.name == name)


def _on_one(name: str, chunk: int) -> list[Arrangement]:
    return [
        Arrangement(
            setting=ModeSetting(
                mode="colocated", prefill=style, chunk_tokens=chunk, decode_box=name
            ),
            boxes=(name,),
        )
        for style in ("chunked", "whole")
    ]


def _on_both(first: str, second: str, chunk: int, *, linked: bool) -> list[Arrangement]:
    made = [
        Arrangement(
            setting=ModeSetting(mode="replica", prefill=style, chunk_tokens=chunk),
            boxes=(first, second),
        )
        for style in ("chunked", "whole")
    ]
    if not linked:
        return made
    for reads, writes in ((first, second), (second, first)):
        setting = ModeSetting(
            mode="split",
            prefill="whole",
            chunk_tokens=chunk,
            prefill_box=reads,
            decode_box=writes,
        )
        made.append(Arrangement(setting=setting, boxes=(first, second)))
    return made


def auto(asked: Asked, scene: Scene) -> Arrangement | None:
    """The router's own choice for each request; None where a box or the link is lacking."""
    fits = [box for box in scene.boxes if room_of(_profile(asked, box.name), asked).fits]
    if len(fits) < 2 or not scene.wires:
        return None
    context = longest_tokens(asked.workload)
    chunk = chunk_for(fits, asked.targets, context)
    names = tuple(box.name for box in fits)
    return Arrangement(
        setting=ModeSetting(mode="auto", prefill="chunked", chunk_tokens=chunk), boxes=names
    )

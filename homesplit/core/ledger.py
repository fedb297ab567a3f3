"""Where one request's time goes in each mode when nothing is in its way but its queue."""

from __future__ import annotations

from msgspec import Struct, structs

from homesplit.core.handoff import Handoff, Piece, hand_over
from homesplit.core.plan import LedgerRow
from homesplit.core.scene import MAX_STEP_TOKENS, Arrangement, Scene
from homesplit.core.workload import Workload


class PromptClass(Struct, frozen=True, kw_only=True):
    """One class of prompts as the ledger shows it."""

    name: str
    prompt_tokens: int
    output_tokens: int


def classes_of(workload: Workload) -> tuple[PromptClass, ...]:
    """The load's classes at their mean lengths; a single one also at a quarter and four times."""
    made = tuple(
        PromptClass(
            name=kind.name,
            prompt_tokens=workload.first_prompt_tokens(int(kind.mean_prompt_tokens)),
            output_tokens=int(kind.mean_output_tokens),
        )
        for kind in workload.classes
    )
    if len(made) != 1:
        return made
    only = next(iter(made))
    return tuple(
        PromptClass(
            name=name,
            prompt_tokens=max(1, int(only.prompt_tokens * factor)),
            output_tokens=only.output_tokens,
        )
        for name, factor in (("short", 0.25), ("medium", 1.0), ("long", 4.0))
    )


def ledger_row(
    scene: Scene, arrangement: Arrangement, kind: PromptClass, *, queue_s: float = 0.0
) -> LedgerRow:
    """The parts of one request's time; `ttft_s` and `ttst_s` are their sums.

    `tokenise_s` holds all of the router's work and the client's.
    """
    setting = arrangement.setting
    split = setting.mode == "split" and kind.output_tokens > 1
    reads = (setting.prefill_box if setting.mode == "split" else None) or arrangement.first
    writes = (setting.decode_box or reads) if split else reads
    pieces = _pieces(
        scene, reads, kind, setting.chunk_tokens if setting.prefill == "chunked" else None
    )
    made: Handoff | None = None
    if split:
        wire = scene.sending(setting.kv_wire).wires[(reads, writes)]
        pieces = [
            structs.replace(p, start_s=p.start_s * wire.sending, end_s=p.end_s * wire.sending)
            for p in pieces
        ]
        # The prompt is read while room for it is asked for: only its sending waits for that.
        made = hand_over(pieces, wire, layers=scene.shape.layers, free_s=wire.reserving_s)
    prefill_s = pieces[-1].end_s
    router_s = scene.tokenising_s(kind.prompt_tokens) + 2 * scene.router_s + scene.client_s
    first_decode_s = (
        scene.box(writes).cost.step_seconds([], 1, kind.prompt_tokens)
        if kind.output_tokens > 1
        else 0.0
    )
    exposed_s = made.exposed_s if made else 0.0
    ttft_s = router_s + queue_s + prefill_s
    return LedgerRow(
        mode=arrangement.mode,
        class_=kind.name,
        prompt_tokens=kind.prompt_tokens,
        output_tokens=kind.output_tokens,
        queue_s=queue_s,
        tokenise_s=router_s,
        prefill_s=prefill_s,
        handoff_s=made.total_s if made else 0.0,
        handoff_exposed_s=exposed_s,
        first_decode_s=first_decode_s,
        ttft_s=ttft_s,
        ttst_s=ttft_s + exposed_s + first_decode_s,
    )


def _pieces(scene: Scene, box: str, kind: PromptClass, chunk: int | None) -> list[Piece]:
    """The steps that read one prompt with nothing beside it, from 0 on."""
    cost = scene.box(box).cost
    made: list[Piece] = []
    start, at_s = 0, 0.0
    while start < kind.prompt_tokens:
        tokens = min(kind.prompt_tokens - start, chunk or MAX_STEP_TOKENS, MAX_STEP_TOKENS)
        end_s = at_s + cost.step_seconds([(start, tokens)], 0, 0)
        last = start + tokens >= kind.prompt_tokens
        count = scene.shape.handoff_bytes(tokens, scene.kv_dtype, last=last)
        made.append(Piece(start_s=at_s, end_s=end_s, bytes=count))
        start, at_s = start + tokens, end_s
    return made

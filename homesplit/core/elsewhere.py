"""What the advice would be elsewhere: other prompt lengths, other loads, other links."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct, structs

from homesplit.core.candidates import Asked, arrangements, build_scene, room_of
from homesplit.core.choose import choose
from homesplit.core.decide import best_of_each, rivals
from homesplit.core.flips import Position, winner, with_users
from homesplit.core.ledger import PromptClass, ledger_row
from homesplit.core.plan_map import NOBODY, CurvePoint, PlanMap
from homesplit.core.predict import at_rate, outlook
from homesplit.core.rate_curves import offered_rate, rate_curves
from homesplit.core.rules import mean_kind
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.workload import Workload
from homesplit.errors import ProfileError

REQUESTS = 40
"""Simulated for each cell: enough to tell modes apart, not to put figures on them."""
PROMPTS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
USERS = (1, 2, 4, 8, 16, 32)
RATE_FACTORS = (0.1, 0.3, 1.0, 2.0, 4.0)
LINKS_BYTES_PER_S = tuple(gbit * 1e9 / 8 for gbit in (0.05, 0.3, 1.0, 2.5, 10.0, 40.0))
OTHERS = ("load", "link")


class Atlas(Struct, frozen=True, kw_only=True):
    """A map to be filled cell by cell, and what each cell is simulated with."""

    map: PlanMap
    position: Position

    def cell(self, row: int, column: int) -> str | None:
        """The winning mode there, or NOBODY; None where the model or memory does not reach."""
        position, shown = self.position, self.map
        workload = _with_prompts(position.workload, shown.prompt_tokens[column])
        scene, other = position.scene, shown.others[row]
        if shown.other == "users":
            workload = with_users(workload, round(other))
        elif shown.other == "requests/s":
            workload = at_rate(workload, other)
        else:
            scene = scene.with_link_rate(other)
        try:
            return winner(position, scene, workload) or NOBODY
        except (ProfileError, ValueError):
            return None


def open_atlas(asked: Asked, other: str) -> Atlas | None:
    """The map's axes and curve, its cells still empty; None where no box fits the model."""
    if not any(room_of(box, asked).fits for box in asked.boxes):
        return None
    scene = build_scene(asked)
    able = arrangements(asked, scene)
    outlooks = tuple(
        outlook(scene, each, asked.workload, asked.targets, REQUESTS, asked.extent) for each in able
    )
    choice = choose(outlooks, asked.targets)
    best = tuple(made.arrangement for made in best_of_each(outlooks, choice))
    position = Position(
        scene=scene,
        arrangements=rivals(outlooks, choice),
        workload=asked.workload,
        targets=asked.targets,
        mode=choice.best.arrangement.setting.mode,
        requests=REQUESTS,
        extent=asked.extent,
    )
    kind = mean_kind(asked)
    longest = min(scene.shape.max_context or 1 << 30, 1 << 30) - kind.output_tokens
    prompts = tuple(
        round(p) for p in _with_here([p for p in PROMPTS if p <= longest], kind.prompt_tokens)
    )
    name, others, here = _other(asked.workload, scene, other)
    split = _split(best)
    empty: tuple[tuple[str | None, ...], ...] = tuple((None,) * len(prompts) for _ in others)
    return Atlas(
        map=PlanMap(
            other=name,
            prompt_tokens=prompts,
            others=others,
            here_prompt=float(kind.prompt_tokens),
            here_other=here,
            cells=empty,
            curve=_curve(scene, split, prompts, kind.output_tokens) if split else (),
            curve_boxes=_roles(split) if split else None,
            rates=rate_curves(scene, best, asked.workload, asked.targets),
            here_rate=offered_rate(asked.workload),
        ),
        position=position,
    )


def filled(shown: PlanMap, row: int, column: int, mode: str | None) -> PlanMap:
    """The map with one more cell."""
    cells = [list(line) for line in shown.cells]
    cells[row][column] = mode
    return structs.replace(shown, cells=tuple(tuple(line) for line in cells))


def nearest_first(shown: PlanMap) -> tuple[tuple[int, int], ...]:
    """Rows and columns of all cells, those near the present question first."""

    def away(place: tuple[int, int]) -> float:
        row, column = place
        across = abs(math.log(shown.prompt_tokens[column] / max(shown.here_prompt, 1.0)))
        return across + abs(math.log(shown.others[row] / max(shown.here_other, 1e-9)))

    places = [(r, c) for r in range(len(shown.others)) for c in range(len(shown.prompt_tokens))]
    return tuple(sorted(places, key=away))


def _other(workload: Workload, scene: Scene, other: str) -> tuple[str, tuple[float, ...], float]:
    """The rows' unit, their values and the present one."""
    if other == "link" and scene.wires:
        here = min(wire.bytes_per_s for wire in scene.wires.values())
        return "bytes/s", _with_here(LINKS_BYTES_PER_S, here), here
    arrivals = workload.arrivals
    if arrivals.kind == "closed":
        return "users", _with_here(USERS, arrivals.users or 1), float(arrivals.users or 1)
    rate = (arrivals.rate_requests_per_s or 1.0) * workload.turns
    return "requests/s", tuple(rate * factor for factor in RATE_FACTORS), rate


def _with_prompts(workload: Workload, prompt_tokens: int) -> Workload:
    """All classes stretched alike so that their mean prompt has this length."""
    total = sum(kind.share for kind in workload.classes)
    mean = sum(kind.share * kind.mean_prompt_tokens for kind in workload.classes)
    factor = prompt_tokens * total / mean
    prefix = round(workload.shared_prefix_tokens * min(1.0, factor))
    classes = tuple(kind.scaled(prompts=factor) for kind in workload.classes)
    return structs.replace(workload, classes=classes, shared_prefix_tokens=prefix)


def _with_here(values: Sequence[float], here: float) -> tuple[float, ...]:
    """The axis with the present value on it, in place of one that is nearly the same."""
    others = [value for value in values if not 0.7 < value / here < 1.43]
    return tuple(sorted((*map(float, others), float(here))))


def _split(able: Sequence[Arrangement]) -> Arrangement | None:
    return next((each for each in able if each.setting.mode == "split"), None)


def _roles(split: Arrangement) -> tuple[str, str]:
    return split.setting.prefill_box or split.first, split.setting.decode_box or split.first


def _curve(
    scene: Scene, split: Arrangement, prompts: Sequence[int], output_tokens: int
) -> tuple[CurvePoint, ...]:
    wire = scene.wires[_roles(split)]
    made: list[CurvePoint] = []
    for tokens in prompts:
        kind = PromptClass(name="", prompt_tokens=tokens, output_tokens=max(output_tokens, 2))
        row = ledger_row(scene, split, kind)
        made.append(
            CurvePoint(
                prompt_tokens=tokens,
                prefill_s=row.prefill_s,
                handoff_s=wire.round_trip_s
                + wire.seconds(scene.shape.handoff_bytes(tokens, scene.kv_dtype)),
                exposed_s=row.handoff_exposed_s,
            )
        )
    return tuple(made)

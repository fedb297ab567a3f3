"""What would have to change for another mode to win: found by asking the simulator again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from homesplit_engine.records import Mode
from msgspec import Struct, structs

from homesplit.core import say
from homesplit.core.choose import choose
from homesplit.core.divergence import lossy
from homesplit.core.load import Extent
from homesplit.core.plan import Flip
from homesplit.core.predict import Outlook, at_rate, outlook
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.shape import DTYPE_BYTES
from homesplit.core.workload import Targets, Workload
from homesplit.errors import ProfileError

REQUESTS = 60
THOROUGH = 240
SURER = 4
"""So many times as many requests, about those of the advice itself, tell whether a flip is one."""
ROUNDS = 5
ROUNDS_AGAIN = 3
LOOKS_BEYOND = 2
"""Values further out at which it is asked whether what wins at a flip wins there too: each is a
whole simulation, and those furthest out are the longest."""


class Position(Struct, frozen=True, kw_only=True):
    """Where the question stands: what the flips start from."""

    scene: Scene
    arrangements: tuple[Arrangement, ...]
    workload: Workload
    targets: Targets
    mode: Mode
    """The mode that is recommended there."""
    requests: int = REQUESTS
    """How many are simulated for each look elsewhere."""
    extent: Extent | None = None
    """How long the load is offered; None for one that goes on."""


class _Quantity(Struct, frozen=True, kw_only=True):
    """One thing that may change, and how the world looks when it is `value`."""

    name: str
    unit: str
    here: float
    values: tuple[float, ...]
    at: Callable[[float], tuple[Scene, Workload]]
    told: Callable[[float], str]
    whole: bool = True
    between: bool = True
    """Whether there is anything between the values."""


def find_flips(position: Position) -> tuple[Flip, ...]:
    """The nearest change of the winner in each direction of each quantity."""
    here = winner(position, position.scene, position.workload)
    if here not in (None, position.mode):
        # A close call: fewer requests than the advice saw would call their own noise a flip.
        position = structs.replace(position, requests=THOROUGH)
    found: list[Flip] = []
    for quantity in _quantities(position):
        for outward in (_below(quantity), _above(quantity)):
            flip = _first_flip(position, quantity, outward)
            if flip is not None:
                found.append(flip)
    return tuple(found)


def _below(quantity: _Quantity) -> list[float]:
    return sorted((v for v in quantity.values if v < quantity.here), reverse=True)


def _above(quantity: _Quantity) -> list[float]:
    return sorted(v for v in quantity.values if v > quantity.here)


def winner(position: Position, scene: Scene, workload: Workload) -> Mode | None:
    """The mode that wins in a changed world, by a shorter simulation.

    None where nobody is inside the targets, whatever the mode.
    """
    made: list[Outlook] = [
        outlook(scene, each, workload, position.targets, position.requests, extent=position.extent)
        for each in position.arrangements
    ]
    best = choose(made, position.targets).best
    return best.arrangement.setting.mode if best.goodput > 0 else None


def _first_flip(position: Position, quantity: _Quantity, outward: Sequence[float]) -> Flip | None:
    inside = quantity.here
    for place, value in enumerate(outward):
        mode = _mode_at(position, quantity, value)
        if mode not in (None, position.mode):
            flip = _narrowed(position, quantity, inside, mode, outward[place:])
            if flip is not None:
                return flip
        inside = value
    return None


def _mode_at(position: Position, quantity: _Quantity, value: float) -> Mode | None:
    try:
        return winner(position, *quantity.at(value))
    except (ProfileError, ValueError):
        return None


def _narrowed(
    position: Position,
    quantity: _Quantity,
    inside: float,
    first: Mode,
    outward: Sequence[float],
) -> Flip | None:
    """The flip between the last value that keeps the mode and the first that does not.

    That is the first of `outward`, where `first` wins; of those behind it is told where what wins
    at the flip wins no longer. None where it was but the noise of few requests.
    """
    outside, mode = _halved(position, quantity, (inside, outward[0]), first, ROUNDS)
    sure = structs.replace(position, requests=SURER * position.requests)
    doubted = position.extent is None and position.requests < THOROUGH
    if doubted and _mode_at(sure, quantity, outside) != mode:
        there = _mode_at(sure, quantity, outward[0])
        if there is None or there == position.mode:
            return None
        first = there
        outside, mode = _halved(sure, quantity, (outside, outward[0]), first, ROUNDS_AGAIN)
    word = "from here on" if outside > quantity.here else "from here down"
    until = _until(position, quantity, mode, known=first, outward=outward)
    sentence = f"{quantity.told(outside)}: {mode} wins ({word}{until}, all else unchanged)."
    return Flip(
        quantity=quantity.name, value=outside, unit=quantity.unit, mode=mode, sentence=sentence
    )


def _halved(
    position: Position, quantity: _Quantity, ends: tuple[float, float], mode: Mode, rounds: int
) -> tuple[float, Mode]:
    """The nearest value that was seen to flip, between one that does not and one where `mode` wins,
    and what wins there."""
    inside, outside = ends
    for _ in range(rounds if quantity.between else 0):
        middle = math.sqrt(inside * outside)
        if quantity.whole:
            middle = float(round(middle))
            if middle in (inside, outside):
                break
        found = _mode_at(position, quantity, middle)
        if found is None or found == position.mode:
            inside = middle
        else:
            outside, mode = middle, found
    return outside, mode


def _until(
    position: Position, quantity: _Quantity, mode: Mode, *, known: Mode, outward: Sequence[float]
) -> str:
    """How far it was seen to win, in words; `known` wins at the first of these values."""
    for place, value in enumerate(outward[: 1 + LOOKS_BEYOND]):
        if (_mode_at(position, quantity, value) if place else known) != mode:
            return f", but no longer {_lower(quantity.told(value))}"
    furthest = outward[: 1 + LOOKS_BEYOND][-1]
    if furthest == outward[-1]:
        return ""
    return f", looked at no further than {_lower(quantity.told(furthest))}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _quantities(position: Position) -> list[_Quantity]:
    scene, workload = position.scene, position.workload
    made: list[_Quantity] = []
    if scene.wires:
        here = min(wire.bytes_per_s for wire in scene.wires.values())
        made.append(
            _Quantity(
                name="link_rate",
                unit="bytes/s",
                here=here,
                values=tuple(gbit * 1e9 / 8 for gbit in (0.02, 0.1, 0.3, 1, 2.5, 10, 40, 100)),
                at=lambda rate: (scene.with_link_rate(rate), workload),
                told=lambda rate: f"With a link that carries {say.bit_rate(rate)}",
                whole=False,
            )
        )
        if not any(lossy(each.setting) for each in position.arrangements):
            made.append(_wire_precision(scene, workload))
    made.append(_lengths(position, "prompt_tokens", (64, 256, 1024, 4096, 16384)))
    made.append(_lengths(position, "output_tokens", (4, 16, 64, 256, 1024)))
    arrivals = workload.arrivals
    if arrivals.kind == "closed":
        made.append(
            _Quantity(
                name="users",
                unit="users",
                here=float(arrivals.users or 1),
                values=(1, 2, 4, 8, 16, 32),
                at=lambda users: (scene, with_users(workload, round(users))),
                told=lambda users: (
                    f"With {round(users)} user{'s' if users > 1 else ''} in parallel"
                ),
            )
        )
    else:
        rate = (arrivals.rate_requests_per_s or 1.0) * workload.turns
        made.append(
            _Quantity(
                name="rate",
                unit="requests/s",
                here=rate,
                values=tuple(rate * factor for factor in (0.1, 0.3, 2.0, 5.0)),
                at=lambda value: (scene, at_rate(workload, value)),
                told=lambda value: f"At {say.offered_rate(value, workload.turns)}",
                whole=False,
            )
        )
    return made


def _wire_precision(scene: Scene, workload: Workload) -> _Quantity:
    """Fewer bytes for each number that is handed over, which may change the text a little."""
    here = DTYPE_BYTES[scene.kv_dtype]

    def at(width: float) -> tuple[Scene, Workload]:
        wires = {
            pair: structs.replace(wire, bytes_per_s=wire.bytes_per_s * here / width)
            for pair, wire in scene.wires.items()
        }
        return structs.replace(scene, wires=wires), workload

    return _Quantity(
        name="kv_wire",
        unit="bytes per number",
        here=here,
        values=tuple(width for width in (1.0, 2.0) if width < here),
        at=at,
        told=lambda width: f"With KV sent as {'int8' if width < 2 else 'fp16'}, which is not exact",
        between=False,
    )


def _lengths(position: Position, name: str, values: tuple[float, ...]) -> _Quantity:
    """The mean prompt or answer length, all classes stretched alike."""
    workload = position.workload
    mean = _mean(workload, name)
    word = "prompt" if name == "prompt_tokens" else "output"
    longest = position.scene.shape.max_context or 1 << 30
    fitting = tuple(v for v in values if v <= longest / 2 and v / mean <= 64)

    def told(value: float) -> str:
        return (
            f"With {word}s of {round(value):,} tokens"
            if word == "prompt"
            else (f"With answers of {round(value):,} tokens")
        )

    return _Quantity(
        name=name,
        unit="tokens",
        here=mean,
        values=fitting,
        at=lambda value: (position.scene, _stretched(workload, name, value / mean)),
        told=told,
    )


def _mean(workload: Workload, name: str) -> float:
    total = sum(kind.share for kind in workload.classes)
    return sum(kind.share * getattr(kind, f"mean_{name}") for kind in workload.classes) / total


def _stretched(workload: Workload, name: str, factor: float) -> Workload:
    prompts, outputs = (factor, 1.0) if name == "prompt_tokens" else (1.0, factor)
    return structs.replace(
        workload,
        classes=tuple(kind.scaled(prompts=prompts, outputs=outputs) for kind in workload.classes),
        shared_prefix_tokens=round(workload.shared_prefix_tokens * min(1.0, prompts)),
    )


def with_users(workload: Workload, users: int) -> Workload:
    """The same load with another number of users."""
    return structs.replace(workload, arrivals=structs.replace(workload.arrivals, users=users))

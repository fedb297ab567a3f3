"""The advice: one pure function from boxes, link, model, load and targets to a `Plan`."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from msgspec import Struct, structs

from homesplit.core import explain, narrower
from homesplit.core.candidates import Asked, Room, arrangements, auto, build_scene, room_of
from homesplit.core.choose import Choice, choose
from homesplit.core.compared import Compared, measured_words, overruled, same_way
from homesplit.core.divergence import lossy
from homesplit.core.flips import Position, find_flips, with_users
from homesplit.core.int8_flip import int8_flip
from homesplit.core.ledger import classes_of, ledger_row
from homesplit.core.most_users import most_users
from homesplit.core.narrower import with_wire
from homesplit.core.plan import (
    Flip,
    LedgerRow,
    ModePrediction,
    MostUsers,
    Plan,
    Recommendation,
    Suited,
)
from homesplit.core.predict import CAPACITY_ATTAINMENT, Effort, Outlook, outlook, prediction
from homesplit.core.rules import Known, all_rules, fits, mean_kind, not_asked, real_link
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.suited import REQUESTS, suited

_UNITS = {
    "someone_to_interrupt": "requests at once",
    "prefill_heavy": "share",
    "machines_differ": "ratio",
    "link": "hand-off / prefill",
    "decode_memory": "bytes",
    "chunked_first": "attainment",
}


class Thinking(Struct, frozen=True, kw_only=True):
    """How much work goes into a plan."""

    effort: Effort = Effort()
    flips: bool = True


def decide(asked: Asked, thinking: Thinking | None = None, seen: Compared | None = None) -> Plan:
    """The whole advice; raises ProfileError naming a figure that is missing.

    `seen` is a comparison that was measured of this very question: where it contradicts the
    simulation, it is right.
    """
    thinking = thinking or Thinking()
    rooms = tuple(room_of(box, asked) for box in asked.boxes)
    if not any(room.fits for room in rooms):
        return _fits_nowhere(asked, rooms, thinking)
    scene = build_scene(asked)
    able = arrangements(asked, scene)
    outlooks = tuple(_look(asked, scene, each, thinking) for each in able)
    simulated = choose(outlooks, asked.targets)
    choice = overruled(simulated, outlooks, seen)
    known = Known(asked=asked, rooms=rooms, scene=scene, outlooks=outlooks, kind=mean_kind(asked))
    rules = all_rules(known)
    choice = with_wire(
        choice,
        next(each for each in rules if each.id == "link"),
        scene.kv_dtype,
        asked.targets,
        lambda arrangement: _look(asked, scene, arrangement, thinking),
    )
    looks = _with_auto(asked, scene, outlooks, thinking)
    modes = _modes(asked, scene, looks, choice, thinking, seen)
    sustainable = _sustainable(asked, choice, modes[0])
    users = _most_users(asked, scene, able, thinking) if sustainable is False else None
    verdict = explain.verdict(
        asked,
        choice,
        modes,
        sustainable,
        rules,
        measured_words(choice, simulated, seen),
        users.sentence if users else None,
    )
    return Plan(
        recommendation=_recommendation(asked, scene, choice, verdict),
        tie=choice.tie,
        sustainable=sustainable,
        rules=rules,
        modes=modes,
        ledger=_ledger(asked, scene, outlooks, choice),
        flips=(*_flips(asked, scene, outlooks, choice), *_int8(asked, choice, thinking))
        if thinking.flips
        else (),
        guesses=(
            *explain.within(modes[0]),
            *explain.guesses(asked, scene),
            *explain.auto_ahead(modes, asked.workload.turns),
        ),
        weights=explain.weights(asked),
        sources=explain.sources(asked, scene),
        measured_at=seen.at if seen else None,
        overruled=_overruled(simulated, choice),
        most_users=users,
        suited=None if sustainable else _suited(asked, scene, able, thinking),
        boxes=tuple(box.name for box in asked.boxes),
        link=asked.link.source if asked.link else "",
        model=asked.shape.name,
        workload=asked.workload.name,
    )


def _int8(asked: Asked, choice: Choice | None, thinking: Thinking) -> tuple[Flip, ...]:
    def look(narrow: Asked, scene: Scene, arrangement: Arrangement) -> Outlook:
        return _look(narrow, scene, arrangement, thinking)

    flip = int8_flip(asked, choice, look)
    return () if flip is None else (flip,)


def _suited(
    asked: Asked, scene: Scene, able: Sequence[Arrangement], thinking: Thinking
) -> Suited | None:
    return suited(scene, able, asked.workload, min(REQUESTS, thinking.effort.requests))


def _overruled(simulated: Choice, choice: Choice) -> str | None:
    before = simulated.best.arrangement
    same = same_way(before.setting, choice.best.arrangement.setting)
    return None if same else before.words()


def _fits_nowhere(asked: Asked, rooms: tuple[Room, ...], thinking: Thinking) -> Plan:
    first = fits(rooms)
    said = (first.sentence, "Take a smaller or a more quantised model.")
    rest = tuple(
        not_asked(name, unit, "The model fits no box, so this is not asked.")
        for name, unit in _UNITS.items()
    )
    return Plan(
        recommendation=Recommendation(
            mode=None,
            prefill_box=None,
            decode_box=None,
            prefill=None,
            chunk_tokens=None,
            kv_wire=None,
            sentence=_joined(*said, explain.beyond_context(asked)),
        ),
        tie=False,
        sustainable=None,
        rules=(first, real_link(asked, None), *rest),
        modes=(),
        ledger=(),
        flips=_int8(asked, None, thinking) if thinking.flips else (),
        guesses=(),
        weights=explain.weights(asked),
        boxes=tuple(box.name for box in asked.boxes),
        link=asked.link.source if asked.link else "",
        model=asked.shape.name,
        workload=asked.workload.name,
    )


def _with_auto(
    asked: Asked, scene: Scene, outlooks: Sequence[Outlook], thinking: Thinking
) -> tuple[Outlook, ...]:
    """The outlooks and that of `auto`, which is predicted but not recommended.

    What it does depends on rates that the router measures as it goes, so that its prediction
    is the least certain one.
    """
    arrangement = auto(asked, scene)
    if arrangement is None:
        return tuple(outlooks)
    return (*outlooks, _look(asked, scene, arrangement, thinking))


def _look(asked: Asked, scene: Scene, arrangement: Arrangement, thinking: Thinking) -> Outlook:
    requests = thinking.effort.requests
    return outlook(scene, arrangement, asked.workload, asked.targets, requests, asked.extent)


def _modes(
    asked: Asked,
    scene: Scene,
    outlooks: Sequence[Outlook],
    choice: Choice,
    thinking: Thinking,
    seen: Compared | None,
) -> tuple[ModePrediction, ...]:
    """The chosen arrangement first, then the others, best first."""
    rest = [o for o in outlooks if o is not choice.best]
    rest.sort(key=lambda o: (-o.goodput, o.latency_s))
    known: dict[tuple[object, ...], ModePrediction] = {}
    found: list[ModePrediction] = []
    for made in (choice.best, *rest):
        told = prediction(
            scene,
            made,
            asked.workload,
            asked.targets,
            effort=thinking.effort,
            watts=_total(asked, made, "watts"),
            price=_total(asked, made, "price"),
            extent=asked.extent,
            measured=seen.figures_of(made.arrangement.setting) if seen else None,
            alike=known.get(_way(made)),
        )
        known.setdefault(_way(made), told)
        found.append(told)
    return tuple(found)


def _way(made: Outlook) -> tuple[object, ...]:
    """Equal for arrangements that do the same on boxes that are alike."""
    setting = made.arrangement.setting
    return (setting.mode, setting.prefill, setting.kv_wire, made.goodput, made.latency_s)


def _total(asked: Asked, made: Outlook, what: str) -> float | None:
    """Watts or price of the boxes that an arrangement uses; None when one isn't known."""
    used = [box for box in asked.boxes if box.name in made.arrangement.boxes]
    figures = [box.load_w.value if what == "watts" else box.price for box in used]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _sustainable(asked: Asked, choice: Choice, chosen: ModePrediction) -> bool | None:
    """Whether the load can be borne: its targets by nine of ten, or its rate without a queue."""
    targets = asked.targets
    if targets.ttft_s is not None or targets.tpot_s is not None:
        return choice.best.attainment >= CAPACITY_ATTAINMENT and choice.best.keeps_up
    arrivals = asked.workload.arrivals
    if arrivals.kind == "closed" or chosen.capacity_requests_per_s is None:
        return True
    offered = (arrivals.mean_rate_requests_per_s or 0.0) * asked.workload.turns
    return offered <= chosen.capacity_requests_per_s


def _most_users(
    asked: Asked, scene: Scene, able: Sequence[Arrangement], thinking: Thinking
) -> MostUsers | None:
    """Of a closed loop."""
    users = asked.workload.arrivals.users
    if asked.workload.arrivals.kind != "closed" or users is None:
        return None

    def holds(arrangement: Arrangement, count: int) -> bool:
        fewer = structs.replace(asked, workload=with_users(asked.workload, count))
        return _look(fewer, scene, arrangement, thinking).attainment >= CAPACITY_ATTAINMENT

    return most_users(users, able, holds)


def _recommendation(asked: Asked, scene: Scene, choice: Choice, verdict: str) -> Recommendation:
    best = choice.best.arrangement
    setting = best.setting
    runner = choice.runner_up
    return Recommendation(
        mode=setting.mode,
        prefill_box=setting.prefill_box if setting.mode == "split" else _one(choice.best),
        decode_box=setting.decode_box if setting.mode == "split" else _one(choice.best),
        prefill=setting.prefill,
        chunk_tokens=setting.chunk_tokens if setting.prefill == "chunked" else None,
        kv_wire=setting.kv_wire if setting.mode == "split" else None,
        sentence=_sentence(
            verdict,
            setting,
            scene,
            (explain.beyond_context(asked), explain.busy(asked, scene)),
        ),
        runner_up=runner.arrangement.mode if runner else None,
        runner_up_sentence=explain.runner_up(asked, choice) if runner else None,
        batching=explain.batching(asked, scene, setting),
    )


def _sentence(
    verdict: str, setting: ModeSetting, scene: Scene, doubts: Sequence[str | None]
) -> str:
    """The verdict, what a wire that loses precision means for it, and what speaks against it."""
    wire = narrower.sentence(setting.kv_wire, scene.kv_dtype) if lossy(setting) else None
    return _joined(verdict, wire, *doubts)


def _joined(*sentences: str | None) -> str:
    return " ".join(each for each in sentences if each)


def _one(made: Outlook) -> str | None:
    """The box of a colocated arrangement; a replica has no single one."""
    return made.arrangement.first if made.arrangement.mode == "colocated" else None


def _ledger(
    asked: Asked, scene: Scene, outlooks: Sequence[Outlook], choice: Choice
) -> tuple[LedgerRow, ...]:
    """The best arrangement of each mode, each class of prompts."""
    rows: list[LedgerRow] = []
    for made in best_of_each(outlooks, choice):
        queue_s = _median_queue(made)
        for kind in classes_of(asked.workload):
            rows.append(ledger_row(scene, made.arrangement, kind, queue_s=queue_s))
    return tuple(rows)


def best_of_each(outlooks: Sequence[Outlook], choice: Choice) -> list[Outlook]:
    """The chosen outlook, and the best one of each other mode."""
    found = {choice.best.arrangement.mode: choice.best}
    for made in sorted(outlooks, key=lambda o: (-o.goodput, o.latency_s)):
        found.setdefault(made.arrangement.mode, made)
    return list(found.values())


def rivals(outlooks: Sequence[Outlook], choice: Choice) -> tuple[Arrangement, ...]:
    """All arrangements that may win elsewhere, the chosen one and the best of each mode first.

    Another way of reading or another box may be the better one of its mode there. Of boxes that
    are alike one stands for both.
    """
    found: dict[tuple[object, ...], Arrangement] = {}
    for made in (*best_of_each(outlooks, choice), *outlooks):
        found.setdefault(_way(made), made.arrangement)
    return tuple(found.values())


def _median_queue(made: Outlook) -> float:
    queues = sorted(r.queue_s for r in made.result.records if r.queue_s is not None)
    return queues[len(queues) // 2] if queues else 0.0


def _flips(
    asked: Asked, scene: Scene, outlooks: Sequence[Outlook], choice: Choice
) -> tuple[Flip, ...]:
    return find_flips(
        Position(
            scene=scene,
            arrangements=rivals(outlooks, choice),
            workload=asked.workload,
            targets=asked.targets,
            mode=choice.best.arrangement.setting.mode,
            extent=asked.extent,
        )
    )

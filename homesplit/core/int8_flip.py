"""Whether int8 weights would change the answer: what fits, what is borne, which mode wins."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from homesplit.core import say
from homesplit.core.candidates import Asked, arrangements, build_scene
from homesplit.core.choose import Choice, choose
from homesplit.core.cost import why_no_int8
from homesplit.core.plan import Flip
from homesplit.core.predict import CAPACITY_ATTAINMENT, Outlook
from homesplit.core.scene import Arrangement, Scene
from homesplit.errors import ProfileError

Look = Callable[[Asked, Scene, Arrangement], Outlook]
"""Simulates one arrangement of a question."""


def int8_flip(asked: Asked, choice: Choice | None, look: Look) -> Flip | None:
    """The flip; None where int8 can't be had or changes nothing.

    `choice` is None where nothing fits as it is.
    """
    if asked.weights == "int8" or any(why_no_int8(box, asked.shape) for box in asked.boxes):
        return None
    narrow = structs.replace(asked, weights="int8")
    try:
        scene = build_scene(narrow)
    except ProfileError:
        # Without one box's figures there is no word of what int8 would do there.
        return None
    able = arrangements(narrow, scene)
    if not able:
        return None
    found = choose(tuple(look(narrow, scene, each) for each in able), asked.targets)
    gained = _gained(asked, choice, found)
    if gained is None:
        return None
    sentence = (
        f"With int8 weights (`--weights int8`, a small loss of precision) {gained}: "
        f"{found.best.arrangement.words()}."
    )
    return Flip(
        quantity="weights",
        value=1.0,
        unit="bytes per weight",
        mode=found.best.arrangement.mode,
        sentence=sentence,
    )


def _gained(asked: Asked, before: Choice | None, after: Choice) -> str | None:
    """What is better than before, in words."""
    if before is None:
        return "the model fits"
    share = say.percent(after.best.attainment)
    if not _holds(asked, before) and _holds(asked, after):
        return f"{share} of the requests are inside the targets"
    if before.best.arrangement.mode != after.best.arrangement.mode:
        return f"{after.best.arrangement.mode} wins"
    return None


def _holds(asked: Asked, choice: Choice) -> bool:
    """Whether the load is borne inside its targets; without any, whether it is worked off."""
    best, targets = choice.best, asked.targets
    if targets.ttft_s is None and targets.tpot_s is None:
        return best.keeps_up
    return best.attainment >= CAPACITY_ATTAINMENT and best.keeps_up

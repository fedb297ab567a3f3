"""How many users at once the boxes serve inside the targets, where users set the pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homesplit.core import say
from homesplit.core.plan import MostUsers
from homesplit.core.scene import Arrangement


def most_users(
    asked: int, able: Sequence[Arrangement], holds: Callable[[Arrangement, int], bool]
) -> MostUsers:
    """The most below `asked`, which are too many, over all arrangements; the simplest first."""
    found, best = 0, None
    for each in able:
        if found + 1 >= asked or not holds(each, found + 1):
            continue
        low, high, best = found + 1, asked, each
        while high - low > 1:
            middle = (low + high) // 2
            if holds(each, middle):
                low = middle
            else:
                high = middle
        found = low
    if best is None:
        return MostUsers(users=0, mode=None, sentence=_none(asked))
    return MostUsers(users=found, mode=best.setting.mode, sentence=_told(asked, found, best))


def _none(asked: int) -> str:
    beside = f"{asked} users at once are" if asked > 1 else "One user is"
    alone = "; not even one would be" if asked > 1 else ""
    return f"{beside} more than these boxes serve inside the targets{alone}."


def _told(asked: int, most: int, with_it: Arrangement) -> str:
    style = "" if with_it.mode == "split" else f" ({with_it.setting.prefill} prefill)"
    return (
        f"{asked} users at once are more than these boxes serve inside the targets; "
        f"{say.counted(most, 'user')} would be served so, with {with_it.mode}{style}."
    )

"""What of a measurement done again is not what it was: another server, other boxes, software."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from homesplit.core.entry import Entry
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.remeasured import Figure, box_again, link_again
from homesplit.core.say import listed

_Kept = TypeVar("_Kept")
MARK = 12
"""Letters of a fingerprint or a commit that tell it from another."""


class Other(Struct, frozen=True, kw_only=True):
    """One thing that was otherwise; None where it was not told."""

    what: str
    then: str | None
    now: str | None
    server: bool
    """Whether it makes what was measured another thing, or only says with what it was done."""

    @property
    def words(self) -> str:
        """`model big, before small`."""
        return f"{self.what} {self.now or 'not told'}, before {self.then or 'not told'}"


def otherwise(then: Entry, now: Entry) -> tuple[Other, ...]:
    """What differs between what two entries measured, and what they were measured with."""
    return (*_served(then, now), *_figures(then, now), *_software(then, now))


def otherwise_words(found: tuple[Other, ...]) -> str:
    """What must be known before the figures are held against the former ones; empty if nothing."""
    server = [each.words for each in found if each.server]
    rest = [each.words for each in found if not each.server]
    said: list[str] = []
    if server:
        said.append(
            f"It is not its former self: {'; '.join(server)}. What changed may come of that."
        )
    if rest:
        said.append(f"Other software: {'; '.join(rest)}.")
    return " ".join(said)


def address_of(entry: Entry) -> str | None:
    """Where the server was that a person named; None of a deployment, which is known by its boxes.

    A deployment's own address is another one each time: that of a tunnel.
    """
    body = entry.body if isinstance(entry.body, dict) else {}
    settings = entry.about.settings if isinstance(entry.about.settings, dict) else {}
    return settings.get("address") or body.get("url") or settings.get("url")


def _served(then: Entry, now: Entry) -> Iterator[Other]:
    told = (
        ("address", address_of(then), address_of(now)),
        ("model", then.about.model, now.about.model),
        ("fingerprint", _short(then.about.fingerprint), _short(now.about.fingerprint)),
        ("boxes", _names(then), _names(now)),
        ("door", _setting(then, "api"), _setting(now, "api")),
    )
    for what, before, after in told:
        if before != after:
            yield Other(what=what, then=before, now=after, server=True)


def _short(mark: str | None) -> str | None:
    return mark and mark[:MARK]


def _setting(entry: Entry, key: str) -> str | None:
    settings = entry.about.settings
    return settings.get(key) if isinstance(settings, dict) else None


def _names(entry: Entry) -> str | None:
    boxes = entry.about.boxes
    names = [str(box.get("name")) if isinstance(box, Mapping) else str(box) for box in boxes]
    return listed(sorted(names)) if names else None


def _figures(then: Entry, now: Entry) -> Iterator[Other]:
    """What boxes and link were measured to do, where the probes of then and now differ."""
    for figure in _measured_apart(then, now):
        before, after = (f"{value:.3g} {figure.unit}" for value in (figure.then, figure.now))
        yield Other(what=f"{figure.name} by its probe", then=before, now=after, server=True)


def _measured_apart(then: Entry, now: Entry) -> Iterator[Figure]:
    if then.kind == "probe":
        # There they are what is compared.
        return
    former = {box.name: box for box in _boxes(then)}
    for box in _boxes(now):
        if box.name in former:
            yield from (each for each in box_again(former[box.name], box) if each.differs)
    links = _read(then.about.link, LinkProfile), _read(now.about.link, LinkProfile)
    if links[0] is not None and links[1] is not None:
        yield from (each for each in link_again(links[0], links[1]) if each.differs)


def _boxes(entry: Entry) -> Iterator[BoxProfile]:
    for box in entry.about.boxes:
        known = _read(box, BoxProfile)
        if known is not None:
            yield known


def _read(value: Any, kind: type[_Kept]) -> _Kept | None:
    """The value as a profile; None where it is none, or one of a form that is gone."""
    if isinstance(value, kind):
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _software(then: Entry, now: Entry) -> Iterator[Other]:
    before, after = then.about.versions, now.about.versions
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Other(what=name, then=before.get(name), now=after.get(name), server=False)
    commits = _commit(then), _commit(now)
    if commits[0] != commits[1]:
        yield Other(what="commit", then=commits[0], now=commits[1], server=False)


def _commit(entry: Entry) -> str | None:
    """Its letters, and that files differed from it where they did."""
    told = entry.about.git_hash
    return told and told[:MARK] + ("-dirty" if told.endswith("-dirty") else "")

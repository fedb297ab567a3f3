"""The server that a load is offered to."""

from __future__ import annotations

from dataclasses import dataclass, field

import aiohttp
from homesplit_engine.status import RouterStatus

from homesplit.io.endpoint import Api, Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server to measure."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    api: Api | None = None
    named: bool = False
    """Whether a person named its address: a deployment's is another one each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A server that has been asked who it is and how it counts tokens."""

    target: Target
    session: aiohttp.ClientSession
    endpoint: Endpoint
    status: RouterStatus | None
    loopback: bool | None = None
    """Whether all of it is on one machine, so that no network is measured; None if not known."""

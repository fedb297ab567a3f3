"""Connections to boxes over SSH, with the user's own configuration, keys and known hosts.

    connections = Connections(paths=ctx.paths, ask=ctx.ask)
    box = await connections.connect("atlas")
    output = await box.run("uname -sm")
    await connections.close()

A name is, in this order: this machine (its host name or `localhost`), a typed
`[user@]host:port`, a Host of the user's ssh configuration, a box met before, a host name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket

from msgspec.structs import replace

from homesplit.errors import HomesplitError, TrustError, UnreachableError, UsageError
from homesplit.io import ssh_config
from homesplit.io.ask import Ask
from homesplit.io.box import Box
from homesplit.io.box_store import KnownBox, find_box, remember_box
from homesplit.io.local_box import LocalBox
from homesplit.io.paths import Paths
from homesplit.io.relocate import find_again
from homesplit.io.ssh_box import SshBox
from homesplit.io.ssh_login import DeclinedError, Login, RefusedError
from homesplit.io.ssh_route import Route, route_to
from homesplit.io.target import split_target

CONNECT_S = 10.0
"""Deadline of one attempt to connect and log in, without the time a person takes to answer."""
_MOST_JUMPS = 8


class Connections:
    """All connections of one run; made once, reused by name, closed together."""

    def __init__(self, *, paths: Paths, ask: Ask, connect_s: float = CONNECT_S) -> None:
        self._paths = paths
        self._logins = Login(ask=ask, own_known_hosts=paths.known_hosts, connect_s=connect_s)
        self._boxes: dict[str, Box] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, target: str) -> Box:
        """The box of that name, over the connection it has already or a new one.

        Raises UnreachableError, TrustError or UsageError, each with one clear sentence.
        """
        async with self._locks.setdefault(target, asyncio.Lock()):
            box = self._boxes.get(target)
            if box is not None and not _is_closed(box):
                return box
            self._boxes[target] = box = await self._connect(target)
            return box

    async def close(self) -> None:
        """Close every connection."""
        boxes, self._boxes = list(self._boxes.values()), {}
        await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)

    async def _connect(self, target: str) -> Box:
        if not target or target.startswith("-") or any(c.isspace() for c in target):
            raise UsageError(
                f"{target!r} can't be the name of a box.",
                do_next="Give it as [user@]host[:port], without spaces.",
            )
        if is_this_machine(target):
            return LocalBox(target)
        known, user = self._known(target)
        if known is None:
            return await self._connect_named(target)
        return await self._connect_known(replace(known, user=user or known.user))

    def _known(self, target: str) -> tuple[KnownBox | None, str | None]:
        """The box met before that `name` or `user@name` means, and that user."""
        user, host, port = split_target(target)
        if port is not None or host in ssh_config.host_aliases(ssh_config.config_path()):
            return None, user
        return find_box(self._paths, host), user

    async def _connect_named(self, target: str) -> Box:
        """Log in where the name leads to, else where the box of that name shows its key now."""
        route = await self._route(target, target)
        try:
            return await self._login(route)
        except (RefusedError, DeclinedError):
            raise
        except UnreachableError:
            box = await self._login_moved(target, route)
            if box is None:
                raise
            return box

    async def _login_moved(self, target: str, route: Route) -> Box | None:
        """As the ssh configuration says, but not where: the box has that address no more."""
        _, host, port = split_target(target)
        known = find_box(self._paths, host)
        if known is None or port is not None or route.proxy_command:
            return None
        if route.jump not in (None, "none"):
            return None
        route = dataclasses.replace(route, host_key=known.host_key)
        before = [a for a in known.addresses if a != route.host]
        for address in before:
            try:
                return await self._login(dataclasses.replace(route, host=address, port=known.port))
            except (RefusedError, DeclinedError):
                raise
            except (UnreachableError, TrustError):
                continue
        moved = await find_again(known.host_key)
        if moved is None or moved[0] in (route.host, *before):
            return None
        box = await self._login(dataclasses.replace(route, host=moved[0], port=moved[1]))
        met = replace(known, addresses=(moved[0],), port=moved[1])
        await asyncio.to_thread(remember_box, self._paths, met)
        return box

    async def _connect_known(self, known: KnownBox) -> Box:
        """Try the addresses a box was met at, then look for its host key in the network."""
        failures: list[HomesplitError] = []
        for address in known.addresses:
            try:
                return await self._login_at(known, address, known.port)
            except (RefusedError, DeclinedError):
                raise
            except (UnreachableError, TrustError) as error:
                failures.append(error)
        moved = await find_again(known.host_key)
        if moved is not None and moved[0] not in known.addresses:
            box = await self._login_at(known, *moved)
            met = replace(known, addresses=(moved[0],), port=moved[1])
            await asyncio.to_thread(remember_box, self._paths, met)
            return box
        if failures:
            raise next((e for e in failures if isinstance(e, TrustError)), failures[0])
        return await self._login(await self._route(known.name, known.name))

    async def _login_at(self, known: KnownBox, address: str, port: int) -> SshBox:
        """Log in at one address, as the box whose key is known."""
        where = f"{known.user}@" if known.user else ""
        route = await self._route(known.name, f"{where}[{address}]:{port}")
        return await self._login(
            dataclasses.replace(route, alias=known.name, host_key=known.host_key)
        )

    async def _route(self, box: str, target: str) -> Route:
        return await route_to(box, target, own_known_hosts=self._paths.known_hosts)

    async def _login(self, route: Route, depth: int = 0, *, tunnel: SshBox | None = None) -> SshBox:
        """Connect over `tunnel`, or the jump hosts if there are any; settle trust, then log in."""
        if tunnel is None and route.jump not in (None, "none"):
            tunnel = await self._jump(route, depth)
        try:
            return await self._logins.log_in(route, tunnel)
        except BaseException:
            if tunnel is not None:
                await tunnel.close()
            raise

    async def _jump(self, route: Route, depth: int) -> SshBox:
        """The last of the jump hosts, each reached over the one before."""
        if depth > _MOST_JUMPS:
            raise UsageError(
                f"the jump hosts of {route.box} lead in a circle.",
                do_next="Correct ProxyJump in the ssh configuration.",
            )
        last: SshBox | None = None
        for hop in str(route.jump).split(","):
            hop_route = await self._route(hop, hop)
            hop_route = dataclasses.replace(hop_route, jump=None) if last else hop_route
            try:
                last = await self._login(hop_route, depth + 1, tunnel=last)
            except UnreachableError as error:
                # Of the same kind: who refuses there is not another address to try.
                raise type(error)(
                    f"its jump host {hop} does not let us through: {error.what}",
                    where=route.box,
                    do_next=error.do_next,
                ) from error
        if last is None:
            raise UsageError(
                f"the ssh configuration names an empty ProxyJump for {route.box}.",
                do_next="Correct that line.",
            )
        return last


def is_this_machine(target: str) -> bool:
    """Whether a name means the machine that homesplit runs on."""
    own = socket.gethostname().split(".")[0].lower()
    return target.lower() in {"localhost", own, f"{own}.local"}


def _is_closed(box: Box) -> bool:
    return isinstance(box, SshBox) and box.is_closed()

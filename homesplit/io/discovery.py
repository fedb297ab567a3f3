"""Where machines may be: mDNS announcements, the ssh configuration, boxes used before."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import asyncssh
import psutil
from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from homesplit.core.found import Hint, clean_name
from homesplit.errors import HomesplitError
from homesplit.io import known_hosts, ssh_config
from homesplit.io.box_store import load_boxes
from homesplit.io.local_box import own_host_key
from homesplit.io.paths import Paths
from homesplit.io.target import split_target

TYPES = tuple(
    f"_{name}._tcp.local."
    for name in ("ssh", "sftp-ssh", "workstation", "device-info", "smb", "rfb", "homesplit")
)
_SSH_TYPES = {"ssh", "sftp-ssh", "homesplit"}
_OWN_TYPE = "_homesplit._tcp.local."
_OWN_HOST = "homesplit-"
"""Our announcement has a host name of its own: two responders that claim one name make avahi
rename the machine."""
_SSH_PORT = 22
PROXY_COMMAND = "ProxyCommand"
"""Told as the way to a host that the user's own command leads to."""
_RESOLVE_MS = 2500
_MOST_HINTS = 256
_SKIPPED_INTERFACES = re.compile(
    r"(docker|virbr|cni|podman|tailscale|utun)|(br-[0-9a-f]{12}|(tun|wg|lo)\d*)$"
)
"""Bridges of containers, of which docker names the later ones by a number, and tunnels: nobody
announces anything there. A bridge that a person named, as br-lan, is a network like any other."""


def own_addresses() -> dict[str, list[str]]:
    """Addresses of this machine by interface, loopback left out."""
    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6) and not one.address.startswith(
                "127."
            ):
                found.setdefault(name, []).append(one.address)
    return found


def browsing_addresses() -> list[str]:
    """IPv4 addresses on which announcements are listened for; container bridges left out.

    Where there is nothing else, they are listened on after all.
    """
    by_name = {
        name: [address for address in addresses if ":" not in address]
        for name, addresses in own_addresses().items()
    }
    networks = [name for name in by_name if not _SKIPPED_INTERFACES.match(name)]
    return [a for name in networks for a in by_name[name]] or [
        a for addresses in by_name.values() for a in addresses
    ]


class Browser:
    """Listens for announcements; `on_change()` after each, gone names included.

    Meanwhile it announces this machine as one on which somebody looks, so that two people who
    both look see one another though neither system announces SSH.
    """

    def __init__(self, interfaces: Sequence[str], on_change: Callable[[], None]) -> None:
        self._interfaces = list(interfaces)
        self._on_change = on_change
        self._hints: dict[tuple[str, str], list[Hint]] = {}
        self._overfull = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None

    async def start(self) -> str | None:
        """Begin to listen; a sentence when it can't."""
        if not self._interfaces:
            return "no network interface to listen for announcements on"
        try:
            self._zeroconf = AsyncZeroconf(interfaces=self._interfaces, ip_version=IPVersion.V4Only)
            self._browser = AsyncServiceBrowser(
                self._zeroconf.zeroconf, list(TYPES), handlers=[self._changed]
            )
        except OSError as error:
            return f"announcements can't be listened for ({error.strerror or error})"
        self._spawn(self._announce(self._zeroconf), "announce")
        return None

    def hints(self) -> list[Hint]:
        """All that is announced now."""
        return [hint for hints in list(self._hints.values()) for hint in hints][:_MOST_HINTS]

    @property
    def overfull(self) -> bool:
        """Whether more was announced than is listed."""
        return self._overfull

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._browser:
            await self._browser.async_cancel()
        if self._zeroconf:
            await self._zeroconf.async_close()

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            if self._hints.pop((service_type, name), None) is not None:
                self._on_change()
            return
        if len(self._tasks) >= _MOST_HINTS:
            self._leave_out()
            return
        self._spawn(self._resolve(service_type, name), f"resolve {name!r}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self, zeroconf: AsyncZeroconf) -> None:
        # What can't be announced is only not seen by others: the search goes on.
        with contextlib.suppress(OSError, ZeroconfError):
            info = own_announcement(socket.gethostname(), self._interfaces)
            await zeroconf.async_register_service(info, allow_name_change=True)

    async def _resolve(self, service_type: str, name: str) -> None:
        if self._zeroconf is None:
            return
        try:
            info = AsyncServiceInfo(service_type, name)
            if not await info.async_request(self._zeroconf.zeroconf, _RESOLVE_MS):
                return
            hints = hints_of(service_type, name, info)
            if service_type == _OWN_TYPE and {h.address for h in hints} <= set(self._interfaces):
                return  # our own voice
        except (
            Exception
        ):  # a stranger's malformed record raises anything; it must not end the search
            return
        if hints:
            self._keep((service_type, name), hints)

    def _keep(self, key: tuple[str, str], hints: list[Hint]) -> None:
        """List what was announced; past the bound, what is listed stays and more is left out."""
        if key not in self._hints and len(self._hints) >= _MOST_HINTS:
            self._leave_out()
            return
        self._hints[key] = hints
        self._on_change()

    def _leave_out(self) -> None:
        if not self._overfull:
            self._overfull = True
            self._on_change()


def own_announcement(hostname: str, addresses: Sequence[str]) -> AsyncServiceInfo:
    """This machine's announcement: `_homesplit._tcp` with the port of SSH."""
    name = clean_name(hostname.split(".")[0]) or "machine"
    return AsyncServiceInfo(
        _OWN_TYPE,
        f"{name}.{_OWN_TYPE}",
        port=_SSH_PORT,
        server=f"{_OWN_HOST}{name}.local.",
        parsed_addresses=list(addresses),
    )


def hints_of(service_type: str, name: str, info: Any) -> list[Hint]:
    """What one announcement says; [] when its name or addresses are of no use."""
    kind = service_type.split(".")[0].removeprefix("_")
    server = str(info.server or "")
    if kind == "homesplit":
        server = server.removeprefix(_OWN_HOST)
    shown = clean_name(server) or clean_name(name.split(".")[0])
    if shown is None:
        return []
    port = int(info.port or 0) if kind in _SSH_TYPES else 22
    addresses: Iterable[str] = info.parsed_scoped_addresses()
    return [
        Hint(name=shown, address=str(address), port=port, found_by=f"mDNS: {kind}")
        for address in list(addresses)[:16]
    ]


async def configured_hints() -> list[Hint]:
    """Hosts of the user's ssh configuration, with the address that each name leads to."""
    path = ssh_config.config_path()
    found: list[Hint] = []
    for alias in ssh_config.host_aliases(path)[:_MOST_HINTS]:
        try:
            options = await asyncssh.SSHClientConnectionOptions.construct(
                host=alias, config=[str(path)], client_keys=None
            )
        except (OSError, ValueError, asyncssh.Error) as error:
            trouble = f"the ssh configuration {path} can't be used: {error}"
            found.append(Hint(name=alias, address=alias, found_by="ssh config", trouble=trouble))
            continue
        through = PROXY_COMMAND if options.proxy_command else jumps(options.tunnel)
        found.append(
            Hint(
                name=alias,
                address=options.host,
                port=options.port,
                found_by=f"ssh config: over {through}" if through else "ssh config",
                user=options.username,
                through=through,
            )
        )
    return found


def jumps(tunnel: Any) -> str | None:
    """The jump hosts that a configuration names, None where it names none."""
    return tunnel if isinstance(tunnel, str) and tunnel != "none" else None


def remembered_hints(paths: Paths) -> list[Hint]:
    """Boxes used before, at the addresses they had."""
    return [
        Hint(
            name=b.name,
            address=a,
            port=b.port,
            found_by="used before",
            user=b.user,
            host_key=b.host_key,
        )
        for b in load_boxes(paths)
        for a in b.addresses
    ]


def typed_hints(targets: Sequence[str]) -> list[Hint]:
    """Addresses typed by hand; raises UsageError."""
    found: list[Hint] = []
    for target in targets:
        user, host, port = split_target(target)
        found.append(Hint(name=host, address=host, port=port or 22, found_by="typed", user=user))
    return found


def this_machine() -> tuple[Hint, str | None]:
    """This machine itself and its own SSH host key, when it has one."""
    name = clean_name(socket.gethostname().split(".")[0]) or "localhost"
    return Hint(name=name, address="127.0.0.1", found_by="this machine"), own_host_key()


async def trust_files(paths: Paths) -> list[Path]:
    """The known_hosts files that hold here."""
    files: list[Path] = []
    path = ssh_config.config_path()
    if path is not None:
        with contextlib.suppress(OSError, ValueError, asyncssh.Error, HomesplitError):
            options = await asyncssh.SSHClientConnectionOptions.construct(
                host="any", config=[str(path)], client_keys=None
            )
            own: Any = options.config
            files = [Path(name) for name in own.get("UserKnownHostsFile", ())]
    return [*(files or known_hosts.default_files()), paths.known_hosts]

"""How one connection goes: where to, as whom, over which jump hosts, by the ssh configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from homesplit.errors import UsageError
from homesplit.io import known_hosts, ssh_config, ssh_keys
from homesplit.io.target import split_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one attempt goes: where to, as whom, over which jump hosts, with which keys."""

    box: str
    host: str
    port: int
    user: str
    jump: str | None
    proxy_command: Any
    alias: str | None
    identities: tuple[str, ...]
    identities_only: bool
    certificates: tuple[str, ...] = ()
    agent_path: str
    trust_files: tuple[Path, ...]
    orders_host_keys: bool = False
    """Whether the configuration says which kinds of host key are asked for."""
    host_key: str | None = None
    """Fingerprint of the key that this box must show, wherever it is."""
    config: list[str] = field(default_factory=list[str])

    @property
    def at(self) -> str:
        return f"{self.host}:{self.port}"

    def names(self, address: str | None) -> list[str]:
        """What known_hosts may call this host."""
        hosts = [self.alias or self.host] + ([address] if address else [])
        return list(dict.fromkeys(known_hosts.lookup_name(h, self.port) for h in hosts))


async def route_to(box: str, target: str, *, own_known_hosts: Path) -> Route:
    """The route by the user's ssh configuration; raises UsageError where that can't be used."""
    user, host, port = split_target(target)
    path = ssh_config.config_path()
    config = [str(path)] if path else []
    try:
        options = await asyncssh.SSHClientConnectionOptions.construct(
            host=host, config=config, client_keys=None, **_given(user=user, port=port)
        )
    except (OSError, ValueError, asyncssh.Error) as error:
        raise UsageError(
            f"the ssh configuration {path} can't be used: {error}.",
            do_next="Correct that line, or try `ssh -G HOST` to see it.",
        ) from error
    own: Any = options.config
    files = _paths(own, "UserKnownHostsFile") + _paths(own, "GlobalKnownHostsFile")
    return Route(
        box=box,
        host=options.host,
        port=options.port,
        user=options.username,
        jump=options.tunnel if isinstance(options.tunnel, str) else None,
        proxy_command=options.proxy_command,
        alias=options.host_key_alias,
        identities=tuple(str(f) for f in own.get("IdentityFile", ())),
        certificates=tuple(str(f) for f in own.get("CertificateFile", ())),
        identities_only=bool(own.get("IdentitiesOnly", False)),
        agent_path=_agent_path(own),
        orders_host_keys=own.get("HostKeyAlgorithms", None) is not None,
        trust_files=(*(files or known_hosts.default_files()), own_known_hosts),
        config=config,
    )


def _paths(config: Any, key: str) -> list[Path]:
    return [Path(name).expanduser() for name in config.get(key, ())]


def _given(**values: object) -> dict[str, Any]:
    names = {"user": "username", "port": "port"}
    return {names[key]: value for key, value in values.items() if value is not None}


def _agent_path(config: Any) -> str:
    path = config.get("IdentityAgent", None) or os.environ.get("SSH_AUTH_SOCK", "")
    return "" if path == "none" else str(Path(path).expanduser()) if path else ""


def agent_of(route: Route, keys: ssh_keys.FoundKeys) -> tuple[str, list[Path] | None]:
    """The agent's socket, and the public keys it is asked for (None: all) by IdentitiesOnly."""
    if not route.identities_only:
        return route.agent_path, None
    files = [*keys.open_files, *keys.locked]
    beside = [p for f in files if (p := f.with_name(f.name + ".pub")).is_file()]
    return route.agent_path, list(dict.fromkeys([*beside, *keys.public]))

"""Where the router's HTTP door listens: on loopback always, and on one more address if asked."""

from __future__ import annotations

import ipaddress

from aiohttp import web

from homesplit_engine.config import ConfigError, RouterConfig

_LOOPBACK = "127.0.0.1"
_WITH_LOOPBACK = (_LOOPBACK, "0.0.0.0")
"""Places that the desk reaches; `::` is none, for it takes no IPv4 here."""
_BACKLOG = 1024


async def listen(runner: web.AppRunner, config: RouterConfig) -> str:
    """Listen as the settings say; returns the URL at the first of the places.

    Raises ConfigError where one of them can't be listened at.
    """
    port = config.http_port
    for host in _hosts(config.http_host):
        try:
            await web.TCPSite(runner, host, port, backlog=_BACKLOG).start()
        except OSError as error:
            raise ConfigError(f"can't listen on {host} port {port}: {error.strerror}") from error
        # One port at every place, also when the first was free to take any.
        port = runner.addresses[0][1]
    host = runner.addresses[0][0]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _hosts(wanted: str) -> tuple[str, ...]:
    """The desk comes by SSH to loopback, whoever else is let in beside it."""
    try:
        address = ipaddress.ip_address(wanted)
    except ValueError as error:
        raise ConfigError(f"http_host {wanted!r} is no IP address") from error
    return (wanted,) if str(address) in _WITH_LOOPBACK else (_LOOPBACK, wanted)

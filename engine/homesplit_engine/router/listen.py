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


def refuse_open_door(config: RouterConfig) -> None:
    """Raise ConfigError when anybody in the network could ask without a key."""
    if config.api_key_file is None and not _address(config.http_host).is_loopback:
        raise ConfigError(
            f"http_host {config.http_host} can be reached from other machines, and there is no "
            "api_key_file: name one, or listen at 127.0.0.1"
        )


def _hosts(wanted: str) -> tuple[str, ...]:
    """The desk comes by SSH to loopback, whoever else is let in beside it."""
    return (wanted,) if str(_address(wanted)) in _WITH_LOOPBACK else (_LOOPBACK, wanted)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError as error:
        raise ConfigError(f"http_host {host!r} is no IP address") from error

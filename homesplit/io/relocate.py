"""Finds a machine again by its SSH host key after its address has changed."""

from __future__ import annotations

import asyncio

from homesplit.io.discovery import Browser, browsing_addresses
from homesplit.io.knock import try_hints

_LOOK_S = 4.0
_SETTLE_S = 0.3


async def find_again(host_key: str, *, seconds: float = _LOOK_S) -> tuple[str, int] | None:
    """Address and port where a machine with that key answers, by fresh announcements; or None."""
    changed = asyncio.Event()
    browser = Browser(browsing_addresses(), changed.set)
    asked: set[tuple[str, int]] = set()
    try:
        if await browser.start() is not None:
            return None
        async with asyncio.timeout(seconds):
            while True:
                await changed.wait()
                await asyncio.sleep(_SETTLE_S)
                changed.clear()
                fresh = [h for h in browser.hints() if (h.address, h.port) not in asked]
                asked |= {(h.address, h.port) for h in fresh}
                for tried in await try_hints(fresh, []):
                    if tried.host_key == host_key:
                        return tried.hint.address, tried.hint.port
    except TimeoutError:
        return None
    finally:
        await browser.close()

"""Bodies that came packed: unpacked to a bound, and beside the event loop.

The HTTP library would do it as the bytes come, before anyone has looked for a key: a stranger's
600 kB of zeros stopped the router for more than a second and took 180 MB.
"""

from __future__ import annotations

import asyncio
import zlib

from homesplit_engine.router.errors import ApiError, bad_request

_WINDOW_BITS = {"gzip": (31,), "x-gzip": (31,), "deflate": (15, -15)}
"""By name: what zlib knows the form as; some mean the bare stream by `deflate`."""


async def unpacked(raw: bytes, encoding: str, most_bytes: int) -> bytes:
    """The body itself; raises ApiError 415, 413 or 400."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return raw
    forms = _WINDOW_BITS.get(name)
    if forms is None:
        raise ApiError(
            415,
            f"A body packed as {encoding[:40]!r} can't be read: send it plain, as gzip or deflate.",
            param="content-encoding",
        )
    return await asyncio.to_thread(_unpack, raw, forms, most_bytes)


def _unpack(raw: bytes, forms: tuple[int, ...], most_bytes: int) -> bytes:
    for form in forms:
        work = zlib.decompressobj(form)
        try:
            body = work.decompress(raw, most_bytes + 1)
        except zlib.error:
            continue
        if len(body) > most_bytes:
            raise ApiError(413, "The body is too large.", code="body_too_large")
        if work.eof and not work.unused_data:
            return body
    raise bad_request("The body is not as its headers say: it can't be unpacked.")

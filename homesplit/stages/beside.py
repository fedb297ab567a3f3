"""Work that takes long, beside the loop on which a screen is drawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")


async def beside(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What `work` gives in a thread of its own.

    Who is cancelled meanwhile, however often, goes on only after it has ended: what it writes would
    otherwise come after what is written of the cancelling. An error of it is then of no interest.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        # An error that nobody reads is told by the loop as one that was never handled.
        if not working.cancelled():
            working.exception()
        raise

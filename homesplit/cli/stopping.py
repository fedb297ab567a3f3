"""Ctrl-C of a measurement: it is stopped first, and broken off only at the second time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Generator

from homesplit.cli.output import say
from homesplit.io.load import STOPPED_S


@contextlib.contextmanager
def stopped_by_hand() -> Generator[asyncio.Event, None, None]:
    """An event that the first Ctrl-C of the block sets; the second cancels the running task.

    Where the loop can't hear signals (Windows) Ctrl-C breaks off at once, as ever.
    """
    stop, loop, task = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()
    broken_off = False

    def heard() -> None:
        nonlocal broken_off
        if not stop.is_set():
            stop.set()
            say(
                f"Stopping: nothing more is sent; answers on their way are waited for, at most "
                f"{STOPPED_S:.0f} s. Ctrl-C again breaks off."
            )
        elif task is not None:
            broken_off = True
            task.cancel()

    try:
        loop.add_signal_handler(signal.SIGINT, heard)
    except (NotImplementedError, RuntimeError, ValueError):
        yield stop
        return
    try:
        yield stop
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt if broken_off else error from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)

"""What commands print: one JSON document on stdout, everything else on stderr."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
from collections.abc import Container
from dataclasses import replace
from typing import Any, TextIO

import msgspec

from homesplit.core import events
from homesplit.errors import HomesplitError
from homesplit.stages.context import AskNobody, Context


def add_json(parser: argparse.ArgumentParser) -> None:
    """The `--json` switch that every command has."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def print_json(value: Any) -> None:
    """One JSON document, indented, on stdout."""
    raw = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(raw.decode() + "\n")
    sys.stdout.flush()


def say(sentence: str) -> None:
    """A line of progress on stderr."""
    say_raw(f"{sentence}\n")


def say_raw(text: str) -> None:
    """Text on stderr as it is; the work goes on when nobody reads it any more."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BrokenPipeError:
        silence(sys.stderr)


def reader_has_left(stream: TextIO) -> bool:
    """Whether the other end of a stream's pipe is closed; taken for closed where none can tell."""
    if not hasattr(select, "poll"):  # Windows
        return True
    look = select.poll()
    look.register(stream.fileno(), 0)
    return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in look.poll(0))


def silence(stream: TextIO) -> None:
    """Let the rest of a stream go nowhere, what it still holds included."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def fail(error: HomesplitError, *, as_json: bool) -> int:
    """Tell an error in words on stderr (and as JSON when asked); returns its exit code."""
    say(f"homesplit: {error.sentence()}")
    if as_json:
        print_json({"error": {"what": error.what, "where": error.where, "do_next": error.do_next}})
    return error.exit_code


def tell(event: events.Event) -> None:
    """Progress events as lines on stderr."""
    match event:
        case events.StageStarted(sentence=sentence) | events.StageEnded(sentence=sentence):
            say(sentence)
        case events.Progress(sentence=sentence, box=box) if sentence:
            say(f"{box}: {sentence}" if box else sentence)
        case _:
            pass


def without_outcome(ctx: Context, stage: str, steps: Container[str] = ()) -> Context:
    """The context of a command that prints this stage's outcome itself: not told twice."""

    def emit(event: events.Event) -> None:
        ended = isinstance(event, events.StageEnded) and event.stage == stage
        shown = isinstance(event, events.Progress) and event.step in steps
        if not ended and not shown:
            ctx.emit(event)

    return replace(ctx, emit=emit)


def command_context() -> Context:
    """A stage context for the command line: progress to stderr, questions by the terminal."""
    if sys.stdin.isatty():
        from homesplit.cli.ask import AskTerminal

        return Context(emit=tell, ask=AskTerminal())
    return Context(emit=tell, ask=AskNobody())

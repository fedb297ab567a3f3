"""The advice in a process of its own, so that the screen answers keys while it is worked out.

The process reads one JSON question a line and answers each with one JSON line; nothing is
pickled and no shell is involved.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from homesplit.core.candidates import Asked
from homesplit.core.elsewhere import Atlas, PlanMap, open_atlas
from homesplit.core.plan import Plan
from homesplit.errors import HomesplitError
from homesplit.io.paths import Paths
from homesplit.stages.context import Context
from homesplit.stages.plan import PlanQuestion, make_plan, read_question

ANSWER_S = 300.0
"""The longest wait for one answer."""
MAX_LINE_BYTES = 16 * 2**20


class Query(Struct, frozen=True, kw_only=True):
    """One thing to work out: the plan, a map's axes (`other` names its rows), or one cell."""

    paths: tuple[str, str, str]
    question: PlanQuestion
    other: str | None = None
    cell: tuple[int, int] | None = None


class Reply(Struct, frozen=True, kw_only=True):
    """What came of a query; `what` says why there is no answer."""

    plan: Plan | None = None
    map: PlanMap | None = None
    mode: str | None = None
    what: str | None = None
    where: str | None = None
    do_next: str | None = None


class Adviser:
    """Asks the process, starting it when it is needed."""

    def __init__(self, paths: Paths) -> None:
        self._paths = (str(paths.config), str(paths.cache), str(paths.data))
        self._process: asyncio.subprocess.Process | None = None

    async def plan(self, question: PlanQuestion) -> Plan:
        """The advice; raises HomesplitError with the reason where there is none."""
        reply = await self._ask(Query(paths=self._paths, question=question))
        if reply.plan is None:
            raise HomesplitError("the advice could not be worked out")
        return reply.plan

    async def map(self, question: PlanQuestion, other: str) -> PlanMap | None:
        """A map's axes and curve; None where no box fits the model."""
        query = Query(paths=self._paths, question=question, other=other)
        return (await self._ask(query)).map

    async def cell(self, question: PlanQuestion, other: str, cell: tuple[int, int]) -> str | None:
        """The winning mode in one cell (row, column) of that map."""
        query = Query(paths=self._paths, question=question, other=other, cell=cell)
        return (await self._ask(query)).mode

    async def _ask(self, query: Query) -> Reply:
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = msgspec.json.decode(await self._exchange(query), type=Reply)
        except BaseException:
            # An answer that nobody waits for would be taken for the next question's.
            await self.close()
            raise
        if reply.what is not None:
            raise HomesplitError(reply.what, where=reply.where, do_next=reply.do_next)
        return reply

    async def _exchange(self, query: Query) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "homesplit.stages.advice",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=MAX_LINE_BYTES,
                start_new_session=True,
            )
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise HomesplitError("the adviser's pipes are missing")
        try:
            process.stdin.write(msgspec.json.encode(query) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (ConnectionError, ValueError) as error:
            raise HomesplitError(f"the process that works out the advice broke: {error}") from error
        if not line:
            raise HomesplitError(
                "the process that works out the advice ended", do_next="Enter starts it again."
            )
        return line

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class _Desk:
    """The process's side; keeps the map that it was asked about last."""

    def __init__(self) -> None:
        self._key: tuple[PlanQuestion, str] | None = None
        self._asked: tuple[Asked, str] | None = None
        self._atlas: Atlas | None = None

    def answer(self, query: Query) -> Reply:
        config, cache, data = (Path(text) for text in query.paths)
        ctx = Context(paths=Paths(config=config, cache=cache, data=data))
        if query.other is None:
            return Reply(plan=make_plan(ctx, query.question))
        key = (query.question, query.other)
        # The same question has another map once a run has calibrated its boxes: axes read anew.
        if query.cell is None or key != self._key:
            self._open((read_question(ctx, query.question), query.other))
            self._key = key
        if self._atlas is None:
            return Reply()
        if query.cell is None:
            return Reply(map=self._atlas.map)
        return Reply(mode=self._atlas.cell(*query.cell))

    def _open(self, asked: tuple[Asked, str]) -> None:
        if asked != self._asked:
            self._atlas = open_atlas(*asked)
            self._asked = asked


def serve() -> None:
    """Answer questions until the input ends."""
    desk = _Desk()
    for line in sys.stdin.buffer:
        try:
            reply = desk.answer(msgspec.json.decode(line, type=Query))
        except HomesplitError as error:
            reply = Reply(what=error.what, where=error.where, do_next=error.do_next)
        except Exception as error:
            # The edge of the process: the screen tells it as a mistake of ours.
            told = f"this is a mistake in homesplit: {type(error).__name__}: {error}"
            reply = Reply(what=told)
        sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()

"""A made-up busy run in split mode, as a router tells it: for the benchmark of the screen.

Prompts are read on one box and answers written on the other by a small model of both: one
prompt at a time, all answers at once. Nothing is measured here; only the number, the size and
the rhythm of the events matter, and they are those of the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from homesplit_engine.events import EngineEvent, RequestDone, StatusSeen, StepSeen, TransferSeen
from homesplit_engine.records import (
    PrefillSlice,
    RequestRecord,
    StepEvent,
    TransferEvent,
    WorkerStatus,
)

READS, WRITES = "atlas", "borea"
OUTPUT_TOKENS = 32
DECODE_S = 0.025
PROMPTS = (48, 96, 640)
PREFILL_S_PER_TOKEN = 6e-5
KV_BYTES_PER_TOKEN = 46_080
LINK_BYTES_PER_S = 2e9
STATUS_S = 0.5


class Answer:
    """One request on its way."""

    def __init__(self, number: int, received_s: float) -> None:
        self.id = f"busy-{number:08d}"
        self.prompt = PROMPTS[number % len(PROMPTS)]
        self.received_s = received_s
        self.read_s = 0.0
        self.moved_s = 0.0
        self.token_s: list[float] = []


def busy_run(rate_per_s: float, start_s: float) -> Iterator[tuple[float, EngineEvent]]:
    """Events without end, each with its moment, in order."""
    arriving = _arrivals(rate_per_s, start_s)
    reading_until_s = start_s
    ready: deque[Answer] = deque()
    writing: list[Answer] = []
    step, next_status_s, now_s = 0, start_s, start_s
    coming = next(arriving)
    while True:
        while coming.received_s <= now_s:
            begin_s = max(coming.received_s, reading_until_s)
            reading_until_s = begin_s + coming.prompt * PREFILL_S_PER_TOKEN
            coming.read_s = reading_until_s
            coming.token_s.append(reading_until_s)
            coming.moved_s = reading_until_s + coming.prompt * KV_BYTES_PER_TOKEN / LINK_BYTES_PER_S
            yield now_s, _read(coming, begin_s, step)
            ready.append(coming)
            coming = next(arriving)
        while ready and ready[0].moved_s <= now_s:
            yield now_s, _moved(ready[0])
            writing.append(ready.popleft())
        step += 1
        now_s += DECODE_S
        yield now_s, _written(writing, now_s, step)
        for answer in writing:
            answer.token_s.append(now_s)
        for answer in [one for one in writing if len(one.token_s) >= OUTPUT_TOKENS]:
            writing.remove(answer)
            yield now_s, _ended(answer)
        if now_s >= next_status_s:
            next_status_s += STATUS_S
            for box in (READS, WRITES):
                yield now_s, _status(box, now_s, len(writing) if box == WRITES else len(ready))


def _arrivals(rate_per_s: float, start_s: float) -> Iterator[Answer]:
    number = 0
    while True:
        yield Answer(number, start_s + number / rate_per_s)
        number += 1


def _read(answer: Answer, begin_s: float, step: int) -> EngineEvent:
    piece = PrefillSlice(request_id=answer.id, start=0, tokens=answer.prompt, last=True)
    event = StepEvent(
        box=READS,
        step=step,
        start_s=begin_s,
        end_s=answer.read_s,
        prefill=(piece,),
        running=1,
        blocks_free=600,
        blocks_total=768,
    )
    return StepSeen(event=event)


def _written(writing: list[Answer], now_s: float, step: int) -> EngineEvent:
    event = StepEvent(
        box=WRITES,
        step=step,
        start_s=now_s - DECODE_S,
        end_s=now_s,
        decode=tuple(answer.id for answer in writing),
        context_tokens=sum(answer.prompt for answer in writing),
        running=len(writing),
        blocks_free=400,
        blocks_total=768,
    )
    return StepSeen(event=event)


def _moved(answer: Answer) -> EngineEvent:
    event = TransferEvent(
        box_from=READS,
        box_to=WRITES,
        request_id=answer.id,
        start_s=answer.read_s - answer.prompt * PREFILL_S_PER_TOKEN / 2,
        end_s=answer.moved_s,
        bytes=answer.prompt * KV_BYTES_PER_TOKEN,
        tokens=answer.prompt,
        exposed_s=answer.moved_s - answer.read_s,
    )
    return TransferSeen(event=event)


def _ended(answer: Answer) -> EngineEvent:
    record = RequestRecord(
        request_id=answer.id,
        mode="split",
        served="split",
        prefill="chunked",
        prefill_box=READS,
        decode_box=WRITES,
        why="split: reading here would hold up those who are being answered",
        outcome="completed",
        finish_reason="length",
        prompt_tokens=answer.prompt,
        output_tokens=len(answer.token_s),
        received_s=answer.received_s,
        token_s=tuple(answer.token_s),
        tokenise_s=0.001,
        queue_s=0.004,
        prefill_s=answer.prompt * PREFILL_S_PER_TOKEN,
        handoff_s=answer.moved_s - answer.read_s,
        handoff_exposed_s=answer.moved_s - answer.read_s,
        handoff_bytes=answer.prompt * KV_BYTES_PER_TOKEN,
        handoff_tokens=answer.prompt,
        first_decode_s=DECODE_S,
    )
    return RequestDone(record=record)


def _status(box: str, now_s: float, running: int) -> EngineEvent:
    status = WorkerStatus(
        box=box,
        clock_s=now_s,
        running=running,
        waiting=0,
        reserved=0,
        blocks_free=500,
        blocks_total=768,
        power_why="a made-up box",
    )
    return StatusSeen(status=status)

"""Steps and hand-offs of one box for the tests of what is drawn from them."""

from __future__ import annotations

from homesplit_engine.records import PrefillSlice, RequestRecord, StepEvent, TransferEvent

from homesplit.core import events


def decode(
    start_s: float, end_s: float, *requests: str, box: str = "a", running: int | None = None
) -> events.StepSeen:
    """A step that gave these requests a token each."""
    event = StepEvent(
        box=box,
        step=0,
        start_s=start_s,
        end_s=end_s,
        decode=requests,
        running=len(requests) if running is None else running,
    )
    return events.StepSeen(event=event)


def prefill(
    start_s: float,
    end_s: float,
    request: str,
    tokens: int,
    *beside: str,
    box: str = "a",
    last: bool = True,
) -> events.StepSeen:
    """A step that read a prompt, or a piece of it, beside answers that were written."""
    piece = PrefillSlice(request_id=request, start=0, tokens=tokens, last=last)
    event = StepEvent(
        box=box,
        step=0,
        start_s=start_s,
        end_s=end_s,
        decode=beside,
        prefill=(piece,),
        running=1 + len(beside),
    )
    return events.StepSeen(event=event)


def handed_over(start_s: float, end_s: float, request: str, tokens: int) -> events.TransferSeen:
    """A hand-off from box b to box a."""
    moved = TransferEvent(
        box_from="b",
        box_to="a",
        request_id=request,
        start_s=start_s,
        end_s=end_s,
        bytes=2**20,
        tokens=tokens,
        exposed_s=end_s - start_s,
    )
    return events.TransferSeen(event=moved)


def record(name: str, at_s: float, gap_s: float = 0.1) -> events.RequestDone:
    """A request of three tokens that ended at `at_s`."""
    return events.RequestDone(
        record=RequestRecord(
            request_id=name,
            mode="split",
            served="split",
            prefill="chunked",
            prefill_box="b",
            decode_box="a",
            why="",
            outcome="completed",
            prompt_tokens=10,
            output_tokens=3,
            received_s=at_s - 1,
            token_s=(at_s - 2 * gap_s, at_s - gap_s, at_s),
        )
    )

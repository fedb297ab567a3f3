"""Hand-offs over a slow link in the simulator: which the router gives up, and where they go on."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode
from msgspec import structs

from homesplit.core.candidates import build_scene
from homesplit.core.handoff import Piece, Wire
from homesplit.core.load import LoadPlan, OfferedRequest, PromptPart, plan_load
from homesplit.core.sim_flight import Flight
from homesplit.core.sim_line import Line
from homesplit.core.sim_result import SimRecord
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals, Workload
from tests.core.test_decide import ask, load
from tests.core.test_simulate_cancel import arranged

SLOW = 2.5e6
"""20 Mbit/s: the prompts below take 13 s of it."""
PROMPT, ANSWER = 1000, 20


def crowd(rate: float) -> Workload:
    arrivals = Arrivals(rate_requests_per_s=rate, burstiness=0.0)
    return structs.replace(load(PROMPT, ANSWER), arrivals=arrivals)


def run(rate: float, *, mode: Mode = "split", gives_up: bool = True) -> list[SimRecord]:
    work = crowd(rate)
    scene = build_scene(ask(rate=SLOW, work=work))
    plan: LoadPlan = plan_load(work, seed=5, seconds=12.0)
    return list(simulate(scene, arranged(ask(), mode), plan, gives_up=gives_up).records)


def gap_s(record: SimRecord) -> float:
    """From the first token to the second."""
    return record.timeline.token_s[1] - record.timeline.token_s[0]


def test_a_queue_of_hand_offs_is_given_up_and_every_answer_goes_on_elsewhere() -> None:
    served = run(1.0)
    gone = [record for record in served if record.handoff_s is None]
    assert len(gone) > len(served) / 2
    for record in served:
        assert record.timeline.outcome == "completed"
        assert len(record.timeline.token_s) == ANSWER
        assert record.prefill_s is not None
    # Looked at from a second on; the box that read the prompt has it among its prefixes still.
    gaps = sorted(map(gap_s, gone))
    assert gaps[len(gaps) // 2] < 2.5 and gaps[-1] < 10.0
    waited = run(1.0, gives_up=False)
    assert all(record.handoff_s is not None for record in waited)
    assert max(map(gap_s, waited)) > 60.0


def test_one_hand_off_at_a_time_is_waited_for_however_slow_the_link_is_known_to_be() -> None:
    (record,) = run(0.1)
    assert record.handoff_s is not None and 11.0 < gap_s(record) < 15.0
    assert run(0.1, gives_up=False) == [record]


def test_what_is_given_up_and_when_is_the_same_each_time() -> None:
    assert run(1.0) == run(1.0)


@pytest.mark.parametrize("mode", ["colocated", "replica"])
def test_what_hands_nothing_over_gives_nothing_up(mode: Mode) -> None:
    assert run(1.0, mode=mode) == run(1.0, mode=mode, gives_up=False)


def flight(number: int, read_s: float, megabytes: float) -> Flight:
    prompt = (PromptPart(seed=number, tokens=1),)
    asked = OfferedRequest(id=number, class_="k", prompt=prompt, output_tokens=2)
    made = Flight(offered=asked, sent_s=0.0, prompt_tokens=1)
    made.pieces.append(Piece(start_s=read_s, end_s=read_s, bytes=megabytes * 1e6))
    return made


def three() -> tuple[Line, list[Flight]]:
    """Each takes ten seconds of the line, all of them read at once."""
    line = Line(Wire(bytes_per_s=1e6, message_s=0.0, commit_s=0.0), 1)
    flights = [flight(number, 0.0, 10.0) for number in range(3)]
    for each in flights:
        line.send(each)
    return line, flights


def ends_s(flights: list[Flight]) -> list[float]:
    return [each.handoff.wire_end_s for each in flights if each.handoff]


@pytest.mark.parametrize(
    ("which", "now_s", "behind", "ends"),
    [
        (0, 4.0, [1, 2], [10.0, 14.0, 24.0]),
        (1, 4.0, [2], [10.0, 20.0, 20.0]),
        (2, 4.0, [], [10.0, 20.0, 30.0]),
        (0, 11.0, [], [10.0, 20.0, 30.0]),
    ],
    ids=["under way", "waiting", "the last", "all through, and the commit to come"],
)
def test_who_waits_behind_one_that_is_given_up_is_through_sooner(
    which: int, now_s: float, behind: list[int], ends: list[float]
) -> None:
    line, flights = three()
    assert line.dropped(flights[which], now_s) == tuple(flights[number] for number in behind)
    assert ends_s(flights) == ends
    assert line.dropped(flights[which], now_s) == ()


def test_one_given_up_before_its_turn_is_told_as_still_to_come_until_then() -> None:
    line, flights = three()
    assert line.left_bytes(flights[2], 4.0) == 26_000_000
    line.dropped(flights[1], 4.0)
    # Through after 20 s; but its sender has not come to what nobody wants any more.
    assert ends_s(flights)[2] == 20.0
    assert line.left_bytes(flights[2], 4.0) == 26_000_000
    assert line.left_bytes(flights[2], 12.0) == 8_000_000
    line.committed(flights[0])
    line.committed(flights[2])
    assert line.places == [] and line.free_s == 20.0

"""What hand-offs take beside their bytes, found in hand-offs of which it is known."""

from __future__ import annotations

import pytest
from homesplit_engine.records import PrefillSlice, RequestRecord, StepEvent, TransferEvent
from msgspec import structs

from homesplit.core.calibration import Calibration, client_part
from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.explain import guesses, sources
from homesplit.core.handoff import COMMIT_S, Wire
from homesplit.core.handoff_fit import HandoffFit, HandoffsOf, fit_handoffs
from homesplit.core.ledger import PromptClass, ledger_row
from homesplit.core.load import plan_load
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals, fixed_lengths
from tests.core.test_decide import ask

WIRE = Wire(bytes_per_s=1e6, round_trip_s=0.002, message_s=0.0, commit_s=0.5)
OF = HandoffsOf(sender="a", receiver="b", wire=WIRE, layers=10)
LAST_LAYER_S, HALF_TRIP_S = 0.1, 0.001


def handoffs(
    commits_s: list[float], *, committed: bool = True
) -> tuple[list[TransferEvent], list[StepEvent]]:
    """One prompt every 100 s: read for 10 s, 1 MB handed over, committed so much later."""
    transfers: list[TransferEvent] = []
    steps: list[StepEvent] = []
    for number, commit_s in enumerate(commits_s):
        start_s, name = 100.0 * number, f"r{number}"
        piece = PrefillSlice(request_id=name, start=0, tokens=100, last=True)
        steps.append(
            StepEvent(box="a", step=number, start_s=start_s, end_s=start_s + 10.0, prefill=(piece,))
        )
        exposed_s = LAST_LAYER_S + HALF_TRIP_S + commit_s
        transfers.append(
            TransferEvent(
                box_from="a",
                box_to="b",
                request_id=name,
                start_s=start_s + 1.0,
                end_s=start_s + 10.0 + exposed_s,
                bytes=1_000_000,
                tokens=100,
                exposed_s=exposed_s,
                committed=committed,
            )
        )
    return transfers, steps


def test_the_median_of_what_is_left_of_the_exposed_time_is_found() -> None:
    fit = fit_handoffs(*handoffs([0.02, 0.03, 0.03, 0.04, 2.0]), of=OF)
    assert fit is not None
    assert fit.commit_s == pytest.approx(0.03)
    assert fit.spread_s == pytest.approx(0.01)
    assert fit.handoffs == 5


def test_what_sending_takes_of_the_senders_processor_is_found() -> None:
    transfers, steps = handoffs([0.02] * 8)
    # Each step took 10 s; without anything to send it would take 9.5.
    alone = calibration("a", step_s=9.5)
    fit = fit_handoffs(transfers, steps, of=structs.replace(OF, fit=alone))
    assert fit is not None and fit.sending == pytest.approx(10.0 / 9.5)
    unnoticed = structs.replace(OF, fit=structs.replace(alone, step_s=9.95))
    fit = fit_handoffs(transfers, steps, of=unnoticed)
    assert fit is not None and fit.sending == 1.0
    plain = fit_handoffs(transfers, steps, of=OF)
    assert plain is not None and plain.sending == 1.0


def test_what_opening_takes_of_the_receivers_processor_is_found() -> None:
    """Steps of 1 s take 1.25 s while 0.5 MB a second come: a fifth of them, 0.4 us a byte."""
    transfers, steps = handoffs([0.02] * 4)
    whole = [
        structs.replace(t, start_s=100.0 * i, end_s=100.0 * i + 2.0)
        for i, t in enumerate(transfers)
    ]
    writes = [
        StepEvent(
            box="b",
            step=number,
            start_s=100.0 * (number // 2) + 0.2 * (number % 2),
            end_s=100.0 * (number // 2) + 0.2 * (number % 2) + 1.25,
            decode=("other",),
        )
        for number in range(8)
    ]
    known = structs.replace(OF, receiver_fit=calibration("b", step_s=1.0))
    fit = fit_handoffs(whole, [*steps, *writes], of=known)
    assert fit is not None and fit.opening_byte_s == pytest.approx(0.4e-6)
    for of, seen in ((OF, writes), (known, writes[:5])):
        untold = fit_handoffs(whole, [*steps, *seen], of=of)
        assert untold is not None and untold.opening_byte_s is None
    other = [
        structs.replace(step, start_s=step.start_s + 50, end_s=step.end_s + 50) for step in writes
    ]
    idle = fit_handoffs(whole, [*steps, *other], of=known)
    assert idle is not None and idle.opening_byte_s is None
    instant = [structs.replace(step, end_s=step.start_s) for step in writes]
    clockless = fit_handoffs(whole, [*steps, *instant], of=known)
    assert clockless is not None and clockless.opening_byte_s is None
    wires = build_scene(structs.replace(ask(), handoffs=(fit,))).wires
    assert wires[("a", "b")].opening_byte_s == fit.opening_byte_s
    assert wires[("b", "a")].opening_byte_s != fit.opening_byte_s


def test_an_untimed_processor_opens_what_comes_in_the_measured_time() -> None:
    """1.4 ns a byte, over its cores; a GPU's steps feel nothing of it."""

    def opening(**changes: object) -> float:
        asked = ask()
        boxes = tuple(structs.replace(box, **changes) for box in asked.boxes)
        return build_scene(structs.replace(asked, boxes=boxes)).wires[("a", "b")].opening_byte_s

    assert opening(device="cpu", cores=2) == pytest.approx(0.7e-9)
    assert opening(device="cpu", cores=8, cores_allowed=0.5) == pytest.approx(2.8e-9)
    assert opening(device="cpu", cores=None) == opening(device="cuda", cores=1) == 0.0


def test_answers_take_longer_by_what_opening_takes_while_kv_comes() -> None:
    """Nobody is faster for it, and the sum is what the bytes that came take."""
    asked = ask(
        work=fixed_lengths(2000, 400, name="two", arrivals=Arrivals(kind="closed", users=2))
    )
    scene = build_scene(asked)
    wire = structs.replace(scene.wires[("a", "b")], opening_byte_s=2e-9)
    opened = structs.replace(scene, wires={**scene.wires, ("a", "b"): wire})
    way = next(
        w for w in arrangements(asked, scene) if w.setting.prefill_box == "a" and w.mode == "split"
    )
    load = plan_load(asked.workload, seed=1, seconds=0.05)
    plain, made = (simulate(s, way, load, enough=2).records for s in (scene, opened))
    # The first writes while the second is read and handed over; the second only afterwards.
    later = [
        one.timeline.token_s[-1] - two.timeline.token_s[-1]
        for one, two in zip(made, plain, strict=True)
    ]
    came = scene.shape.handoff_bytes(2000, scene.kv_dtype, last=True)
    assert later[0] == pytest.approx(2e-9 * came, rel=0.1)


def calibration(name: str, *, step_s: float) -> Calibration:
    """Every step takes so long."""
    return Calibration(
        box=name,
        model="m",
        step_s=step_s,
        token_s=0.0,
        pair_s=0.0,
        sequence_s=0.0,
        context_s=0.0,
        steps=40,
        error_p50=0.0,
        error_p90=0.0,
    )


def test_a_sender_whose_processor_sends_as_well_reads_slower_in_a_split_alone() -> None:
    asked = ask()
    pair = (asked.boxes[0].name, asked.boxes[1].name)
    timed = HandoffFit(
        sender=pair[0],
        receiver=pair[1],
        commit_s=COMMIT_S,
        spread_s=0.0,
        handoffs=9,
        sending=1.25,
    )
    scene = build_scene(asked)
    slower = build_scene(structs.replace(asked, handoffs=(timed,)))
    kind = PromptClass(name="k", prompt_tokens=1000, output_tokens=20)
    for way in arrangements(asked, scene):
        plain, made = (ledger_row(s, way, kind) for s in (scene, slower))
        sends = way.setting.mode == "split" and way.setting.prefill_box == timed.sender
        assert made.prefill_s == pytest.approx((1.25 if sends else 1.0) * plain.prefill_s)
        one = fixed_lengths(1000, 20, name="one", arrivals=Arrivals(kind="closed", users=1))
        result = simulate(slower, way, plan_load(one, seed=1, seconds=0.05), enough=1)
        line = result.records[0].timeline
        assert line.token_s[0] - line.start_s == pytest.approx(made.ttft_s, rel=1e-6)
        assert line.token_s[1] - line.start_s == pytest.approx(made.ttst_s, rel=1e-6)


def test_a_prompt_is_read_while_room_for_it_is_asked_for_and_sent_once_that_is_known() -> None:
    """2 s for the round trip of the reservation: the first token waits for nothing of it."""
    asked = ask()
    scene = build_scene(asked)
    late = {pair: structs.replace(w, reserve_s=2.0) for pair, w in scene.wires.items()}
    waits = structs.replace(scene, wires=late)
    kind = PromptClass(name="k", prompt_tokens=1000, output_tokens=20)
    for way in arrangements(asked, scene):
        plain, made = (ledger_row(s, way, kind) for s in (scene, waits))
        assert made.ttft_s == plain.ttft_s
        if way.mode == "split":
            wire = late[(str(way.setting.prefill_box), str(way.setting.decode_box))]
            sent_s = made.handoff_exposed_s + made.prefill_s - wire.commit_s
            count = scene.shape.handoff_bytes(1000, scene.kv_dtype, last=True)
            known_s = wire.reserving_s - wire.round_trip_s / 2.0
            assert sent_s - wire.round_trip_s == pytest.approx(known_s + wire.seconds(count))
        one = fixed_lengths(1000, 20, name="one", arrivals=Arrivals(kind="closed", users=1))
        line = simulate(waits, way, plan_load(one, seed=1, seconds=0.05), enough=1).records[0]
        times = line.timeline
        assert times.token_s[0] - times.start_s == pytest.approx(made.ttft_s, rel=1e-6)
        assert times.token_s[1] - times.start_s == pytest.approx(made.ttst_s, rel=1e-6)


def quiet_record(name: str, *, rest_s: float, served: str = "split") -> RequestRecord:
    """A prompt that a read and b answered, or a alone, with nothing before it."""
    return RequestRecord(
        request_id=name,
        mode="split" if served == "split" else "colocated",
        served=served,
        prefill="whole",
        prefill_box="a",
        decode_box="b" if served == "split" else "a",
        why="",
        outcome="completed",
        prompt_tokens=100,
        output_tokens=2,
        received_s=50.0,
        token_s=(60.0 + rest_s, 61.0),
        tokenise_s=0.0,
        queue_s=0.0,
        prefill_s=10.0,
    )


def test_an_untimed_processor_that_reads_and_sends_reads_slower_by_what_sending_takes() -> None:
    """2.4 ns a byte, over its cores; a GPU leaves that to the processor beside it."""
    asked = ask()

    def sending(**changes: object) -> float:
        boxes = tuple(structs.replace(box, **changes) for box in asked.boxes)
        return build_scene(structs.replace(asked, boxes=boxes)).wires[("a", "b")].sending

    one = sending(device="cpu", cores=1)
    scene = build_scene(asked)
    sent = scene.shape.handoff_bytes(512, scene.kv_dtype, last=True)
    assert one > 1.0 and sending(device="cpu", cores=4) - 1.0 == pytest.approx((one - 1.0) / 4.0)
    assert sending(device="cpu", cores=8, cores_allowed=1.0) == one
    assert sending(device="cpu", cores=None) == sending(device="cuda", cores=1) == 1.0
    reads = structs.replace(asked.boxes[0], device="cpu", cores=1)
    slow = build_scene(structs.replace(asked, boxes=(reads, asked.boxes[1])))
    alone_s = slow.box("a").cost.prefill_s(512).mid
    assert (one - 1.0) * alone_s == pytest.approx(2.4e-9 * sent)


def test_the_clients_part_is_what_it_saw_beyond_the_router() -> None:
    """10.035 s at the router; 3 ms more for who asked. Who waited in a queue tells nothing."""
    records = [quiet_record(name, rest_s=0.035, served="colocated") for name in "pqr"]
    records[2] = structs.replace(records[2], queue_s=1.0)
    seen = {"p": 10.038, "q": 10.038, "r": 19.0}
    assert client_part(records, seen) == pytest.approx(0.003)
    assert client_part(records, {}) is None
    asked = ask()
    fits = tuple(structs.replace(calibration(n, step_s=0.01), client_s=0.003) for n in "ab")
    assert build_scene(structs.replace(asked, calibrations=fits)).client_s == 0.003
    assert build_scene(asked).client_s == 0.0


def test_few_or_failed_hand_offs_give_no_fit() -> None:
    assert fit_handoffs(*handoffs([0.02] * 3), of=OF) is None
    assert fit_handoffs(*handoffs([0.02] * 9, committed=False), of=OF) is None


def test_hand_offs_of_the_other_way_are_not_mixed_in() -> None:
    transfers, steps = handoffs([0.02] * 5)
    turned = [structs.replace(t, box_from="b", box_to="a") for t in transfers]
    assert fit_handoffs(turned, steps, of=OF) is None


def test_the_plan_takes_the_timed_figure_and_says_where_it_is_from() -> None:
    fit = HandoffFit(sender="a", receiver="b", commit_s=0.04, spread_s=0.0, handoffs=9, at="2026")
    bare = ask()
    timed = structs.replace(bare, handoffs=(fit,))
    wires = build_scene(timed).wires
    assert {wire.commit_s for wire in wires.values()} == {0.04}
    assert any("timed over 9" in said for said in sources(timed, build_scene(timed)))
    assert not any("beside its bytes" in said for said in guesses(timed, build_scene(timed)))


def test_the_plan_tells_how_old_the_probes_are_that_it_takes_again() -> None:
    asked = ask()
    at = "2026-01-02T03:04:05+00:00"
    first = structs.replace(asked.boxes[0], source="probe", probed_at=at)
    assert asked.link is not None
    link = structs.replace(asked.link, source="probe", probed_at=at)
    probed = structs.replace(asked, boxes=(first, asked.boxes[1]), link=link)
    told = sources(probed, build_scene(probed))
    assert told[0] == "a: probe, 2026-01-02 03:04 UTC"
    assert "link: probe, 2026-01-02 03:04 UTC" in told
    assert not told[1].endswith("UTC")


def test_the_plan_says_that_the_default_was_taken() -> None:
    bare = ask()
    assert {wire.commit_s for wire in build_scene(bare).wires.values()} == {COMMIT_S}
    said = [text for text in guesses(bare, build_scene(bare)) if "beside its bytes" in text]
    assert len(said) == 1 and "6 ms" in said[0]

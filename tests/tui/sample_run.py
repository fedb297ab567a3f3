"""A small hand-made run for drawing screens: two boxes, a link, a plan, steps, a comparison.

The figures are small and round, and are nobody's measurement.
"""

from __future__ import annotations

from collections.abc import Iterator

from homesplit_engine.records import (
    ModeSetting,
    ModeSwitch,
    PrefillSlice,
    RequestRecord,
    StepEvent,
    TransferEvent,
    WorkerStatus,
)
from homesplit_engine.words import Timeline, figures

from homesplit.core import events
from homesplit.core.choices import Choices
from homesplit.core.deployment import Change, DeployedBox, Deployment, DeployPlan
from homesplit.core.link import LatencyReading, LinkProfile
from homesplit.core.machine import Address, BoxProfile, FoundBox
from homesplit.core.plan import (
    Flip,
    LedgerRow,
    MeasuredFigures,
    ModePrediction,
    Plan,
    Recommendation,
    RuleResult,
    Spread,
    StallFigures,
)
from homesplit.core.plan_map import CurvePoint, PlanMap, RateCurve
from homesplit.core.reading import measured, unknown
from homesplit.core.workload import LengthClass, Targets

SPLIT = ModeSetting(mode="split", prefill_box="atlas", decode_box="borea")
COLOCATED = ModeSetting(mode="colocated", prefill="whole", prefill_box="atlas", decode_box="borea")
CHOICES = Choices(
    boxes=("atlas", "borea"),
    targets=Targets(ttft_s=1.0, tpot_s=0.1),
    load_rate_requests_per_s=1.0,
)


def found(name: str, address: str, *, trusted: bool = True) -> FoundBox:
    """A usable machine."""
    return FoundBox(
        name=name,
        host_key="SHA256:abc",
        addresses=(Address(address=address),),
        found_by=("mDNS",),
        trusted=trusted,
    )


def profile(name: str, gflops: float, gigabytes_per_s: float) -> BoxProfile:
    """A measured machine."""
    return BoxProfile(
        name=name,
        source="probe",
        probed_at="2026-01-01T12:00:00Z",
        memory_bytes=measured([8 * 2**30], unit="bytes", method="os"),
        memory_bytes_per_s=measured(
            [gigabytes_per_s * 1e9, gigabytes_per_s * 1.1e9], unit="bytes/s", method="copy"
        ),
        flops_per_s={"fp32": measured([gflops * 1e9], unit="flop/s", method="torch")},
        cpu="Example CPU, 4 cores",
        load_w=unknown("no power meter that this user may read"),
    )


def machines() -> Iterator[events.Event]:
    """Three machines, two of them chosen and measured."""
    yield events.BoxFound(box=found("atlas", "10.77.0.11"))
    yield events.BoxFound(box=found("borea", "10.77.0.12"))
    yield events.BoxFound(
        box=FoundBox(
            name="printer",
            addresses=(Address(address="10.77.0.40"),),
            found_by=("mDNS",),
            usable=False,
            why="no SSH server answers on port 22",
        )
    )
    yield events.ChoiceMade(choices=CHOICES)
    yield events.BoxProbed(profile=profile("atlas", 100, 10))
    yield events.BoxProbed(profile=profile("borea", 50, 10))
    yield events.LinkProbed(
        link=LinkProfile(
            a="atlas",
            b="borea",
            source="probe",
            a_to_b=measured([117e6], unit="bytes/s", method="zmq"),
            b_to_a=measured([116e6], unit="bytes/s", method="zmq"),
            latency_s=LatencyReading(
                p50=measured([0.0003], unit="s", method="zmq"),
                p99=measured([0.0009], unit="s", method="zmq"),
            ),
            encrypted_a_to_b=measured([110e6], unit="bytes/s", method="ZeroMQ sealed"),
            label_bytes_per_s=125e6,
        )
    )
    yield events.StageEnded(stage="probe", sentence="Measured atlas, borea and the link.")


def plan() -> Plan:
    """Advice with every kind of verdict in it."""
    rules = (
        ("fits", "pass", 0.6e9, 8e9, "bytes", "The weights and the KV fit either box."),
        ("link_measured", "pass", None, None, "", "Two boxes, one measured link."),
        ("someone_to_interrupt", "pass", 4.0, 2.0, "users", "4 users: prefill meets decode."),
        ("prefill_heavy", "pass", 12.0, 4.0, "1", "12 prompt tokens for each answer token."),
        ("machines_differ", "unknown", None, 1.3, "1", "No arithmetic figure for one of them."),
        ("link", "pass", 0.2, 0.9, "s", "The hand-off takes less time than the prefill."),
        ("decode_memory", "n/a", None, None, "", "Nothing else competes for the memory."),
        ("chunked_first", "fail", 0.3, 0.1, "s", "Chunked prefill alone misses the TPOT target."),
    )
    return Plan(
        recommendation=Recommendation(
            mode="split",
            prefill_box="atlas",
            decode_box="borea",
            prefill="chunked",
            chunk_tokens=256,
            kv_wire="same",
            sentence="Split: atlas reads prompts and borea writes answers; the hand-off of "
            "512 tokens takes 200 ms, less than the 900 ms of prefill that it moves away.",
            runner_up="replica",
            runner_up_sentence="Runner-up: a copy on each, 20 % fewer requests inside targets.",
        ),
        tie=False,
        sustainable=True,
        rules=tuple(
            RuleResult(id=i, verdict=v, value=x, threshold=t, unit=u, sentence=s)  # pyright: ignore[reportArgumentType]
            for i, v, x, t, u, s in rules
        ),
        modes=tuple(_predictions()),
        ledger=tuple(_ledger()),
        flips=(
            Flip(
                quantity="link_bytes_per_s",
                value=20e6,
                unit="bytes/s",
                mode="replica",
                sentence="Below 160 Mbit/s a copy on each box wins.",
            ),
        ),
        guesses=("The power of borea was not measured.",),
        sources=(
            "atlas: calibrated on 197 steps of the engine, 2026-11-29",
            "borea: probe",
            "link: profile: Gigabit Ethernet",
            "hand-off atlas to borea: 5.59 ms beside its bytes, timed over 10 of them, 2026-11-29",
        ),
        measured_at="2026-11-29T21:30:00+00:00",
        overruled="replica on both boxes, chunked prefill",
        boxes=("atlas", "borea"),
        model="smollm2-135m",
    )


def plan_map(*, cells: bool = True) -> PlanMap:
    """The advice elsewhere: more users and longer prompts make the split win."""
    prompts, users = (64, 256, 1024, 4096), (1.0, 4.0, 16.0)
    modes = (
        ("colocated", "colocated", "replica", None),
        ("replica", "replica", "split", "split"),
        ("replica", "split", "split", "split"),
    )
    return PlanMap(
        other="users",
        prompt_tokens=prompts,
        others=users,
        here_prompt=512.0,
        here_other=4.0,
        cells=modes if cells else ((None,) * 4,) * 3,
        curve=tuple(
            CurvePoint(
                prompt_tokens=tokens,
                prefill_s=0.0008 * tokens + 0.004,
                handoff_s=0.0004 * tokens + 0.05,
                exposed_s=0.03,
            )
            for tokens in prompts
        ),
        curve_boxes=("atlas", "borea"),
        rates=tuple(
            RateCurve(
                mode=mode,
                rates_requests_per_s=(0.5, 1.0, 1.5, 2.0, 2.5),
                goodput_requests_per_s=goodput,
            )
            for mode, goodput in (
                ("colocated", (0.5, 0.9, 0.6, 0.2, 0.1)),
                ("replica", (0.5, 1.0, 1.4, 1.1, 0.6)),
                ("split", (0.5, 1.0, 1.5, 1.9, 1.6)),
            )
        ),
        here_rate=1.2,
    )


def _predictions() -> Iterator[ModePrediction]:
    for mode, prefill, ttft, tpot, stall, share, good in (
        ("colocated", "whole", 1.4, 0.09, 0.9, 0.55, 1.1),
        ("colocated", "chunked", 1.6, 0.12, 0.3, 0.6, 1.2),
        ("replica", "chunked", 0.9, 0.08, 0.5, 0.8, 1.6),
        ("split", "chunked", 0.7, 0.06, 0.1, 0.95, 1.9),
    ):
        yield ModePrediction(
            mode=mode,
            boxes=("borea",) if mode == "colocated" else ("atlas", "borea"),
            prefill=prefill,
            prefill_box="atlas",
            decode_box="borea",
            ttft_s=Spread(p50=ttft, p90=ttft * 1.5, low=ttft * 0.8, high=ttft * 1.2),
            tpot_s=Spread(p50=tpot, p90=tpot * 1.5, low=tpot * 0.8, high=tpot * 1.2),
            stall_s=StallFigures(p50=stall / 2, p90=stall, low=stall / 2, high=stall * 2),
            attainment=share,
            goodput_requests_per_s=good,
            capacity_requests_per_s=good * 1.1,
            goodput_per_box=good / (1 if mode == "colocated" else 2),
            goodput_per_watt_hour=good * 36.0 if mode == "colocated" else None,
            measured=MeasuredFigures(
                offered=24,
                ttft_p50_s=ttft * 1.04,
                ttft_p90_s=ttft * 1.6,
                tpot_p50_s=tpot * 0.97,
                tpot_p90_s=tpot * 1.4,
                attainment=share - 0.04,
                goodput_requests_per_s=good * 0.95,
            )
            if mode in ("replica", "split")
            else None,
        )


def _ledger() -> Iterator[LedgerRow]:
    for mode, moved in (("colocated", 0.0), ("replica", 0.0), ("split", 0.2)):
        for name, tokens in (("short", 64), ("long", 512)):
            prefill = tokens / 512 * 0.9
            handoff = moved * tokens / 512
            yield LedgerRow(
                mode=mode,
                class_=name,
                prompt_tokens=tokens,
                output_tokens=64,
                queue_s=0.4 if mode == "colocated" else 0.1,
                tokenise_s=0.002,
                prefill_s=prefill,
                handoff_s=handoff,
                handoff_exposed_s=handoff / 4,
                first_decode_s=0.05,
                ttft_s=prefill + 0.1,
                ttst_s=prefill + 0.15 + handoff / 4,
            )


def planned() -> Iterator[events.Event]:
    """The advice."""
    yield events.PlanMade(plan=plan())
    yield events.PlanMapped(map=plan_map())
    yield events.StageEnded(stage="plan", sentence="Split is recommended.")


def deploy_planned() -> Iterator[events.Event]:
    """The list of changes."""
    changes = tuple(
        Change(box=box, kind=kind, what=what, bytes=size, needed=needed)  # pyright: ignore[reportArgumentType]
        for box in ("atlas", "borea")
        for kind, what, size, needed in (
            ("folder", "~/.homesplit", None, True),
            ("environment", "Python 3.11 with torch", 700 * 2**20, True),
            ("model", "smollm2-135m", 538 * 2**20, box == "atlas"),
            ("process", "the worker", None, True),
        )
    )
    yield events.DeployPlanned(
        plan=DeployPlan(
            boxes=("atlas", "borea"), model="smollm2-135m", setting=SPLIT, changes=changes
        )
    )


def deploying() -> Iterator[events.Event]:
    """Half way."""
    yield events.StageStarted(stage="deploy", sentence="Deploying to atlas and borea.")
    for box, done in (("atlas", 400), ("borea", 150)):
        yield events.Progress(
            stage="deploy", step="folder", box=box, done=1, total=1, sentence="made ~/.homesplit"
        )
        yield events.Progress(
            stage="deploy",
            step="environment",
            box=box,
            done=done * 2**20,
            total=700 * 2**20,
            unit="bytes",
            sentence="copying the Python environment",
            left_s=700 - done,
        )


def deployed() -> Iterator[events.Event]:
    """Both boxes run."""
    yield events.DeploymentSeen(
        deployment=Deployment(
            id="d1",
            boxes=tuple(
                DeployedBox(box=box, address=address, state="running", fingerprint="f" * 32)
                for box, address in (("atlas", "10.77.0.11"), ("borea", "10.77.0.12"))
            ),
            router_box="borea",
            model="smollm2-135m",
            setting=COLOCATED,
            router_port=8000,
            url="http://127.0.0.1:8000",
        )
    )
    yield events.StageEnded(stage="deploy", sentence="Both boxes serve.")


def _step(box: str, number: int, start_s: float, end_s: float, **more: object) -> events.Event:
    event = StepEvent(box=box, step=number, start_s=start_s, end_s=end_s, **more)  # pyright: ignore[reportArgumentType]
    return events.StepSeen(event=event, offset_s=100.0)


def _record(name: str, mode: str, at_s: float, prompt: int, gaps: list[float]) -> events.Event:
    times = [at_s]
    for gap in gaps:
        times.append(times[-1] + gap)
    split = mode == "split"
    return events.RequestDone(
        record=RequestRecord(
            request_id=name,
            mode=mode,  # pyright: ignore[reportArgumentType]
            served=mode,
            prefill="whole",
            prefill_box="atlas" if split else "borea",
            decode_box="borea",
            why="split: the hand-off of 512 tokens takes less time than their prefill",
            outcome="completed",
            finish_reason="length",
            prompt_tokens=prompt,
            output_tokens=len(times),
            received_s=at_s - prompt / 600 - 0.05,
            token_s=tuple(times),
            tokenise_s=0.002,
            queue_s=0.04,
            prefill_s=prompt / 600,
            handoff_s=0.2 if split else None,
            handoff_exposed_s=0.05 if split else None,
            handoff_bytes=prompt * 46080 if split else None,
            handoff_tokens=prompt if split else None,
            first_decode_s=0.05,
        )
    )


CLASSES = tuple(
    LengthClass(
        name=name,
        share=0.5,
        prompt_tokens_low=low,
        prompt_tokens_high=high,
        output_tokens_low=8,
        output_tokens_high=16,
    )
    for name, low, high in (("chat", 16, 64), ("document", 400, 600))
)


def serving() -> Iterator[events.Event]:
    """Colocated with a stall of 0.9 s, then a switch to split without one; now is 112 s."""
    yield events.LoadStarted(
        workload="mixed", rate_requests_per_s=1.0, seconds=None, classes=CLASSES
    )
    trio = ("r1", "r2", "r3")
    for n in range(30):
        yield _step("borea", n, n * 0.05, n * 0.05 + 0.05, decode=trio, running=3)
    long = PrefillSlice(request_id="r4", start=0, tokens=540, last=True)
    yield _step("borea", 30, 1.5, 2.4, prefill=(long,), running=3)
    four = (*trio, "r4")
    for n in range(36):
        yield _step("borea", 31 + n, 2.4 + n * 0.05, 2.45 + n * 0.05, decode=four, running=4)
    for name in trio:
        gaps = [0.05] * 29 + [0.95] + [0.05] * 20
        yield _record(name, "colocated", 100.05, 40, gaps)
    yield _record("r4", "colocated", 102.4, 540, [0.05] * 36)
    yield events.ModeSwitched(switch=ModeSwitch(at_s=104.5, setting=SPLIT, took_s=0.004))
    five = ("r5", "r6")
    for n in range(120):
        yield _step("borea", 80 + n, 5 + n * 0.05, 5.05 + n * 0.05, decode=five, running=2)
    for number, start in enumerate((5.5, 8.0)):
        piece = PrefillSlice(request_id=f"r{7 + number}", start=0, tokens=512, last=True)
        yield _step("atlas", number, start, start + 0.9, prefill=(piece,))
        yield events.TransferSeen(
            event=TransferEvent(
                box_from="atlas",
                box_to="borea",
                request_id=f"r{7 + number}",
                start_s=start + 0.2,
                end_s=start + 1.0,
                bytes=512 * 46080,
                tokens=512,
                exposed_s=0.1,
            ),
            offset_s=100.0,
        )
        yield _record(f"r{7 + number}", "split", 100 + start + 0.95, 512, [0.1] + [0.05] * 20)
    for name in five:
        yield _record(name, "split", 105.1, 64, [0.05] * 110)
    for box, free in (("atlas", 700), ("borea", 500)):
        yield events.StatusSeen(
            status=WorkerStatus(
                box=box,
                clock_s=12.0,
                running=2 if box == "borea" else 0,
                waiting=1,
                reserved=0,
                blocks_free=free,
                blocks_total=768,
                power_why="no power meter here",
            )
        )


def compared() -> Iterator[events.Event]:
    """Three modes run, one still to come, then the verdict."""
    yield events.StageStarted(stage="compare", sentence="Each mode in turn, 20 s each.")
    for mode, prefill, gap in (
        ("colocated", "whole", 0.12),
        ("colocated", "chunked", 0.11),
        ("replica", "chunked", 0.08),
        ("split", "chunked", 0.06),
    ):
        lines = [
            Timeline(
                request_id=f"{mode}{n}",
                outcome="completed",
                start_s=float(n),
                token_s=tuple(n + 0.5 + gap * t for t in range(11)),
            )
            for n in range(20)
        ]
        told = figures(lines, ttft_target_s=1.0, tpot_target_s=0.1, window_s=20.0)
        yield events.CompareRun(mode=mode, prefill=prefill, figures=told)


def verdict() -> Iterator[events.Event]:
    """The end of the comparison."""
    yield events.CompareVerdict(
        mode="split",
        sentence="Split kept every request inside both targets; the copy on each box did too, "
        "with tokens that came a third slower.",
        identical_text=True,
    )
    yield events.StageEnded(stage="compare", sentence="Split is best here.")
    for number, (kind, sentence) in enumerate(
        (
            ("probe", "atlas to borea carries 936 Mbit/s, round trip 0.3 ms."),
            ("plan", "Split recommended for prompts of 512 tokens."),
            ("comparison", "Split kept 100 % of requests inside both targets."),
        )
    ):
        yield events.EntryWritten(
            id=f"e{number}", kind=kind, at=f"2026-01-01T12:0{number}:00Z", sentence=sentence
        )


def whole_run() -> tuple[events.Event, ...]:
    """Everything, in order."""
    return (
        *machines(),
        *planned(),
        *deploy_planned(),
        *deployed(),
        *serving(),
        *compared(),
        *verdict(),
    )

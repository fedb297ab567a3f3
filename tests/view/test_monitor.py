"""Monitor's figures: of the present mode, by the workload's classes, with the link's use."""

from __future__ import annotations

from homesplit_engine.records import ModeSetting, ModeSwitch, PrefillSlice, StepEvent, TransferEvent

from homesplit.core import events
from homesplit.core.state import Done, Engine, Load, RunState
from homesplit.core.workload import LengthClass, Targets
from homesplit.view.link_use import link_use
from homesplit.view.monitor import panel, recent, span_words
from homesplit.view.prompt_classes import prompt_classes
from homesplit.view.running import running


def done(name: str, received_s: float, *, prompt: int = 10, ttft_s: float = 1.0) -> Done:
    return Done(
        request_id=name,
        at_s=received_s + 2,
        received_s=received_s,
        mode="split",
        served="split",
        outcome="completed",
        prompt_tokens=prompt,
        output_tokens=5,
        ttft_s=ttft_s,
        ttst_s=None,
        tpot_s=0.1,
        longest_gap_s=0.1,
    )


def kind(name: str, low: int, high: int) -> LengthClass:
    return LengthClass(
        name=name,
        share=0.5,
        prompt_tokens_low=low,
        prompt_tokens_high=high,
        output_tokens_low=1,
        output_tokens_high=1,
    )


SWITCH = ModeSwitch(at_s=50.0, setting=ModeSetting(mode="split"), took_s=0.01)


def test_requests_of_the_mode_before_the_switch_are_left_out() -> None:
    engine = Engine(requests=(done("old", 49), done("new", 51)), switches=(SWITCH,))
    assert [one.request_id for one in recent(engine, 60.0)] == ["new"]


def test_the_span_says_how_much_of_the_mode_was_seen() -> None:
    engine = Engine(setting=SWITCH.setting, switches=(SWITCH,))
    assert span_words(engine, 62.0) == "12 s of split"
    assert span_words(engine, 200.0) == "last 60 s"


def test_classes_are_the_workloads_own_and_parted_between_them() -> None:
    found = prompt_classes(Load(classes=(kind("long", 200, 400), kind("short", 16, 50))))
    assert [(one.name, one.holds(60), one.holds(300)) for one in found] == [
        ("short", True, False),
        ("long", False, True),
    ]


def test_classes_of_the_same_lengths_are_one() -> None:
    found = prompt_classes(Load(classes=(kind("a", 10, 100), kind("b", 50, 200))))
    assert [one.name for one in found] == ["a+b"]


def test_a_class_has_a_figure_of_its_own() -> None:
    engine = Engine(requests=(done("s", 1, ttft_s=1), done("l", 2, prompt=300, ttft_s=3)))
    classes = prompt_classes(Load(classes=(kind("short", 8, 16), kind("long", 200, 400))))
    found = panel(engine, "ttft", Targets(), 5.0, classes)
    assert found.by_class == (("short", 1.0), ("long", 3.0))


def test_the_link_carries_what_the_hand_offs_sent_in_the_last_ten_seconds() -> None:
    moved = TransferEvent(
        box_from="a",
        box_to="b",
        request_id="r",
        start_s=95.0,
        end_s=96.0,
        bytes=1000,
        tokens=1,
        exposed_s=0.0,
    )
    state = RunState(engine=Engine(transfers=(events.TransferSeen(event=moved),)))
    (use,) = link_use(state, ("a", "b"), 100.0)
    assert (use.box_from, use.box_to, use.bytes_per_s, use.handoffs) == ("a", "b", 100.0, 1)
    assert use.measured_bytes_per_s is None
    assert use.why == "this link was not probed"


def test_running_requests_are_those_the_steps_tell_of_that_have_not_ended() -> None:
    step = StepEvent(
        box="a",
        step=1,
        start_s=0.0,
        end_s=1.0,
        decode=("ended", "writes", "health-1"),
        prefill=(PrefillSlice(request_id="reads", start=0, tokens=64, last=False),),
    )
    engine = Engine(steps=(events.StepSeen(event=step),), requests=(done("ended", 0),))
    found = {one.request_id: (one.reading, one.read_tokens) for one in running(engine, 2.0)}
    assert found == {"reads": (True, 64), "writes": (False, 0)}

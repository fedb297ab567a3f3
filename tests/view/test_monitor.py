"""Monitor's figures: of the present mode, by the workload's classes, with the link's use."""

from __future__ import annotations

import pytest
from homesplit_engine.records import (
    Fault,
    Mode,
    ModeSetting,
    ModeSwitch,
    PrefillSlice,
    StepEvent,
    TransferEvent,
)
from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.deployment import Deployment
from homesplit.core.engine_state import MENDED, Done, Engine, after
from homesplit.core.state import Load, RunState
from homesplit.core.workload import LengthClass, Targets
from homesplit.view.charts import handoff_chart, requests_chart
from homesplit.view.history import SLOTS, History
from homesplit.view.link_use import Moves, link_use
from homesplit.view.monitor import headline, latest_fault, recent, span_words
from homesplit.view.panels import Seen, panel, panel_lines
from homesplit.view.plan_charts import rates_chart
from homesplit.view.prompt_classes import place_by_length, prompt_classes
from homesplit.view.running import running
from homesplit.view.scatter import scatter
from homesplit.view.spans import plain
from homesplit.view.trails import Trails
from homesplit.view.watch import Watch
from tests.tui import sample_run
from tests.view.steps import record


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
    assert span_words(engine, 62.0, 10) == "last 12 s"
    assert span_words(engine, 200.0) == "last 60 s"


def test_classes_are_the_workloads_own_and_parted_between_them() -> None:
    found = prompt_classes(Load(classes=(kind("long", 200, 400), kind("short", 16, 50))))
    place = place_by_length(found)
    parted = {tokens: found[place(tokens)].name for tokens in (1, 60, 99, 100, 300, 10**10)}
    assert list(parted.values()) == ["short"] * 3 + ["long"] * 3


def test_classes_of_the_same_lengths_are_one() -> None:
    found = prompt_classes(Load(classes=(kind("a", 10, 100), kind("b", 50, 200))))
    assert [one.name for one in found] == ["a+b"]


def test_a_class_has_a_figure_of_its_own() -> None:
    engine = Engine(requests=(done("s", 1, ttft_s=1), done("l", 2, prompt=300, ttft_s=3)))
    classes = prompt_classes(Load(classes=(kind("short", 8, 16), kind("long", 200, 400))))
    found = panel(Seen(recent(engine, 5.0), classes), "ttft", Targets())
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
    state = RunState(engine=after(Engine(), [events.TransferSeen(event=moved)]))
    moves = Moves()
    moves.take(state.engine)
    (use,) = link_use(state, moves, ("a", "b"), 100.0)
    assert (use.box_from, use.box_to, use.bytes_per_s, use.handoffs) == ("a", "b", 100.0, 1)
    assert use.measured_bytes_per_s is None
    assert use.why == "this link was not probed"
    assert link_use(state, moves, ("a", "b"), 200.0) == ()


def test_a_hand_off_is_spread_over_its_time_and_looked_at_once() -> None:
    moved = TransferEvent(
        box_from="a",
        box_to="b",
        request_id="r",
        start_s=91.0,
        end_s=95.0,
        bytes=4000,
        tokens=1,
        exposed_s=0.0,
    )
    engine = after(Engine(), [events.TransferSeen(event=moved)])
    moves = Moves()
    for _ in range(3):
        moves.take(engine)
    assert [slot.bytes for slot in moves.of(("a", "b"), 97.0)][-4:] == [1000, 2000, 1000, 0]
    assert moves.of(("b", "a"), 97.0)[-1].bytes == 0


def test_hand_offs_that_nobody_looks_at_are_forgotten() -> None:
    moves, engine = Moves(), Engine()
    for n in range(500):
        moved = TransferEvent(
            box_from="a",
            box_to="b",
            request_id="r",
            start_s=float(n),
            end_s=n + 0.5,
            bytes=1,
            tokens=1,
            exposed_s=0.0,
        )
        engine = after(engine, [events.TransferSeen(event=moved)])
        moves.take(engine)
    assert all(len(slots) <= 60 for slots in moves._slots.values())  # pyright: ignore[reportPrivateUsage]


def test_running_requests_are_those_the_steps_tell_of_that_have_not_ended() -> None:
    step = StepEvent(
        box="a",
        step=1,
        start_s=0.0,
        end_s=1.0,
        decode=("ended", "writes", "health-1"),
        prefill=(PrefillSlice(request_id="reads", start=0, tokens=64, last=False),),
    )
    watch = Watch()
    watch.take(after(Engine(), [events.StepSeen(event=step), record("ended", 1.0)]), None)
    found = {one.request_id: (one.reading, one.read_tokens) for one in running(watch, 2.0)}
    assert found == {"reads": (True, 64), "writes": (False, 0)}


def test_a_minute_of_fifty_requests_a_second_is_counted_whole() -> None:
    engine = after(Engine(), [record(f"r{n}", 100 + n / 50) for n in range(5000)])
    assert len(recent(engine, 200.0)) == 3000


def test_a_target_is_said_whole_and_where_it_comes_from_as_far_as_there_is_room() -> None:
    seen = Seen((done("1", 100.0),), prompt_classes(Load()))
    found = panel(seen, "ttft", Targets(ttft_s=20.0), ())
    wide, narrow = (plain(panel_lines(found, width, 2, "3× alone")) for width in (30, 16))
    assert "target 20.0 s = 3× alone" in wide
    assert narrow.split("\n")[1] == "target 20.0 s"


def test_the_curves_of_a_chart_are_told_apart_without_colour() -> None:
    for chart in (handoff_chart(sample_run.plan_map()), rates_chart(sample_run.plan_map())):
        assert len({points.marker for points in chart.series}) == len(chart.series) > 1


def test_a_fault_is_told_and_then_that_it_is_mended_until_the_strips_have_passed_both() -> None:
    broken = Fault(at_s=100.0, box="borea", kind="pause", sentence="You paused borea for 10 s.")
    mended = Fault(at_s=110.0, box="borea", kind=MENDED, sentence="borea is as before.")
    engine = Engine(faults=(broken, mended))
    seen = [latest_fault(Engine(faults=(broken,)), 105.0, 10.0), latest_fault(engine, 112.0, 10.0)]
    assert [plain([one]) for one in seen if one is not None] == [
        "✗ fault You paused borea for 10 s.",
        "✓ borea is as before.",
    ]
    assert latest_fault(engine, 121.0, 10.0) is None
    late = Fault(at_s=104.0, box="borea", kind="worker_lost", sentence="borea was lost.")
    told = latest_fault(Engine(faults=(broken, mended, late)), 112.0, 10.0)
    assert told is not None
    assert plain([told]) == "✓ borea is as before."


def test_the_history_has_a_median_for_each_ten_seconds_and_gaps_where_nothing_ended() -> None:
    history = History()
    engine = after(Engine(), [record("a", 105.0, 0.1), record("b", 106.0, 0.3)])
    history.take(engine)
    history.take(after(engine, [record("c", 107.0, 0.2), record("d", 125.0, 0.5)]))
    shown = [value if value is None else round(value, 3) for value in history.of("tpot", 125.0)]
    assert len(shown) == SLOTS
    assert shown[-3:] == [0.2, None, 0.5]
    assert history.of("tpot", 5000.0) == (None,) * SLOTS


def test_the_chart_puts_new_points_right_and_high_values_up() -> None:
    engine = after(Engine(), [record("old", 50.0, 0.1), record("new", 200.0, 1.0)])
    chart = requests_chart(engine, trails(engine), "tpot", Targets(tpot_s=0.5), 200.0)
    rows = plain(scatter(chart, 40, 10)).split("\n")
    assert len(rows) == 10
    assert all(len(row) <= 40 for row in rows)
    high, low = (next(n for n, row in enumerate(rows) if mark(row)) for mark in (_right, _left))
    assert high < low
    assert any("┈" in row for row in rows)
    assert rows[-1].endswith("now")


def test_a_low_chart_has_its_times_in_the_axis_and_a_line_more_for_points() -> None:
    engine = after(Engine(), [record("old", 50.0, 0.1), record("new", 200.0, 1.0)])
    chart = requests_chart(engine, trails(engine), "tpot", Targets(tpot_s=0.5), 200.0)
    rows = plain(scatter(chart, 60, 7)).split("\n")
    assert len(rows) == 7
    assert all(len(row) <= 60 for row in rows)
    assert [("│" in row or "┤" in row) for row in rows] == [True] * 6 + [False]
    assert rows[-1].endswith("now")
    assert "─ 60 s ago ─" in rows[-1]


def test_a_targets_line_is_not_told_as_another_value_that_shares_its_row() -> None:
    engine = after(Engine(), [record("slow", 150.0, 0.4), record("new", 200.0, 0.1)])
    chart = requests_chart(engine, trails(engine), "tpot", Targets(tpot_s=0.15), 200.0)
    lined = next(row for row in plain(scatter(chart, 60, 5)).split("\n") if "┈" in row)
    assert "ms" not in lined


def test_one_far_off_point_does_not_press_the_others_flat() -> None:
    usual = [record(f"r{n}", 100.0 + n, 0.1) for n in range(20)]
    alike = after(Engine(), usual)
    chart = requests_chart(alike, trails(alike), "tpot", Targets(tpot_s=0.1), 200.0)
    assert "↑" not in plain(scatter(chart, 40, 10))
    engine = after(alike, [record("far", 200.0, 30.0)])
    chart = requests_chart(engine, trails(engine), "tpot", Targets(tpot_s=0.1), 200.0)
    assert chart.y_top == 0.4
    rows = plain(scatter(chart, 40, 10)).split("\n")
    assert [n for n, row in enumerate(rows) if "↑" in row] == [0]


def _right(row: str) -> bool:
    return row[-3:].strip() == "•"


def _left(row: str) -> bool:
    return "•" in row[:20]


def trails(*engines: Engine) -> Trails:
    found = Trails()
    for engine in engines:
        found.take(engine, prompt_classes(Load()))
    return found


def test_a_chart_has_a_point_for_each_request_of_its_three_minutes() -> None:
    first = after(Engine(), [record(f"r{n}", 100 + n / 50) for n in range(5000)])
    engine = after(first, [record("last", 200.0), record("late", 320.0)])
    chart = requests_chart(engine, trails(first, engine, engine), "tpot", Targets(), 320.0)
    assert sum(len(points.x) for points in chart.series) == 3002
    assert max(max(points.x, default=-1.0) for points in chart.series) == 0.0


def test_other_classes_part_the_points_anew() -> None:
    engine = after(Engine(), [record("a", 100.0), record("b", 101.0)])
    found = trails(engine)
    found.take(engine, prompt_classes(Load(classes=(kind("all", 1, 2000),))))
    assert [len(trail.values) for trail in found.of("tpot")] == [2]


def test_figures_that_nobody_looks_at_are_forgotten() -> None:
    history, found, engine = History(), Trails(), Engine()
    for n in range(900):
        engine = after(engine, [record(f"r{n}", float(n))])
        history.take(engine)
        found.take(engine, prompt_classes(Load()))
    assert sum(len(trail.values) for trail in found.of("ttft")) <= 181
    assert sum(map(len, history._values.values())) <= 3 * 310  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("mode", ["colocated", "split"])
@pytest.mark.parametrize("width", [80, 100, 120, 300])
def test_the_headline_tells_mode_load_and_one_machine_whole_at_every_width(
    mode: Mode, width: int
) -> None:
    setting = ModeSetting(
        mode=mode, prefill="chunked", chunk_tokens=256, prefill_box="left", decode_box="right"
    )
    deployment = Deployment(
        id="d",
        boxes=(),
        router_box="left",
        model="smollm2-135m",
        setting=setting,
        router_port=0,
        loopback=True,
    )
    state = replace(RunState(), deployment=deployment, engine=Engine(setting=setting))
    told = plain([headline(state, width)])
    assert len(told) <= width
    assert all(word in told for word in (mode, "one machine", "right", "load ○ off (l fits it"))
    assert ("measures no network" in told) == (width > 100 or (mode, width) == ("colocated", 100))

"""The advice: its invariants over random questions, and its answers to plain ones."""

from __future__ import annotations

import math

import msgspec
import pytest
from homesplit_engine.records import Mode
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from homesplit.core.candidates import CHUNKS, Asked, arrangements, build_scene, chunk_for, room_of
from homesplit.core.decide import Thinking, decide
from homesplit.core.elsewhere import Atlas, open_atlas
from homesplit.core.flips import Position, find_flips, winner
from homesplit.core.handoff import Wire
from homesplit.core.ledger import PromptClass, ledger_row
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.plan import Plan
from homesplit.core.plan_map import NOBODY, PlanMap
from homesplit.core.predict import Effort, Outlook, outlook
from homesplit.core.profile_files import parse_rate
from homesplit.core.reading import stated
from homesplit.core.scene import Scene
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload, fixed_lengths
from homesplit.io.paths import user_paths
from homesplit.io.profiles import load_link, load_model

QUICK = Thinking(effort=Effort(requests=24, capacity_requests=12, capacity_rounds=2), flips=False)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SHAPE = load_model("llama-3.2-1b", user_paths())


def box(
    name: str, *, flops: float = 20e12, bandwidth: float = 200e9, memory: float = 32e9
) -> BoxProfile:
    return BoxProfile(
        name=name,
        source="profile: test",
        memory_bytes=stated(memory, unit="bytes", source="test"),
        memory_bytes_per_s=stated(bandwidth, unit="bytes/s", source="test"),
        flops_per_s={"fp16": stated(flops, unit="flop/s", source="test")},
        device="cuda",
    )


def link(rate: float, *, loopback: bool = False) -> LinkProfile:
    reading = stated(rate, unit="bytes/s", source="test")
    return LinkProfile(
        a="a", b="b", source="typed: test", a_to_b=reading, b_to_a=reading, loopback=loopback
    )


def load(prompt: int = 1000, output: int = 50, users: int = 1) -> Workload:
    kind = LengthClass(
        name="k",
        share=1,
        prompt_tokens_low=prompt,
        prompt_tokens_high=prompt,
        output_tokens_low=output,
        output_tokens_high=output,
    )
    return Workload(name="w", classes=(kind,), arrivals=Arrivals(kind="closed", users=users))


def ask(
    *,
    a: BoxProfile | None = None,
    b: BoxProfile | None = None,
    rate: float = 1e9,
    work: Workload | None = None,
    targets: Targets | None = None,
) -> Asked:
    return Asked(
        boxes=(a or box("a"), b or box("b")),
        link=link(rate),
        shape=SHAPE,
        workload=work or load(),
        targets=targets or Targets(ttft_s=None, tpot_s=None),
    )


def looks(asked: Asked, mode: str, requests: int = 30) -> list[Outlook]:
    scene = build_scene(asked)
    return [
        outlook(scene, each, asked.workload, asked.targets, requests)
        for each in arrangements(asked, scene)
        if each.mode == mode
    ]


def numbers(value: object) -> list[float]:
    """Every number anywhere in a JSON-like value."""
    if isinstance(value, dict):
        return [n for inner in value.values() for n in numbers(inner)]
    if isinstance(value, list):
        return [n for inner in value for n in numbers(inner)]
    return [float(value)] if isinstance(value, (int, float)) else []


@FEW
@given(
    prompt=st.integers(1, 6000),
    output=st.integers(1, 200),
    users=st.integers(1, 12),
    rate=st.floats(1e5, 1e11),
    flops=st.floats(1e11, 5e14),
    bandwidth=st.floats(1e10, 3e12),
    ttft=st.one_of(st.none(), st.floats(0.01, 60)),
    tpot=st.one_of(st.none(), st.floats(0.001, 2)),
)
def test_no_valid_question_gives_a_figure_that_is_not_finite(
    prompt: int,
    output: int,
    users: int,
    rate: float,
    flops: float,
    bandwidth: float,
    ttft: float | None,
    tpot: float | None,
) -> None:
    asked = ask(
        b=box("b", flops=flops, bandwidth=bandwidth),
        rate=rate,
        work=load(prompt, output, users),
        targets=Targets(ttft_s=ttft, tpot_s=tpot),
    )
    plan = decide(asked, QUICK)
    assert all(math.isfinite(n) for n in numbers(msgspec.to_builtins(plan)))
    assert len(plan.rules) == 8 and plan.recommendation.mode is not None
    for mode in plan.modes:
        for found, mid in (
            (mode.ttft_s, mode.ttft_s.p50),
            (mode.tpot_s, mode.tpot_s.p50),
            (mode.stall_s, mode.stall_s.p90),
        ):
            ends = [each for each in (found.low, mid, found.high) if each is not None]
            assert ends == sorted(ends)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@FEW
@given(slow=st.floats(1e6, 1e9), factor=st.floats(1.5, 100), prompt=st.integers(100, 4000))
def test_a_faster_link_never_makes_a_split_worse(slow: float, factor: float, prompt: int) -> None:
    work = load(prompt, 20, users=3)
    before = looks(ask(rate=slow, work=work), "split")
    after = looks(ask(rate=slow * factor, work=work), "split")
    for old, new in zip(before, after, strict=True):
        assert new.latency_s <= old.latency_s * 1.001


@FEW
@given(prompt=st.integers(1, 4000), output=st.integers(2, 100))
def test_one_user_on_equal_boxes_gets_the_same_from_every_mode(prompt: int, output: int) -> None:
    asked = ask(rate=1e18, work=load(prompt, output))
    alone = looks(asked, "colocated")[1].latency_s
    assert looks(asked, "replica")[1].latency_s == pytest.approx(alone, rel=1e-6)
    # A link that is infinite in everything: a hand-off has no frames to handle and no commit.
    free = Wire(bytes_per_s=1e18, round_trip_s=0.0, message_s=0.0, commit_s=0.0)
    scene = build_scene(asked)
    scene = structs.replace(scene, wires=dict.fromkeys(scene.wires, free))
    splits = [each for each in arrangements(asked, scene) if each.mode == "split"]
    for each in splits:
        made = outlook(scene, each, asked.workload, asked.targets, 30)
        assert made.latency_s == pytest.approx(alone, rel=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    memory=st.floats(1e9, 1e11),
    more=st.floats(1.0, 10.0),
    prompt=st.integers(1, 200_000),
    probed=st.booleans(),
    device=st.sampled_from(["cpu", "cuda", "mps"]),
)
# Just room for a second copy of the weights, which must not take that of the conversation.
@example(memory=24.6e9, more=1.02, prompt=135_000, probed=True, device="cpu")
def test_more_memory_never_makes_a_model_unfit(
    memory: float, more: float, prompt: int, probed: bool, device: str
) -> None:
    def with_memory(value: float) -> Asked:
        made = structs.replace(box("a", memory=value), device=device)
        made = structs.replace(made, source="probe") if probed else made
        return ask(a=made, work=load(prompt, 10))

    small, large = with_memory(memory), with_memory(memory * more)
    assert room_of(large.boxes[0], large).fits >= room_of(small.boxes[0], small).fits


@FEW
@given(bandwidth=st.floats(5e10, 1e12), factor=st.floats(0.1, 1.0))
def test_a_slower_decode_box_never_improves_tpot(bandwidth: float, factor: float) -> None:
    def tpot(rate: float, users: int) -> float:
        asked = ask(b=box("b", bandwidth=rate), work=load(500, 30, users=users))
        return looks(asked, "split")[0].figures.tpot_s.p50 or 0.0

    assert tpot(bandwidth * factor, users=1) >= tpot(bandwidth, users=1) * 0.999
    # Two users meet at other steps where a step takes longer: by chance somewhat less often.
    assert tpot(bandwidth * factor, users=2) >= tpot(bandwidth, users=2) * 0.95


@FEW
@given(ttft=st.floats(0.2, 3), tpot=st.floats(0.02, 0.2), tighter=st.floats(0.2, 1.0))
def test_attainment_never_rises_as_targets_tighten(
    ttft: float, tpot: float, tighter: float
) -> None:
    # Prompts of all lengths that come as they like, so that some are inside and some are not.
    varied = structs.replace(load(100).classes[0], prompt_tokens_high=3000, output_tokens_low=2)
    arrivals = Arrivals(rate_requests_per_s=1.0)
    work = structs.replace(load(), classes=(varied,), arrivals=arrivals)
    loose = ask(work=work, targets=Targets(ttft_s=ttft, tpot_s=tpot))
    strict = ask(work=work, targets=Targets(ttft_s=ttft * tighter, tpot_s=tpot * tighter))
    # The chunk size follows the targets, so one arrangement is held fixed.
    scene, fixed = build_scene(loose), arrangements(loose, build_scene(loose))[0]
    first = outlook(scene, fixed, work, loose.targets, 30)
    second = outlook(scene, fixed, work, strict.targets, 30)
    assert second.attainment <= first.attainment


@FEW
@given(
    prompt=st.integers(1, 9000),
    output=st.integers(2, 40),
    rate=st.floats(1e6, 1e10),
    which=st.integers(0, 7),
)
def test_the_simulator_with_one_request_equals_the_ledgers_sum(
    prompt: int, output: int, rate: float, which: int
) -> None:
    work = structs.replace(load(prompt, output), arrivals=Arrivals(kind="closed", users=1))
    asked = ask(rate=rate, work=work)
    scene = structs.replace(build_scene(asked), client_s=0.01)
    arrangement = arrangements(asked, scene)[which]
    made = outlook(scene, arrangement, work, asked.targets, 1)
    times = made.result.records[0].timeline
    row = ledger_row(
        scene, arrangement, PromptClass(name="k", prompt_tokens=prompt, output_tokens=output)
    )
    reads = arrangement.setting.prefill_box if arrangement.mode == "split" else None
    if arrangement.mode == "replica" or reads in (None, "a", "b"):
        assert times.token_s[0] - times.start_s == pytest.approx(row.ttft_s, rel=1e-6)
        assert times.token_s[1] - times.start_s == pytest.approx(row.ttst_s, rel=1e-6)


def test_a_model_that_fits_neither_box_gets_no_mode_and_is_told_why() -> None:
    tiny = box("a", memory=1e9), box("b", memory=1e9)
    plan = decide(ask(a=tiny[0], b=tiny[1]), QUICK)
    assert plan.recommendation.mode is None
    assert "not a capacity technique" in plan.recommendation.sentence
    assert all(rule.sentence for rule in plan.rules)
    assert plan.rules[1].value == 1e9


def test_a_model_that_fits_one_box_is_served_there() -> None:
    plan = decide(ask(a=box("a", memory=1e9)), QUICK)
    assert plan.recommendation.mode == "colocated"
    assert plan.recommendation.decode_box == "b"


def test_auto_is_predicted_beside_the_others_and_never_far_behind_replicas() -> None:
    plan = decide(ask(b=box("b", flops=5e12, bandwidth=60e9), work=load(800, 40, users=6)), QUICK)
    goodput = {mode.mode: mode.goodput_requests_per_s or 0.0 for mode in reversed(plan.modes)}
    assert goodput["auto"] > 0.8 * goodput["replica"]
    assert plan.recommendation.mode != "auto"


def test_equal_boxes_and_one_user_tie_and_go_to_one_box() -> None:
    plan = decide(ask(), QUICK)
    assert plan.tie and plan.recommendation.mode == "colocated"


def test_equal_boxes_and_many_users_get_replicas() -> None:
    plan = decide(ask(rate=1e6, work=load(500, 100, users=8)), QUICK)
    assert plan.recommendation.mode == "replica"


def test_a_strong_reader_and_a_strong_writer_split_over_a_quick_link_only() -> None:
    writer = box("b", flops=4e12, bandwidth=2000e9)
    reader = box("a", flops=60e12, bandwidth=100e9)
    work = load(8000, 60)
    quick = decide(ask(a=reader, b=writer, rate=1e9, work=work), QUICK)
    poor = decide(ask(a=reader, b=writer, rate=1e5, work=work), QUICK)
    assert quick.recommendation.mode == "split" and quick.recommendation.prefill_box == "a"
    assert poor.recommendation.mode != "split"


def test_loopback_is_labelled_as_measuring_no_network() -> None:
    asked = structs.replace(ask(), link=link(1e9, loopback=True))
    plan = decide(asked, QUICK)
    assert plan.rules[1].verdict == "fail"
    assert "measures no network" in plan.rules[1].sentence


def test_a_load_that_no_arrangement_bears_is_not_sustainable() -> None:
    work = structs.replace(load(2000, 100), arrivals=Arrivals(rate_requests_per_s=500.0))
    plan = decide(ask(work=work, targets=Targets(ttft_s=1.0, tpot_s=0.05)), QUICK)
    assert plan.sustainable is False
    assert "ot sustainable" in plan.recommendation.sentence


def test_a_link_just_too_slow_flips_with_fewer_bytes_a_number() -> None:
    writer = box("b", flops=4e12, bandwidth=2000e9)
    reader = box("a", flops=60e12, bandwidth=100e9)
    asked = ask(a=reader, b=writer, work=load(8000, 60))
    scene = build_scene(asked)
    able = tuple(each for each in arrangements(asked, scene) if each.setting.prefill == "whole")
    here = Position(
        scene=scene,
        arrangements=able,
        workload=asked.workload,
        targets=asked.targets,
        mode="colocated",
        requests=4,
    )
    rate = 1e9
    while winner(here, scene.with_link_rate(rate), asked.workload) == "split":
        rate /= 1.5
    flips = find_flips(structs.replace(here, scene=scene.with_link_rate(rate)))
    wires = [flip for flip in flips if flip.quantity == "kv_wire"]
    assert [(flip.mode, flip.value) for flip in wires] == [("split", 1.0)]
    assert "not exact" in wires[0].sentence


def test_chunks_are_large_enough_to_read_about_as_quickly_as_whole_prompts() -> None:
    """Each step reads most of a mixture's experts, so that small chunks would take far longer."""
    asked = structs.replace(
        ask(b=box("b", bandwidth=2000e9)), shape=load_model("gpt-oss-20b", user_paths())
    )
    slow, quick = build_scene(asked).boxes
    for sim in (slow, quick):
        for tpot_s in (1e-6, 0.01, 0.1, 0.4):
            chunk = chunk_for([sim], Targets(ttft_s=2.0, tpot_s=tpot_s), 1000)
            large_s = sim.cost.step_seconds([(0, CHUNKS[0])], 0, 0) / CHUNKS[0]
            assert sim.cost.step_seconds([(0, chunk)], 0, 0) / chunk <= 1.5 * large_s
    never = Targets(ttft_s=2.0, tpot_s=1e-6)
    assert chunk_for([quick], never, 1000) < chunk_for([slow], never, 1000)
    assert chunk_for([quick, slow], never, 1000) == chunk_for([slow], never, 1000)
    kept = Targets(ttft_s=2.0, tpot_s=quick.cost.step_seconds([(0, 512)], 4, 4000))
    assert chunk_for([quick], kept, 1000) == 512


def standing(mode: Mode, *, prompt: int = 500) -> Position:
    """Two equal boxes at 2 requests/s with a target of 1 s to the first token."""
    targets = Targets(ttft_s=1.0, tpot_s=None)
    work = fixed_lengths(prompt, 20, name="w", arrivals=Arrivals(rate_requests_per_s=2.0))
    asked = ask(work=work, targets=targets)
    scene = build_scene(asked)
    able = tuple(each for each in arrangements(asked, scene) if each.setting.prefill == "whole")
    return Position(
        scene=scene, arrangements=able, workload=work, targets=targets, mode=mode, requests=20
    )


def test_a_flip_says_where_it_ends() -> None:
    """Longer prompts make two boxes win, until none is inside its target any more."""
    flips = find_flips(standing("colocated"))
    (flip,) = (each for each in flips if each.quantity == "prompt_tokens" and each.value > 500)
    assert flip.mode == "replica"
    assert "from here on, but no longer with prompts of" in flip.sentence
    here = structs.replace(standing("colocated"), requests=80)
    for tokens, mode in ((flip.value, "replica"), (0.85 * flip.value, "colocated")):
        around = fixed_lengths(round(tokens), 20, name="w", arrivals=here.workload.arrivals)
        assert winner(here, here.scene, around) == mode
    down = [each for each in find_flips(standing("replica", prompt=4000)) if each.value < 4000]
    assert any("from here down" in each.sentence for each in down)


@pytest.mark.parametrize(("second", "ways"), [(20e12, 5), (5e12, 8)])
def test_flips_and_map_weigh_every_arrangement_that_may_win_elsewhere(
    second: float, ways: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is best of its mode here need not be so there; of equal boxes one stands for both."""
    weighed: list[set[tuple[object, ...]]] = []

    def note(position: Position) -> tuple[()]:
        able = position.arrangements
        weighed.append({(e.mode, e.setting.prefill, e.words()) for e in able})
        return ()

    monkeypatch.setattr("homesplit.core.decide.find_flips", note)
    asked = ask(b=box("b", flops=second), work=load(600, 20, users=2))
    plan = decide(asked, structs.replace(QUICK, flips=True))
    atlas = open_atlas(asked, "load")
    assert atlas is not None
    note(atlas.position)
    for found in weighed:
        assert len(found) == ways
        styles = {(mode, prefill) for mode, prefill, _ in found}
        assert styles == {(mode.mode, mode.prefill) for mode in plan.modes if mode.mode != "auto"}
    assert {curve.mode for curve in atlas.map.rates} == {"colocated", "replica", "split"}
    assert len(atlas.map.rates) == 3


def test_pairs_of_lengths_are_stretched_with_the_prompts() -> None:
    """A load that draws prompt and answer together flips where one of fixed lengths does."""
    here = standing("colocated")
    (kind,) = here.workload.classes
    paired = structs.replace(
        here.workload,
        classes=(structs.replace(kind, prompt_tokens_high=900, pairs=((500, 20, 1.0),)),),
    )
    fixed, drawn = (
        [(f.mode, f.value) for f in find_flips(each) if f.quantity == "prompt_tokens"]
        for each in (here, structs.replace(here, workload=paired))
    )
    assert drawn == fixed and fixed


@pytest.mark.parametrize(
    ("at_2500", "said", "asked"),
    [
        ("split", "from here on, looked at no further than with a link that carries 40", [10, 40]),
        # Found between: what wins further out is known already.
        ("replica", "from here on, but no longer with a link that carries 2.5", []),
    ],
)
def test_a_flip_is_looked_at_only_a_little_further_out_and_says_so(
    at_2500: Mode, said: str, asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def quick(position: Position, scene: Scene, workload: Workload) -> Mode:
        (gbit,) = {wire.bytes_per_s * 8e-9 for wire in scene.wires.values()}
        seen.append(gbit)
        return "colocated" if gbit < 1.5 else at_2500 if gbit == 2.5 else "split"

    monkeypatch.setattr("homesplit.core.flips.winner", quick)
    here = standing("colocated")
    flips = find_flips(structs.replace(here, scene=here.scene.with_link_rate(1.25e8)))
    (flip,) = (each for each in flips if each.quantity == "link_rate")
    assert flip.mode == "split" and said in flip.sentence
    assert [gbit for gbit in seen if gbit > 2.5] == asked and seen.count(2.5) == 1


@pytest.mark.parametrize(
    ("surely_from", "low", "high"), [(1.0, 4.9, 6.5), (8.0, 8.0, 9.5), (1e9, None, None)]
)
def test_a_flip_that_only_few_requests_show_is_moved_or_not_told(
    surely_from: float, low: float | None, high: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 requests let replicas win from 5 requests/s on; four times as many may not."""

    def noisy(position: Position, scene: Scene, workload: Workload) -> Mode:
        rate = workload.arrivals.rate_requests_per_s or 0.0
        least = 5.0 if position.requests == 20 else max(5.0, surely_from)
        return "replica" if rate >= least else "colocated"

    monkeypatch.setattr("homesplit.core.flips.winner", noisy)
    found = [flip.value for flip in find_flips(standing("colocated")) if flip.quantity == "rate"]
    if low is None or high is None:
        assert found == []
    else:
        (value,) = found
        assert low <= value <= high


def test_where_nobody_is_inside_the_targets_nothing_is_said_to_win() -> None:
    """Prompts that take longer to read than the first token may: no mode is better than another."""
    at = standing("replica", prompt=4000)
    lost = fixed_lengths(60_000, 20, name="w", arrivals=at.workload.arrivals)
    assert winner(at, at.scene, lost) is None
    axes = PlanMap(
        other="requests/s",
        prompt_tokens=(500, 60_000),
        others=(2.0,),
        here_prompt=4000.0,
        here_other=2.0,
    )
    atlas = Atlas(map=axes, position=at)
    assert (atlas.cell(0, 0), atlas.cell(0, 1)) == ("colocated", NOBODY)
    lengths = [each for each in find_flips(at) if each.quantity == "prompt_tokens"]
    assert lengths and all(each.value < 4000 for each in lengths)


def slow_split(rate: float) -> Plan:
    """A box that reads much faster than the one that writes well, and the link between them."""
    reader = box("a", flops=100e12, bandwidth=50e9)
    writer = box("b", flops=1e12, bandwidth=1000e9)
    return decide(ask(a=reader, b=writer, rate=rate, work=load(8000, 60)), QUICK)


def test_where_the_link_holds_a_split_back_kv_is_sent_smaller_and_that_is_told() -> None:
    plan = slow_split(3e7)
    advice = plan.recommendation
    assert advice.mode == "split" and advice.kv_wire in ("fp16", "int8")
    for said in ("texts may differ", "quality.md", f"colocated,split:{advice.kv_wire}"):
        assert said in advice.sentence
    assert plan.modes[0].kv_wire == advice.kv_wire
    exact = [each for each in plan.modes if each.mode == "split" and each.kv_wire == "same"]
    quickest = min(each.ttft_s.p50 or 0.0 for each in exact)
    assert exact and quickest >= (plan.modes[0].ttft_s.p50 or 0.0)
    assert not any(flip.quantity == "kv_wire" for flip in plan.flips)


def test_where_the_link_is_quick_enough_a_split_sends_kv_as_it_is() -> None:
    advice = slow_split(1e11).recommendation
    assert (advice.mode, advice.kv_wire) == ("split", "same")
    assert "differ" not in advice.sentence


@pytest.mark.parametrize(
    ("memory", "copies", "room"),
    [
        # Weights of 4.94 GB in fp32, all of them in linear layers: up to a quarter of what is
        # free a copy of all but the head's 1.05 GB, then half of the rest for KV.
        (20e9, 0, (20e9 - 4.94e9) / 2),
        (30e9, 1, (30e9 - 4.94e9 - 3.89e9) / 2),
    ],
)
def test_the_engines_second_copy_of_the_weights_takes_of_the_room_for_kv(
    memory: float, copies: int, room: float
) -> None:
    probed = structs.replace(box("a", memory=memory), source="probe", device="cpu")
    found = room_of(probed, ask(a=probed))
    assert found.fits
    assert found.copy == pytest.approx(copies * 3.89e9, rel=0.01)
    assert found.kv_room == pytest.approx(room, rel=0.01)


def test_a_machine_known_by_its_maker_is_not_held_to_this_engines_share() -> None:
    assert room_of(box("a"), ask()).kv_room == pytest.approx(0.9 * 32e9 - 2.47e9, rel=0.01)


def test_an_answer_that_is_quick_once_it_begins_is_not_sustainable_when_the_queue_grows() -> None:
    work = structs.replace(load(4000, 40), arrivals=Arrivals(rate_requests_per_s=3.0))
    patient = Targets(ttft_s=None, tpot_s=0.1)
    asked = ask(a=box("a", flops=2e12), b=box("b", flops=20e12), work=work, targets=patient)
    for made in looks(asked, "colocated"):
        if made.arrangement.first == "a" and made.arrangement.setting.prefill == "chunked":
            assert made.attainment > 0.9 and not made.keeps_up
            # What is worked off later is no goodput of the time in which it was asked.
            assert made.goodput < 1.5
    alone = structs.replace(asked, boxes=asked.boxes[:1], link=None)
    assert decide(alone, QUICK).sustainable is False


@settings(max_examples=100, deadline=None)
@given(megabit=st.integers(1, 400_000))
def test_a_rate_means_the_same_in_every_unit_it_is_typed_in(megabit: int) -> None:
    typed = (
        f"{megabit}Mbit/s",
        f"{megabit} mbps",
        f"{megabit / 8}MB/s",
        f"{megabit * 1000}kbit/s",
        f"{megabit / 1000}Gbit/s",
        f"{megabit * 125_000}B/s",
    )
    for text in typed:
        rate = parse_rate(text)
        assert rate == pytest.approx(megabit * 125_000)
        made = load_link(text, "a", "b", user_paths())
        scene = build_scene(structs.replace(ask(), link=made))
        assert {wire.bytes_per_s for wire in scene.wires.values()} == {rate}


@FEW
@given(factor=st.floats(0.1, 50.0), prompt=st.integers(64, 4000), output=st.integers(2, 60))
def test_boxes_and_link_of_twice_the_speed_take_half_the_time(
    factor: float, prompt: int, output: int
) -> None:
    """Rates stay rates and seconds seconds, all the way from a profile to the ledger."""

    def times(by: float) -> list[float]:
        asked = ask(
            a=box("a", flops=20e12 * by, bandwidth=200e9 * by),
            b=box("b", flops=20e12 * by, bandwidth=200e9 * by),
            rate=1e9 * by,
        )
        kind = PromptClass(name="k", prompt_tokens=prompt, output_tokens=output)
        scene = build_scene(asked)
        fixed = {"message_s": 0.0, "commit_s": 0.0, "reserve_s": 0.0}
        free = {p: structs.replace(w, **fixed) for p, w in scene.wires.items()}
        boxes = tuple(
            structs.replace(b, cost=structs.replace(b.cost, step_s=0.0)) for b in scene.boxes
        )
        scene = structs.replace(scene, wires=free, boxes=boxes)
        rows = [ledger_row(scene, each, kind) for each in arrangements(asked, scene)]
        return [v for r in rows for v in (r.prefill_s, r.handoff_s, r.first_decode_s)]

    for slow, quick in zip(times(1.0), times(factor), strict=True):
        assert slow == pytest.approx(quick * factor, rel=1e-6)


def test_each_role_has_its_own_batch_policy() -> None:
    """The reader takes whole prompts and writes nothing, the writer only answers."""
    advice = slow_split(1e11).recommendation
    reader, writer = advice.batching
    assert (reader.box, reader.reads, reader.writes) == ("a", True, False)
    assert (writer.box, writer.reads, writer.writes) == ("b", False, True)
    assert reader.answers_at_once is None and writer.prompt_tokens_a_step is None
    assert "whole prompts" in reader.sentence and "answers at once" in writer.sentence


def test_a_box_with_room_for_few_conversations_writes_few_at_once() -> None:
    def at_once(memory: float) -> int:
        asked = ask(a=box("a", memory=memory), work=load(8000, 60))
        alone = structs.replace(asked, boxes=asked.boxes[:1], link=None)
        return decide(alone, QUICK).recommendation.batching[0].answers_at_once or 0

    assert at_once(64e9) == 64
    assert 1 <= at_once(4e9) < 64


def test_a_runner_up_that_gets_as_many_is_not_told_to_get_0_percent_more() -> None:
    said = decide(ask(), QUICK).recommendation.runner_up_sentence or ""
    assert "as many" in said and "with more to run" in said and "0%" not in said


def test_the_advice_carries_its_interval_and_a_quick_reader_may_make_tokens_slower() -> None:
    """Over a slow link, what is read in less time hides less of the hand-off."""
    plan = decide(ask(rate=1e8, work=load(4000, 20)), QUICK)
    assert any("Colocated may get TTFT" in said and "TPOT" in said for said in plan.guesses)
    split = next(each for each in plan.modes if each.mode == "split").tpot_s
    assert (split.low or 0.0) < (split.p50 or 0.0) < (split.high or 0.0)


def test_the_plan_names_the_formats_that_it_reckons_with() -> None:
    assert "in bf16 (2.47 GB) on a and b; KV cache in bf16" in decide(ask(), QUICK).weights
    probed = structs.replace(box("a"), source="probe", device="cpu")
    assert "fp32 (4.94 GB) on a" in decide(ask(a=probed), QUICK).weights
    nowhere = decide(ask(a=box("a", memory=1e9), b=box("b", memory=1e9)), QUICK)
    assert "in bf16" in nowhere.weights


def test_only_a_ttft_target_and_only_a_tpot_target_may_get_different_answers() -> None:
    """A quick reader with slow memory: it holds the first alone, the second needs the writer."""
    reader = box("a", flops=60e12, bandwidth=60e9)
    writer = box("b", flops=4e12, bandwidth=2000e9)
    work = load(4000, 60, users=2)
    first = Targets(ttft_s=1.2, tpot_s=None)
    each = Targets(ttft_s=None, tpot_s=0.02)
    answers = {
        decide(
            ask(a=reader, b=writer, rate=2e7, work=work, targets=targets), QUICK
        ).recommendation.sentence.split(":")[0]
        for targets in (first, each)
    }
    assert len(answers) == 2


def test_over_a_link_of_which_nothing_is_known_no_split_is_advised() -> None:
    asked = structs.replace(ask(), link=None)
    scene = build_scene(asked)
    assert {each.mode for each in arrangements(asked, scene)} == {"colocated", "replica"}
    plan = decide(asked, QUICK)
    assert {mode.mode for mode in plan.modes} == {"colocated", "replica"}
    link_rule = next(rule for rule in plan.rules if rule.id == "real_link")
    assert "--link" in link_rule.sentence

"""What a deployment will consist of, worked out from what the boxes show; nothing is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from homesplit_engine.config import WorkerConfig
from homesplit_engine.records import ModeSetting

from homesplit.cli.deployment_text import plan_lines
from homesplit.core.deployment import Deployment
from homesplit.core.link import LinkProfile
from homesplit.core.manifest import FileEntry, Manifest
from homesplit.core.reading import measured, unknown
from homesplit.errors import DeployError, UsageError
from homesplit.io.box_facts import BoxFacts, Python
from homesplit.io.bundle import Bundle
from homesplit.io.deploy_store import BoxMemory, Memory
from homesplit.io.local_box import LocalBox
from homesplit.io.platforms import target_of
from homesplit.io.remote_process import ProcessState
from homesplit.io.remote_root import Owner
from homesplit.io.wheelhouse import Wheelhouse
from homesplit.stages.deploy_blueprint import (
    Blueprint,
    UpOptions,
    as_plan,
    complete,
    make_blueprint,
    needed_bytes,
    refuse,
)
from homesplit.stages.deploy_link import choose_addresses, measured_rate
from homesplit.stages.deploy_survey import ModelHere, SeenBox, Survey

NONE = {"worker": ProcessState(), "router": ProcessState()}
RUNNING = {
    "worker": ProcessState(state="running", pid=1),
    "router": ProcessState(state="running", pid=2),
}
DESK = "desk-a"
PAIR = ("atlas", "borea")
MODEL = ModelHere(
    folder=Path("/models/tiny"),
    name="tiny",
    manifest=Manifest(files=(FileEntry(path="model.safetensors", bytes=1000, sha256="aa"),)),
)


def facts(last: int = 11, **changes: Any) -> BoxFacts:
    """A Linux box with Python 3.11 and 100 GB free."""
    plain = BoxFacts(
        home="/home/ann",
        user="ann",
        system="Linux",
        machine="x86_64",
        libc="glibc 2.36",
        pythons=(Python(version=(3, 11, 2), path="/usr/bin/python3"),),
        free_bytes=100_000_000_000,
        desk_address="10.0.0.2",
        own_address=f"10.0.0.{last}",
    )
    return replace(plain, **changes)


def seen(name: str, last: int = 11, *, local: bool = False, **changes: Any) -> SeenBox:
    """A box on which nothing of ours lies."""
    box = LocalBox(name)
    box.local = local
    box.host_key = f"SHA256:{name}"
    of_facts = {k: v for k, v in changes.items() if k in BoxFacts.__dataclass_fields__}
    known = facts(last, **of_facts)
    plain = SeenBox(
        box=box,
        facts=known,
        target=target_of(known, name),
        internet=False,
        owner=None,
        processes=dict(NONE),  # pyright: ignore[reportArgumentType]
        worker=None,
        router=None,
    )
    return replace(plain, **{k: v for k, v in changes.items() if k not in of_facts})


def surveyed(*boxes: SeenBox) -> Survey:
    """Those boxes, a model of 1,000 bytes, an engine."""
    bundle = Bundle(hash="e1", data=b"zip", requirements="torch==1\n", unpacked_bytes=3000)
    return Survey(boxes=boxes, model=MODEL, bundle=bundle)


def blueprint(
    found: Survey,
    setting: ModeSetting | None = None,
    *,
    memory: Memory | None = None,
    keys: dict[str, str] | None = None,
    link: LinkProfile | None = None,
    **options: Any,
) -> Blueprint:
    """The deployment of `found` as this desk plans it."""
    names = [each.name for each in found.boxes]
    wanted = complete(setting or ModeSetting(), names)
    return make_blueprint(
        found, wanted, UpOptions(**options), memory=memory, keys=keys, link=link, desk=DESK
    )


def pair() -> Survey:
    """Two fresh boxes."""
    return surveyed(seen("atlas", 11), seen("borea", 12))


def deployed(**later: Any) -> tuple[Survey, Memory, dict[str, str]]:
    """The pair after `up`: everything there and running, remembered with its keys."""
    plan = blueprint(pair())
    keys = {"router": "R" * 40, "atlas": "A" * 40, "borea": "B" * 40}
    memory = Memory(
        deployment=Deployment(
            id="d1",
            boxes=(),
            router_box=plan.router_box,
            model="tiny",
            setting=plan.setting,
            router_port=plan.router_port,
        ),
        boxes=tuple(
            BoxMemory(
                name=part.name,
                root=part.place.root,
                address=part.address,
                control_port=part.worker.control_port,
                kv_port=part.worker.kv_port,
                env=part.place.env,
                engine=part.place.engine,
                model=part.model,
            )
            for part in plan.parts
        ),
    )
    owner = Owner(desk=DESK, who="ann@desk", deployment="d1", since="today")
    boxes: list[SeenBox] = []
    for part in plan.parts:
        router = part.router
        if router is not None:
            workers = tuple(
                msgspec.structs.replace(worker, public_key=keys[worker.box])
                for worker in router.workers
            )
            router = msgspec.structs.replace(router, workers=workers)
        there = replace(
            part.seen.facts,
            present=True,
            envs=frozenset({part.place.env}),
            engines=frozenset({part.place.engine}),
            models=frozenset({part.model}),
            listening=frozenset({part.worker.control_port, part.worker.kv_port}),
        )
        after = replace(
            part.seen,
            facts=there,
            owner=owner,
            processes=dict(RUNNING),
            worker=part.worker,
            router=router,
        )
        boxes.append(replace(after, **later.get(part.name, {})))
    return surveyed(*boxes), memory, keys


def needs(plan: Blueprint) -> dict[str, tuple[bool, ...]]:
    """By box: environment, engine, model, worker, router."""
    return {
        part.name: (
            part.needs_env,
            part.needs_engine,
            part.needs_model,
            part.needs_worker,
            part.needs_router,
        )
        for part in plan.parts
    }


def test_a_fresh_pair_needs_everything_and_one_router() -> None:
    plan = blueprint(pair())
    assert needs(plan) == {"atlas": (True,) * 5, "borea": (True, True, True, True, False)}
    assert plan.fresh_keys


def test_what_runs_as_it_should_is_left_alone() -> None:
    found, memory, keys = deployed()
    plan = blueprint(found, memory=memory, keys=keys)
    assert needs(plan) == {"atlas": (False,) * 5, "borea": (False,) * 5}
    changes = as_plan(plan, found, {}).changes
    assert [change for change in changes if change.needed] == []
    assert all(change.why for change in changes)


def test_only_a_dead_worker_is_started_again() -> None:
    found, memory, keys = deployed(borea={"processes": NONE})
    assert needs(blueprint(found, memory=memory, keys=keys)) == {
        "atlas": (False,) * 5,
        "borea": (False, False, False, True, False),
    }


def test_another_mode_alone_starts_nothing() -> None:
    found, memory, keys = deployed()
    plan = blueprint(found, ModeSetting(mode="split"), memory=memory, keys=keys)
    assert needs(plan) == {"atlas": (False,) * 5, "borea": (False,) * 5}


def ended(plan: Blueprint) -> dict[str, tuple[str, ...]]:
    """By box, what runs there and is ended before anything is started."""
    return {part.name: part.to_end for part in plan.parts}


def test_exactly_what_is_replaced_is_ended_first() -> None:
    found, memory, keys = deployed()
    borea_alone = {**RUNNING, "router": ProcessState()}
    same = blueprint(found, memory=memory, keys=keys)
    assert ended(same)["atlas"] == ()
    found, memory, keys = deployed(borea={"processes": borea_alone})
    assert ended(blueprint(found, memory=memory, keys=keys)) == {"atlas": (), "borea": ()}
    more_threads = blueprint(found, memory=memory, keys=keys, threads=2)
    assert ended(more_threads) == {"atlas": ("worker",), "borea": ("worker",)}
    offered = blueprint(found, memory=memory, keys=keys, listen="10.0.0.11")
    assert ended(offered) == {"atlas": ("router",), "borea": ()}
    assert ended(blueprint(found)) == {"atlas": ("worker", "router"), "borea": ("worker",)}
    assert ended(blueprint(pair())) == {"atlas": (), "borea": ()}


def test_a_router_that_has_no_place_on_its_box_any_more_is_ended() -> None:
    found, memory, keys = deployed()
    assert ended(blueprint(found, memory=memory, keys=keys))["borea"] == ("router",)


def test_another_thread_count_restarts_the_workers_only() -> None:
    found, memory, keys = deployed()
    plan = blueprint(found, memory=memory, keys=keys, threads=2)
    assert needs(plan)["atlas"] == (False, False, False, True, False)


def test_a_box_that_another_desk_has_taken_since_gets_fresh_keys_all_over() -> None:
    theirs = Owner(desk="desk-b", who="bob@desk", deployment="d2", since="today")
    found, memory, keys = deployed(borea={"owner": theirs})
    plan = blueprint(found, memory=memory, keys=keys)
    assert plan.fresh_keys
    assert [part.needs_worker for part in plan.parts] == [True, True]


def test_a_new_engine_version_is_brought_and_restarts_but_keeps_packages_and_model() -> None:
    found, memory, keys = deployed()
    newer = replace(found, bundle=replace(found.bundle, hash="e2"))
    plan = blueprint(newer, memory=memory, keys=keys)
    assert needs(plan)["atlas"] == (False, True, False, True, True)


def test_workers_listen_where_the_measured_link_goes() -> None:
    link = LinkProfile(
        a="borea", b="atlas", source="probe", address_a="10.9.0.2", address_b="10.9.0.1"
    )
    assert choose_addresses(pair().boxes, link) == {"atlas": "10.9.0.1", "borea": "10.9.0.2"}


def measured_link(**changes: Any) -> LinkProfile:
    """A link that was probed over 10.9.0.x."""
    plain = LinkProfile(
        a="borea",
        b="atlas",
        source="probe",
        a_to_b=measured([100.0], unit="B/s", method="m"),
        b_to_a=measured([90.0], unit="B/s", method="m"),
        address_a="10.9.0.2",
        address_b="10.9.0.1",
    )
    return msgspec.structs.replace(plain, **changes)


def test_an_address_that_a_box_has_no_more_is_not_listened_on() -> None:
    mine = frozenset({"127.0.0.1", "10.0.0.11"})
    boxes = (seen("atlas", 11, addresses=mine), seen("borea", 12))
    assert choose_addresses(boxes, measured_link())["atlas"] == "10.0.0.11"


def test_the_router_is_told_the_slower_direction_of_the_measured_link() -> None:
    coded = {
        "encrypted_a_to_b": measured([70.0], unit="B/s", method="m"),
        "encrypted_b_to_a": measured([80.0], unit="B/s", method="m"),
    }
    for link, rate in (
        (measured_link(), 90.0),
        (measured_link(**coded), 70.0),
        (measured_link(address_b="10.0.0.77"), 90.0),
        (measured_link(a_to_b=unknown("gone"), b_to_a=unknown("gone")), None),
        (None, None),
    ):
        plan = blueprint(pair(), link=link)
        routers = [part.router for part in plan.parts if part.router]
        assert [router.link_bytes_per_s for router in routers] == [rate]


def test_a_rate_that_was_measured_on_another_way_is_not_told() -> None:
    addresses = {"atlas": "10.0.0.11", "borea": "10.9.0.2"}
    assert measured_rate(measured_link(), addresses) is None


def test_a_link_measured_anew_restarts_nothing() -> None:
    found, memory, keys = deployed()
    link = measured_link(address_a="10.0.0.12", address_b="10.0.0.11")
    plan = blueprint(found, memory=memory, keys=keys, link=link)
    assert needs(plan) == {"atlas": (False,) * 5, "borea": (False,) * 5}


def test_without_a_measured_link_they_listen_where_ssh_came_in() -> None:
    boxes = (seen("here", local=True, own_address=None), seen("borea", 12))
    assert choose_addresses(boxes, None) == {"here": "10.0.0.2", "borea": "10.0.0.12"}


def test_one_box_alone_listens_on_loopback() -> None:
    assert choose_addresses((seen("atlas"),), None) == {"atlas": "127.0.0.1"}


@pytest.mark.parametrize("address", ["fe80::2%eth0", "fe80::2"])
def test_a_link_local_address_that_ssh_came_in_by_leads_no_other_box_there(address: str) -> None:
    found = surveyed(seen("atlas", 11, own_address=address), seen("borea", 12))
    with pytest.raises(DeployError, match="no other box reaches it") as caught:
        blueprint(found)
    assert "homesplit probe atlas borea" in (caught.value.do_next or "")
    alone = surveyed(seen("atlas", 11, own_address=address))
    assert blueprint(alone).parts[0].address == "127.0.0.1"


def test_a_name_is_no_address_to_listen_on() -> None:
    boxes = (seen("atlas", own_address="atlas.local"), seen("borea", 12))
    with pytest.raises(DeployError, match=r"atlas: its address atlas\.local is no IP address"):
        choose_addresses(boxes, None)


def test_a_taken_port_is_stepped_over_and_a_chosen_one_is_not() -> None:
    found = surveyed(seen("atlas", listening=frozenset({47611})), seen("borea", 12))
    plan = blueprint(found)
    assert [part.worker.control_port for part in plan.parts] == [47620, 47610]
    assert plan.router_port == 47622
    with pytest.raises(DeployError, match="atlas: port 47611 is taken"):
        blueprint(found, port=47610)


def test_ports_that_our_own_processes_hold_are_kept() -> None:
    found, memory, keys = deployed()
    plan = blueprint(found, memory=memory, keys=keys, port=47610)
    assert [part.worker.control_port for part in plan.parts] == [47610, 47610]


@pytest.mark.parametrize("port", [80, 70000])
def test_a_port_that_cannot_be_is_wrong_usage(port: int) -> None:
    with pytest.raises(UsageError, match="--port"):
        blueprint(pair(), port=port)


def test_kv_is_kept_alike_on_both_boxes() -> None:
    gpus = surveyed(seen("atlas", 11, gpu="nvidia"), seen("borea", 12, gpu="nvidia"))
    one = surveyed(seen("atlas", 11, gpu="nvidia"), seen("borea", 12))
    assert {part.worker.dtype for part in blueprint(gpus).parts} == {"bfloat16"}
    assert {part.worker.dtype for part in blueprint(one).parts} == {"float32"}


def test_two_names_of_one_machine_are_loopback_and_said_so() -> None:
    twin = seen("twin", 11)
    twin.box.host_key = "SHA256:atlas"
    plan = blueprint(surveyed(seen("atlas", 11), twin))
    assert plan.loopback
    assert "measures no network" in plan.warnings[0]


def test_the_router_lies_where_answers_are_written() -> None:
    setting = ModeSetting(mode="split", prefill_box="atlas")
    plan = blueprint(pair(), setting)
    assert (plan.router_box, plan.setting.decode_box) == ("borea", "borea")


@pytest.mark.parametrize(
    ("setting", "boxes"),
    [
        (ModeSetting(mode="split"), ("atlas",)),
        (ModeSetting(mode="split", prefill_box="atlas", decode_box="atlas"), PAIR),
        (ModeSetting(mode="colocated", decode_box="corvo"), PAIR),
    ],
)
def test_a_mode_that_the_boxes_cannot_run_is_wrong_usage(
    setting: ModeSetting, boxes: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError):
        complete(setting, boxes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pythons": ()}, r"no Python 3\.11 to 3\.13 \(none at all\) and no internet"),
        (
            {"pythons": (Python(version=(3, 8, 10), path="/usr/bin/python3"),)},
            r"\(only 3\.8\.10\)",
        ),
        ({"free_bytes": 500_000_000}, r"its disk has 0\.5 GB free, and this takes 1\.5 GB"),
    ],
)
def test_a_box_that_cannot_take_its_part_is_refused(changes: dict[str, Any], says: str) -> None:
    part = blueprint(surveyed(seen("atlas", **changes))).parts[0]
    with pytest.raises(DeployError, match=says):
        refuse(part, needed_bytes(part, None, 1000))


def test_a_box_with_internet_needs_no_python_of_its_own() -> None:
    part = blueprint(surveyed(seen("atlas", pythons=(), internet=True))).parts[0]
    refuse(part, needed_bytes(part, None, 1000))
    assert part.python is None


def test_free_space_that_is_not_known_refuses_nothing() -> None:
    part = blueprint(surveyed(seen("atlas", free_bytes=None))).parts[0]
    refuse(part, needed_bytes(part, None, 10**15))


def test_nothing_to_bring_needs_no_room() -> None:
    found, memory, keys = deployed()
    part = blueprint(found, memory=memory, keys=keys).parts[0]
    assert needed_bytes(part, None, 1000) == 0


def test_the_plan_names_every_process_port_and_unit() -> None:
    found = surveyed(seen("atlas", 11, unit=True), seen("borea", 12))
    changes = as_plan(blueprint(found), found, {}).changes
    of_atlas = {(c.kind, c.what) for c in changes if c.box == "atlas"}
    assert {
        ("process", "homesplit_engine worker"),
        ("process", "homesplit_engine router"),
        ("unit", "homesplit-worker (systemd, transient)"),
        ("port", "10.0.0.11:47610 (control)"),
        ("port", "10.0.0.11:47611 (hand-off)"),
        ("port", "127.0.0.1:47612 (API)"),
    } <= of_atlas
    assert {c.kind for c in changes if c.box == "borea"} == {
        "folder",
        "file",
        "environment",
        "model",
        "process",
        "port",
    }
    model = next(c for c in changes if c.kind == "model")
    assert (model.bytes, model.needed) == (1000, True)


def house() -> Wheelhouse:
    """Two packages that this machine holds for a box."""
    files = tuple(FileEntry(path=f"{name}.whl", bytes=500, sha256=name) for name in ("aa", "bb"))
    return Wheelhouse(key="k", folder=Path("/cache/k"), manifest=Manifest(files=files))


@pytest.mark.parametrize(
    ("internet", "held", "source", "wheels", "note"),
    [
        (True, None, "(from the internet, by the box itself)", [], None),
        (False, house(), "(over SSH)", [("2 packages", 1000)], "go there over SSH."),
        (
            False,
            None,
            "(over SSH)",
            [("packages, not fetched yet", None)],
            "this machine must fetch them first: `homesplit up --fetch-only --platform linux-",
        ),
    ],
)
def test_the_plan_says_by_which_way_the_packages_will_come(
    internet: bool,
    held: Wheelhouse | None,
    source: str,
    wheels: list[tuple[str, int | None]],
    note: str | None,
) -> None:
    found = surveyed(seen("atlas", internet=internet))
    plan = as_plan(blueprint(found), found, {"atlas": held})
    environment = next(c.what for c in plan.changes if c.kind == "environment")
    assert environment.endswith(source)
    sent = [c for c in plan.changes if "/wheelhouse (" in c.what]
    assert [(c.bytes, c.needed) for c in sent] == [(size, True) for _, size in wheels]
    assert all(count in c.what for c, (count, _) in zip(sent, wheels, strict=True))
    told = [w for w in plan.warnings if "reaches no internet" in w]
    assert [note in w for w in told if note] == [True] * (note is not None)


def test_to_this_machine_nothing_comes_over_ssh() -> None:
    found = surveyed(seen("desk", local=True))
    plan = as_plan(blueprint(found), found, {"desk": house()})
    told = [change.what for change in plan.changes] + list(plan.warnings)
    assert not [text for text in told if "SSH" in text]
    assert [text for text in told if "this machine's store" in text]


def test_packages_that_are_there_already_come_by_no_way() -> None:
    found, memory, keys = deployed()
    plan = as_plan(blueprint(found, memory=memory, keys=keys), found, {})
    assert not any("/wheelhouse (" in c.what for c in plan.changes)
    assert not any("internet" in w for w in plan.warnings)


def test_the_plan_tells_what_would_stop_it() -> None:
    found = surveyed(seen("atlas", free_bytes=500_000_000))
    told = [w for w in as_plan(blueprint(found), found, {"atlas": house()}).warnings if "stop" in w]
    assert len(told) == 1
    assert "its disk has 0.5 GB free" in told[0]


def test_the_api_is_offered_elsewhere_only_when_asked_and_then_with_its_key() -> None:
    plain, asked = blueprint(pair()), blueprint(pair(), listen="10.0.0.11")
    for plan, host in ((plain, "127.0.0.1"), (asked, "10.0.0.11")):
        router = plan.parts[0].router
        assert router is not None
        assert (router.http_host, router.api_key_file) == (
            host,
            f"{plan.parts[0].place.run}/api.key",
        )
    ports = [c.what for c in as_plan(asked, pair(), {}).changes if "API" in c.what]
    assert ports == [
        "127.0.0.1:47612 (API)",
        "10.0.0.11:47612 (API, for whoever has its key)",
    ]
    assert sum("API" in c.what for c in as_plan(plain, pair(), {}).changes) == 1


def test_offering_the_api_elsewhere_restarts_the_router_alone() -> None:
    found, memory, keys = deployed()
    plan = blueprint(found, memory=memory, keys=keys, listen="10.0.0.11")
    assert needs(plan)["atlas"] == (False, False, False, False, True)


@pytest.mark.parametrize(
    ("listen", "says"),
    [("atlas.local", "is no IP address"), ("10.0.0.99", "has no address 10.0.0.99")],
)
def test_an_address_that_the_routers_box_has_not_is_wrong_usage(listen: str, says: str) -> None:
    boxes = surveyed(seen("atlas", 11, addresses=frozenset({"127.0.0.1", "10.0.0.11"})))
    with pytest.raises(UsageError, match=f"{says}.*atlas has: 10.0.0.11"):
        blueprint(boxes, listen=listen)
    assert blueprint(boxes, listen="0.0.0.0").parts[0].router


def test_no_key_stands_in_the_plan() -> None:
    found, memory, keys = deployed(borea={"processes": NONE})
    plan = as_plan(blueprint(found, memory=memory, keys=keys), found, {})
    text = msgspec.json.encode(plan).decode()
    assert [key for key in keys.values() if key in text] == []


def test_a_workers_settings_hold_no_secret() -> None:
    fields = WorkerConfig.__struct_fields__
    assert [name for name in fields if "secret" in name or name.endswith("_key")] == []


def test_a_gpu_that_is_not_used_is_said_beside_the_plan() -> None:
    amd, nvidia = seen("atlas", unused_gpus=("AMD",)), seen("borea", 12, gpu="nvidia")
    found = surveyed(amd, replace(nvidia, facts=replace(nvidia.facts, unused_gpus=("Intel",))))
    plan = as_plan(blueprint(found), found, {})
    told = [warning for warning in plan.warnings if "GPU" in warning]
    assert [warning.partition(" is not used")[0] for warning in told] == ["atlas: its AMD GPU"]


def test_the_plan_tells_what_stays_what_passes_and_what_the_first_start_compiles() -> None:
    found = surveyed(seen("atlas"))
    made = blueprint(found)
    files = tuple(FileEntry(path=f"{n}.whl", bytes=500, sha256="aa") for n in range(2))
    house = Wheelhouse(key="k", folder=Path("/w"), manifest=Manifest(files=files))
    plan = as_plan(made, found, {"atlas": house})
    passing = [change for change in plan.changes if not change.stays]
    assert [(change.bytes, "wheelhouse" in change.what) for change in passing] == [(1000, True)]
    engine = next(change for change in plan.changes if "/engine/" in change.what)
    assert engine.bytes == 3000 + 2_900_000
    assert any("compiles its kernels" in warning for warning in plan.warnings)
    (total,) = [line for line in plan_lines(plan) if "on the boxes' disks" in line]
    assert total.endswith("1.00 KB more while packages are installed.")


def test_what_superseded_versions_left_is_told_before_it_is_deleted() -> None:
    known, _, _ = deployed()
    newer = replace(known, bundle=replace(known.bundle, hash="e2"))
    older = [replace(s, facts=replace(s.facts, engines=frozenset({"e1"}))) for s in newer.boxes]
    plan = as_plan(blueprint(replace(newer, boxes=tuple(older))), newer, {})
    told = [warning for warning in plan.warnings if "deleted there" in warning]
    assert [warning.partition(" will be")[0] for warning in told] == [
        f"{box}: of earlier versions, e1" for box in PAIR
    ]


def test_the_router_is_where_its_port_can_be_carried_from_and_nowhere_else() -> None:
    closed: dict[str, Any] = {"open_ports": frozenset[int]()}
    plan = blueprint(surveyed(seen("atlas", 11, **closed), seen("borea", 12)))
    assert (plan.router_box, plan.setting.decode_box) == ("borea", "atlas")
    with pytest.raises(DeployError, match="atlas: its SSH server forwards no ports") as caught:
        blueprint(surveyed(seen("atlas", 11, **closed), seen("borea", 12, **closed)))
    assert "AllowTcpForwarding" in (caught.value.do_next or "")
    assert "PermitOpen" in (caught.value.do_next or "")


def test_the_api_gets_the_port_that_its_server_carries() -> None:
    free, third = frozenset({47612, 47632}), frozenset({47632})
    for open_ports, busy, port in ((free, set[int](), 47612), (free, {47610}, 47632)):
        only: dict[str, Any] = {"open_ports": open_ports, "listening": frozenset(busy)}
        plan = blueprint(surveyed(seen("atlas", 11, **only), seen("borea", 12, open_ports=third)))
        assert (plan.router_box, plan.router_port) == ("atlas", port)
    pair = surveyed(*(seen(name, open_ports=third) for name in PAIR))
    assert blueprint(pair, port=47630).router_port == 47632
    with pytest.raises(DeployError, match="only named ones") as caught:
        blueprint(pair, port=47610)
    assert "127.0.0.1:47612" in (caught.value.do_next or "")


def test_a_box_whose_carried_port_is_taken_leaves_the_router_to_the_other() -> None:
    only: dict[str, Any] = {"open_ports": frozenset({47612}), "listening": frozenset({47612})}
    plan = blueprint(surveyed(seen("atlas", 11, **only), seen("borea", 12)))
    assert (plan.router_box, plan.router_port) == ("borea", 47612)
    assert [part.worker.control_port for part in plan.parts] == [47620, 47610]


def test_a_home_that_takes_nothing_is_refused_before_anything_is_brought() -> None:
    found = surveyed(seen("atlas", 11, closed="can't be written to"), seen("borea", 12))
    part = blueprint(found).parts[0]
    with pytest.raises(DeployError, match="atlas: the home folder of ann can't be written to"):
        refuse(part, 0)


@pytest.mark.parametrize(("unit", "warned"), [(False, True), (True, False)])
def test_a_box_that_would_end_the_engine_at_log_out_says_what_keeps_it(
    unit: bool, warned: bool
) -> None:
    told = blueprint(surveyed(seen("atlas", log_out_kills=True, unit=unit))).warnings
    assert bool([word for word in told if "loginctl enable-linger" in word]) is warned

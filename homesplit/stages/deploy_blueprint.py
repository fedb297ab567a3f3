"""Works out what a deployment consists of and which of it is still to be done; does nothing."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from homesplit_engine.config import RouterConfig, WorkerAddress, WorkerConfig
from homesplit_engine.records import ModeSetting

from homesplit.core.deployment import Change, DeployPlan
from homesplit.core.link import LinkProfile
from homesplit.core.machine import not_used
from homesplit.errors import DeployError, UsageError
from homesplit.io.deploy_store import Memory
from homesplit.io.platforms import fitting_python
from homesplit.io.remote_process import ROLES, EnginePlace, Role
from homesplit.io.wheelhouse import Wheelhouse, wheelhouse_key
from homesplit.stages.deploy_link import choose_addresses, measured_rate
from homesplit.stages.deploy_ports import choose_ports, choose_router_box
from homesplit.stages.deploy_survey import SeenBox, Survey

LOOPBACK = "127.0.0.1"
_ENV_BYTES = {"cpu": 1_265_000_000, "cuda": 7_000_000_000}
"""What the environment takes on disk, measured on Linux (CPU) and stated for CUDA."""
_COMPILED_BYTES = 2_900_000
"""What the first start adds to the engine's code: its kernels, and Python's compiled modules."""
_COMPILE_S = "about 16 s"
"""Seen on a core of an AMD EPYC of 2017 that others used too."""
_UV_BYTES = 40_000_000
_SPARE_BYTES = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `up` leaves to choose; None lets homesplit choose."""

    threads: int | None = None
    dtype: str | None = None
    weights: str = "same"
    kv_blocks: int | None = None
    port: int | None = None
    """First of the ports used on each box."""
    listen: str | None = None
    """An address of the router's box at which the API is offered beside its loopback."""
    take_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxPart:
    """One box's part of the deployment, and what of it is missing."""

    seen: SeenBox
    address: str
    place: EnginePlace
    model: str
    worker: WorkerConfig
    router: RouterConfig | None
    needs_env: bool
    needs_engine: bool
    needs_model: bool
    needs_worker: bool
    needs_router: bool
    python: str | None
    """The box's own interpreter for the environment; None lets uv bring one."""

    @property
    def name(self) -> str:
        """The box's name."""
        return self.seen.name

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on the processor there."""
        return self.seen.facts.device == "cpu"

    @property
    def superseded(self) -> tuple[str, ...]:
        """Environments and engines of other versions that lie there."""
        facts, place = self.seen.facts, self.place
        return (*sorted(facts.envs - {place.env}), *sorted(facts.engines - {place.engine}))

    @property
    def all_new(self) -> bool:
        """Whether everything of ours that will run there is started anew."""
        return self.needs_worker and (self.router is None or self.needs_router)

    @property
    def to_end(self) -> tuple[Role, ...]:
        """Processes that run there and are replaced, or have no place there any more."""
        over = {"worker": self.needs_worker, "router": self.needs_router or self.router is None}
        return tuple(role for role in ROLES if over[role] and self.seen.runs(role))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The whole deployment as it will be."""

    setting: ModeSetting
    parts: tuple[BoxPart, ...]
    router_box: str
    router_port: int
    loopback: bool
    fresh_keys: bool
    api_address: str | None = None
    """Where the API is offered beside the router box's loopback."""
    warnings: tuple[str, ...] = field(default=())


def complete(setting: ModeSetting, boxes: Sequence[str]) -> ModeSetting:
    """`setting` with the boxes it leaves open; raises UsageError when it can't be meant so."""
    for role in (setting.prefill_box, setting.decode_box):
        if role is not None and role not in boxes:
            raise UsageError(f"{role} is none of the boxes.", do_next=f"Boxes: {', '.join(boxes)}.")
    if setting.mode in ("split", "replica", "auto") and len(boxes) < 2:
        raise UsageError(
            f"Mode {setting.mode} takes two boxes.", do_next="Give two, or use --mode colocated."
        )
    if setting.mode == "colocated":
        return msgspec.structs.replace(
            setting, prefill_box=None, decode_box=setting.decode_box or boxes[0]
        )
    if setting.mode != "split":
        return setting
    prefill, decode = setting.prefill_box, setting.decode_box
    if prefill is None:
        prefill = next(box for box in boxes if box != decode)
    if decode is None:
        decode = next(box for box in boxes if box != prefill)
    if prefill == decode:
        raise UsageError("In mode split two different boxes read and write.")
    return msgspec.structs.replace(setting, prefill_box=prefill, decode_box=decode)


def make_blueprint(
    found: Survey,
    setting: ModeSetting,
    options: UpOptions,
    *,
    memory: Memory | None,
    keys: dict[str, str] | None,
    link: LinkProfile | None,
    desk: str,
) -> Blueprint:
    """Put the deployment together from what is there.

    `keys` are the public keys of the remembered deployment, None when it must have fresh
    ones. Raises DeployError or UsageError when it can't work.
    """
    names = [seen.name for seen in found.boxes]
    kept = keys if _is_ours(found, memory, desk) else None
    addresses = choose_addresses(found.boxes, link)
    known = memory if kept else None
    ports = {seen.name: choose_ports(seen, options.port, known) for seen in found.boxes}
    router_box = choose_router_box(found.boxes, setting, known, ports)
    dtype = options.dtype or _dtype(found.boxes)
    workers = tuple(
        WorkerAddress(
            box=name,
            control_endpoint=f"tcp://{_host(addresses[name])}:{ports[name][0]}",
            kv_endpoint=f"tcp://{_host(addresses[name])}:{ports[name][1]}",
            public_key=(kept or {}).get(name, ""),
        )
        for name in names
    )
    loopback = len(names) > 1 and _same_machine(found.boxes)
    parts = tuple(
        _part(found, seen, addresses[seen.name], ports[seen.name], dtype, options, kept is None)
        for seen in found.boxes
    )
    router_part = next(part for part in parts if part.name == router_box)
    router = RouterConfig(
        model_dir=router_part.worker.model_dir,
        model_name=found.model.name,
        keys_file=f"{router_part.place.run}/router.keys",
        ready_file=f"{router_part.place.run}/router.ready",
        workers=workers,
        http_host=_api_host(router_part.seen, options.listen),
        http_port=ports[router_box][2],
        api_key_file=f"{router_part.place.run}/api.key",
        setting=setting,
        link_bytes_per_s=None if loopback else measured_rate(link, addresses),
        loopback=loopback,
    )
    needed = kept is None or router_part.needs_engine or not _runs_as(router_part.seen, router)
    parts = tuple(
        replace(part, router=router, needs_router=needed) if part is router_part else part
        for part in parts
    )
    return Blueprint(
        setting=setting,
        parts=parts,
        router_box=router_box,
        router_port=ports[router_box][2],
        loopback=loopback,
        fresh_keys=kept is None,
        api_address=options.listen,
        warnings=_warnings(found.boxes, loopback),
    )


def _is_ours(found: Survey, memory: Memory | None, desk: str) -> bool:
    """Whether what lies on every box is the deployment that this desk remembers."""
    return memory is not None and all(
        seen.owner is not None
        and (seen.owner.desk, seen.owner.deployment) == (desk, memory.deployment.id)
        for seen in found.boxes
    )


def _runs_as(seen: SeenBox, wanted: RouterConfig) -> bool:
    """Whether a router runs there that needs no other settings.

    Mode and link rate it takes as it runs.
    """
    there = seen.router
    if there is None or not seen.runs("router"):
        return False
    kept = msgspec.structs.replace(
        there, setting=wanted.setting, link_bytes_per_s=wanted.link_bytes_per_s
    )
    return kept == wanted


def needed_bytes(part: BoxPart, house: Wheelhouse | None, model_bytes: int) -> int:
    """Room that this box must still have."""
    total = _SPARE_BYTES if part.needs_env or part.needs_model else 0
    if part.needs_env:
        wheels = house.manifest.bytes if house else 0
        total += _UV_BYTES + _ENV_BYTES[part.seen.target.accelerator] + wheels
    return total + (model_bytes if part.needs_model else 0)


def refuse(part: BoxPart, need: int) -> None:
    """Raise DeployError when this box can't take its part."""
    facts = part.seen.facts
    if facts.closed is not None:
        raise DeployError(
            f"the home folder of {facts.user} {facts.closed}.",
            where=part.name,
            do_next="Use a user of that box whose home lies on a disk of its own, or mend it.",
        )
    if part.needs_env and part.python is None and not part.seen.internet:
        versions = ", ".join(".".join(map(str, p.version)) for p in facts.pythons)
        raise DeployError(
            f"it has no Python 3.11 to 3.13 ({f'only {versions}' if versions else 'none at all'}) "
            "and no internet to fetch one from.",
            where=part.name,
            do_next="Install Python 3.11 or newer there, or connect it to the internet once.",
        )
    if facts.free_bytes is not None and facts.free_bytes < need:
        raise DeployError(
            f"its disk has {facts.free_bytes / 1e9:.1f} GB free, and this takes "
            f"{need / 1e9:.1f} GB.",
            where=part.name,
            do_next="Make room in that user's home, then repeat the command.",
        )


def as_plan(
    blueprint: Blueprint, found: Survey, houses: dict[str, Wheelhouse | None]
) -> DeployPlan:
    """Every change on every box, in the order in which it will be made."""
    changes: list[Change] = []
    for part in blueprint.parts:
        changes += _changes(part, blueprint, found, houses.get(part.name))
    return DeployPlan(
        boxes=tuple(part.name for part in blueprint.parts),
        model=found.model.name,
        setting=blueprint.setting,
        changes=tuple(changes),
        warnings=(*blueprint.warnings, *_notes(blueprint, found, houses)),
    )


def _notes(
    blueprint: Blueprint, found: Survey, houses: dict[str, Wheelhouse | None]
) -> Iterator[str]:
    """Where packages come from when not from the internet, and what would stop `up`."""
    for part in blueprint.parts:
        house = houses.get(part.name)
        if part.needs_env and not part.seen.internet:
            note = f"{part.name} reaches no internet: its packages go there {_by(part)}"
            yield (
                f"{note}."
                if house
                else (
                    f"{note}, and this machine must fetch them first: `homesplit up --fetch-only "
                    f"--platform {part.seen.target.key}` does that ahead."
                )
            )
        if part.on_cpu and (part.needs_env or part.needs_engine):
            yield (
                f"{part.name}: the engine's first start there compiles its kernels, which takes "
                f"{_COMPILE_S} of one core; later starts find them."
            )
        if part.superseded and part.all_new:
            yield (
                f"{part.name}: of earlier versions, {' and '.join(part.superseded)} will be "
                "deleted there once this one runs."
            )
        try:
            refuse(part, needed_bytes(part, house, found.model.manifest.bytes))
        except DeployError as error:
            yield f"As it stands `up` will stop: {error.sentence()}"


def _by(part: BoxPart) -> str:
    """How what this machine holds comes to a box."""
    return "from this machine's store" if part.seen.box.local else "over SSH"


def _part(
    found: Survey,
    seen: SeenBox,
    address: str,
    ports: tuple[int, int, int],
    dtype: str,
    options: UpOptions,
    fresh_keys: bool,
) -> BoxPart:
    facts = seen.facts
    env = wheelhouse_key(seen.target, found.bundle.requirements)
    model = found.model.manifest.hash[:16]
    place = EnginePlace(root=facts.root, env=env, engine=found.bundle.hash, unit=facts.unit)
    worker = WorkerConfig(
        box=seen.name,
        model_dir=f"{facts.root}/models/{model}",
        keys_file=f"{place.run}/worker.keys",
        ready_file=f"{place.run}/worker.ready",
        bind_host=address,
        control_port=ports[0],
        kv_port=ports[1],
        device=facts.device,
        dtype=dtype,
        weights=options.weights,
        threads=options.threads,
        kv_blocks=options.kv_blocks,
    )
    needs_env = env not in facts.envs
    needs_engine = found.bundle.hash not in facts.engines
    python = fitting_python(facts)
    return BoxPart(
        seen=seen,
        address=address,
        place=place,
        model=model,
        worker=worker,
        router=None,
        needs_env=needs_env,
        needs_engine=needs_engine,
        needs_model=model not in facts.models,
        needs_worker=fresh_keys
        or needs_env
        or needs_engine
        or seen.worker != worker
        or not seen.runs("worker"),
        needs_router=False,
        python=python[1] if python else None,
    )


def _changes(
    part: BoxPart, blueprint: Blueprint, found: Survey, house: Wheelhouse | None
) -> list[Change]:
    root, box = part.place.root, part.name
    there = "there already"
    bytes_env = _ENV_BYTES[part.seen.target.accelerator]
    source = "from the internet, by the box itself" if part.seen.internet else _by(part)
    settings = part.needs_worker or part.needs_router
    changes = [
        _change(box, "folder", root, None, not part.seen.facts.present, there),
        _change(box, "file", f"{root}/bin/uv", _UV_BYTES, part.needs_env, there),
    ]
    if part.needs_env and not part.seen.internet:
        count = f"{len(house.manifest.files)} packages" if house else "packages, not fetched yet"
        what = f"{root}/wheelhouse ({count}, deleted afterwards)"
        size = house.manifest.bytes if house else None
        passing = _change(box, "file", what, size, True, "")
        changes.append(msgspec.structs.replace(passing, stays=False))
    changes += [
        _change(
            box,
            "environment",
            f"{root}/env/{part.place.env} ({source})",
            bytes_env,
            part.needs_env,
            there,
        ),
        _change(
            box,
            "file",
            f"{root}/engine/{part.place.engine}",
            found.bundle.unpacked_bytes + (_COMPILED_BYTES if part.on_cpu else 0),
            part.needs_engine,
            there,
        ),
        _change(
            box,
            "model",
            f"{root}/models/{part.model} ({found.model.name})",
            found.model.manifest.bytes,
            part.needs_model,
            there,
        ),
        _change(box, "file", f"{root}/run (settings, keys, logs)", None, settings, "up to date"),
    ]
    return [*changes, *_processes(part), *_ports(part, blueprint)]


def _processes(part: BoxPart) -> Iterator[Change]:
    """What is to run there, and the units it runs under."""
    box, runs = part.name, "runs already"
    for role, needed in (("worker", part.needs_worker), ("router", part.needs_router)):
        if role == "router" and part.router is None:
            continue
        if part.place.unit:
            unit = f"homesplit-{role} (systemd, transient)"
            yield _change(box, "unit", unit, None, needed, runs)
        yield _change(box, "process", f"homesplit_engine {role}", None, needed, runs)


def _ports(part: BoxPart, blueprint: Blueprint) -> Iterator[Change]:
    """What is to listen there, and where."""
    box, already = part.name, "open already"
    at = _host(part.address)
    for port, use in ((part.worker.control_port, "control"), (part.worker.kv_port, "hand-off")):
        yield _change(box, "port", f"{at}:{port} ({use})", None, part.needs_worker, already)
    if part.router:
        for host in dict.fromkeys((LOOPBACK, part.router.http_host)):
            use = "API" if host == LOOPBACK else "API, for whoever has its key"
            what = f"{_host(host)}:{blueprint.router_port} ({use})"
            yield _change(box, "port", what, None, part.needs_router, already)


def _change(
    box: str, kind: str, what: str, size: int | None, needed: bool, otherwise: str
) -> Change:
    return msgspec.convert(
        {
            "box": box,
            "kind": kind,
            "what": what,
            "bytes": size,
            "needed": needed,
            "why": "" if needed else otherwise,
        },
        type=Change,
    )


def _api_host(seen: SeenBox, wanted: str | None) -> str:
    """Where the API is offered beside loopback; raises UsageError for what the box has not."""
    if wanted is None:
        return LOOPBACK
    try:
        address = ipaddress.ip_address(wanted)
    except ValueError as error:
        raise UsageError(
            f"--listen {wanted} is no IP address.", do_next=_an_address(seen)
        ) from error
    own = seen.facts.addresses
    if own and not address.is_unspecified and wanted not in own:
        raise UsageError(f"{seen.name} has no address {wanted}.", do_next=_an_address(seen))
    return wanted


def _an_address(seen: SeenBox) -> str:
    own = ", ".join(sorted(a for a in seen.facts.addresses if not a.startswith(("127.", "fe80:"))))
    return f"{seen.name} has: {own or 'none that it tells'}."


def _dtype(boxes: Sequence[SeenBox]) -> str:
    """bfloat16 where every box has a GPU, else float32: both boxes must keep KV alike."""
    return "bfloat16" if all(b.facts.device == "cuda" for b in boxes) else "float32"


def _same_machine(boxes: Sequence[SeenBox]) -> bool:
    keys = [seen.box.host_key for seen in boxes]
    return keys[0] is not None and keys[0] == keys[1]


def _warnings(boxes: Sequence[SeenBox], loopback: bool) -> tuple[str, ...]:
    said: list[str] = []
    if loopback:
        said.append(
            "Both names are one machine: this teaches the mechanism and measures no network."
        )
    for seen in boxes:
        if seen.facts.device == "cpu":
            said += [f"{seen.name}: {not_used(maker)}." for maker in seen.facts.unused_gpus]
        if seen.facts.log_out_kills and not seen.facts.unit:
            said.append(
                f"{seen.name}: its systemd ends what {seen.facts.user} leaves running at log-out; "
                "run `loginctl enable-linger` there first, so that the engine outlives it."
            )
        if seen.target.python[0:2] != (3, 11):
            version = ".".join(map(str, seen.target.python))
            said.append(f"{seen.name}: Python {version} is used; tests run on 3.11.")
    return tuple(said)


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address

"""What profile files hold, and how their tables become the records that the plan takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from homesplit.core.link import LatencyReading, LinkProfile
from homesplit.core.load import MAX_BURSTINESS
from homesplit.core.machine import BoxProfile
from homesplit.core.model_config import shape_from_config
from homesplit.core.reading import stated, unknown
from homesplit.core.shape import ModelShape, name_of, shape_from_profile
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload
from homesplit.errors import ProfileError, UsageError

_FORMAT = re.compile(r"(fp|bf|tf|u?int|mxfp|nvfp)\d+(_\w+)?")
DEVICES = ("cpu", "cuda", "rocm", "mps", "xpu")


class HardwareFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine as its maker states it."""

    name: str
    memory_bytes: float
    """Of the GPU, or of the whole machine where memory is unified or the CPU computes."""
    memory_bytes_per_s: float
    flops_per_s: dict[str, float]
    unified: bool = False
    device: str | None = None
    """`cpu`, `cuda`, `rocm`, `mps` or `xpu`; without it a box counts as having a GPU."""
    watts: float | None = None
    """The whole machine's under load."""
    price: float | None = None
    cores: int | None = None
    aliases: tuple[str, ...] = ()
    source: str = ""
    date: str = ""
    description: str = ""


class LinkFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of link with the payload that such links were measured to carry."""

    name: str
    payload_bytes_per_s: float
    payload_back_bytes_per_s: float | None = None
    """The other direction, where it differs."""
    label_bytes_per_s: float | None = None
    round_trip_p50_s: float | None = None
    round_trip_p99_s: float | None = None
    loopback: bool = False
    aliases: tuple[str, ...] = ()
    source: str = ""
    date: str = ""
    description: str = ""


class ClassTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One class of requests in a workload file: [low, high] tokens, or `pairs` in their place.

    A pair is [prompt tokens, output tokens] or [prompt tokens, output tokens, weight].
    """

    name: str
    share: float
    prompt_tokens: tuple[int, int] | None = None
    output_tokens: tuple[int, int] | None = None
    pairs: tuple[tuple[float, ...], ...] = ()


class ArrivalsTable(Arrivals, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`Arrivals` as a file writes it."""


class TargetsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets of a workload file; one that is left out isn't cared about."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class WorkloadFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load: who asks what, how often, and what they expect."""

    name: str
    classes: tuple[ClassTable, ...]
    arrivals: ArrivalsTable = field(default_factory=ArrivalsTable)
    targets: TargetsTable = field(default_factory=TargetsTable)
    shared_prefix_tokens: int = 0
    shared_prefix_groups: int = 1
    turns: int = 1
    turn_think_s: float = 2.0
    cancel_share: float = 0.0
    cancel_after_s: float = 1.0
    description: str = ""
    aliases: tuple[str, ...] = ()
    source: str = ""
    date: str = ""


_T = TypeVar("_T")


def table(values: Mapping[str, Any], kind: type[_T], *, where: str) -> _T:
    """The record of a file's table; raises ProfileError naming the file and the key."""
    if values.get("name") == "":
        raise ProfileError("'name' is empty.", where=where)
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise ProfileError(f"{_in_words(str(error))}.", where=where) from error


_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_CHOICES = {"kind": "open or closed", "pattern": "steady, on_off or ramp"}
_PLACE = r"(?: - at `\$?\.?(.*?)`)?$"


def _in_words(message: str) -> str:
    """What msgspec says of a value, in words for whoever wrote the file."""
    if found := re.match(r"Object contains unknown field `(.+?)`" + _PLACE, message):
        inside = f" in {found.group(2)}" if found.group(2) else ""
        return f"the key '{found.group(1)}' is unknown{inside}"
    if found := re.match(r"Object missing required field `(.+?)`" + _PLACE, message):
        inside = f" in {found.group(2)}" if found.group(2) else ""
        return f"the key '{found.group(1)}' is missing{inside}"
    if found := re.match(r"Expected `(\w+).*?`, got `(\w+)`" + _PLACE, message):
        wanted, given = (_KINDS.get(word, f"a {word}") for word in found.groups()[:2])
        return f"'{_plain(found.group(3))}' is {given}, where {wanted} belongs"
    if found := re.match(r"Expected `array` of length (\d+), got (\d+)" + _PLACE, message):
        return f"'{_plain(found.group(3))}' lists {found.group(2)}, where {found.group(1)} belong"
    if found := re.match(r"Invalid enum value (.+?)" + _PLACE, message):
        key = _plain(found.group(2))
        choices = _CHOICES.get(key.rsplit(".", 1)[-1])
        return f"'{key}' is {found.group(1)}, not {choices or 'one of its choices'}"
    return message


def _plain(place: str | None) -> str:
    """A place in a file without the marks of what it is in."""
    return (place or "").replace("[...]", "")


def box_from_table(values: Mapping[str, Any], *, where: str) -> BoxProfile:
    """A box from a hardware file's table."""
    made = table(values, HardwareFile, where=where)
    source = f"profile: {where}"
    figures = {
        "memory_bytes": made.memory_bytes,
        "memory_bytes_per_s": made.memory_bytes_per_s,
        **{f"flops_per_s.{name}": rate for name, rate in made.flops_per_s.items()},
    }
    for key, value in figures.items():
        _positive(value, key, where, least=LEAST_OF_BOX)
    for key, value in (("watts", made.watts), ("price", made.price)):
        if value is not None:
            _positive(value, key, where)
    if not made.flops_per_s:
        raise ProfileError("'flops_per_s' names no rate.", where=where)
    for name in made.flops_per_s:
        if not _FORMAT.fullmatch(name):
            said = f"'flops_per_s' names '{name}', which is no number format as fp16 or int8 are."
            raise ProfileError(said, where=where)
    if made.device not in (None, *DEVICES):
        said = f"'device' is '{made.device}', not one of {', '.join(DEVICES)}."
        raise ProfileError(said, where=where)
    if made.cores is not None:
        _within(made.cores, "cores", 1, 100_000, where)
    return BoxProfile(
        name=made.name,
        source=source,
        memory_bytes=stated(made.memory_bytes, unit="bytes", source=where),
        memory_bytes_per_s=stated(made.memory_bytes_per_s, unit="bytes/s", source=where),
        flops_per_s={
            name: stated(rate, unit="flop/s", source=where)
            for name, rate in made.flops_per_s.items()
        },
        unified=made.unified,
        device=made.device or "cuda",
        cores=made.cores,
        load_w=stated(made.watts, unit="W", source=where)
        if made.watts
        else unknown("the profile states no power"),
        price=made.price,
    )


LEAST_OF_BOX = 1e5
"""No machine has fewer bytes, or bytes or operations a second: what is less counts larger units."""
LEAST_RATE = 1e3
"""The same of a link's bytes a second."""
LONGEST_S = 1e6
MOST_TOKENS = 100_000_000
MOST_USERS = 1024
MOST_RATE = 10_000.0
_LARGEST = 1e24
"""No rate, size or count of a machine, a link or a load that exists is near this."""


def _positive(value: float, key: str, where: str, *, least: float = 0.0) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ProfileError(f"'{key}' is {value}, not a number above 0.", where=where)
    if value < least:
        said = f"'{key}' is {value:g}, too little for any: write it out in full, as 8e9 for 8 G."
        raise ProfileError(said, where=where)
    if value > _LARGEST:
        raise ProfileError(f"'{key}' is {value:g}, which no machine has.", where=where)


def _within(value: float, key: str, low: float, high: float, where: str) -> None:
    """Raises ProfileError naming the key where `value` is not from `low` to `high`."""
    if not low <= value <= high:
        raise ProfileError(f"'{key}' is {value:g}, not {low:g} to {high:g}.", where=where)


def link_from_table(values: Mapping[str, Any], a: str, b: str, *, where: str) -> LinkProfile:
    """A link between boxes `a` and `b` from a link file's table."""
    made = table(values, LinkFile, where=where)
    back = made.payload_back_bytes_per_s
    back = made.payload_bytes_per_s if back is None else back
    _positive(made.payload_bytes_per_s, "payload_bytes_per_s", where, least=LEAST_RATE)
    _positive(back, "payload_back_bytes_per_s", where, least=LEAST_RATE)
    if made.label_bytes_per_s is not None:
        _positive(made.label_bytes_per_s, "label_bytes_per_s", where, least=LEAST_RATE)
    for key in ("round_trip_p50_s", "round_trip_p99_s"):
        value = getattr(made, key)
        if value is not None:
            _within(value, key, 0.0, LONGEST_S, where)
    said = "the profile states no latency"
    return LinkProfile(
        a=a,
        b=b,
        source=f"profile: {made.name}",
        a_to_b=stated(made.payload_bytes_per_s, unit="bytes/s", source=where),
        b_to_a=stated(back, unit="bytes/s", source=where),
        latency_s=LatencyReading(
            p50=_seconds(made.round_trip_p50_s, where, said),
            p99=_seconds(made.round_trip_p99_s, where, said),
        ),
        label_bytes_per_s=made.label_bytes_per_s,
        loopback=made.loopback,
    )


def _seconds(value: float | None, where: str, why: str) -> Any:
    return unknown(why) if value is None else stated(value, unit="s", source=where)


def model_from_table(values: Mapping[str, Any], *, where: str) -> ModelShape:
    """A shape from a model file: a `[config]` of a config.json's keys, or flat shape keys."""
    config = values.get("config")
    if config is None:
        return shape_from_profile(values, where=where)
    known = {"name", "aliases", "dtype", "weights_bytes", "source", "date", "description", "config"}
    unknown_keys = sorted(set(values) - known)
    if unknown_keys or not isinstance(config, Mapping):
        said = f"the key '{unknown_keys[0]}' is unknown" if unknown_keys else "[config] is no table"
        raise ProfileError(f"{said}.", where=where)
    weighs = values.get("weights_bytes")
    return shape_from_config(
        msgspec.convert(config, dict[str, Any]),
        name=name_of(values, where),
        source=f"profile: {where}",
        dtype=str(values.get("dtype", "bf16")),
        file_bytes=int(weighs) if isinstance(weighs, int) else None,
    )


def workload_from_table(values: Mapping[str, Any], *, where: str) -> Workload:
    """A workload from its file's table; raises ProfileError on impossible figures."""
    made = table(values, WorkloadFile, where=where)
    if not made.classes:
        raise ProfileError("'classes' names no class of requests.", where=where)
    classes = tuple(_length_class(entry, where) for entry in made.classes)
    arrivals = msgspec.convert(msgspec.structs.asdict(made.arrivals), Arrivals)
    if arrivals.kind == "open" and not (arrivals.rate_requests_per_s or 0) > 0:
        raise ProfileError("an open load needs 'rate_requests_per_s' above 0.", where=where)
    if arrivals.kind == "closed" and (arrivals.users or 0) < 1:
        raise ProfileError("a closed load needs 'users' of 1 or more.", where=where)
    _sound_arrivals(arrivals, where)
    _sound_load(made, where)
    return Workload(
        name=made.name,
        classes=classes,
        arrivals=arrivals,
        targets=Targets(ttft_s=made.targets.ttft_s, tpot_s=made.targets.tpot_s),
        shared_prefix_tokens=made.shared_prefix_tokens,
        shared_prefix_groups=made.shared_prefix_groups,
        turns=made.turns,
        turn_think_s=made.turn_think_s,
        cancel_share=made.cancel_share,
        cancel_after_s=made.cancel_after_s,
        description=made.description,
        source=made.source,
    )


def _sound_arrivals(made: Arrivals, where: str) -> None:
    """Raises ProfileError naming a figure of the arrivals that no load has."""
    if made.rate_requests_per_s is not None:
        _within(made.rate_requests_per_s, "rate_requests_per_s", 1e-6, MOST_RATE, where)
    if made.users is not None:
        _within(made.users, "users", 1, MOST_USERS, where)
    _within(made.burstiness, "burstiness", 0.0, MAX_BURSTINESS, where)
    _within(made.think_s, "think_s", 0.0, LONGEST_S, where)
    _within(made.on_s, "on_s", 1e-3, LONGEST_S, where)
    _within(made.off_s, "off_s", 0.0, LONGEST_S, where)
    if made.ramp_to_requests_per_s is not None:
        _within(made.ramp_to_requests_per_s, "ramp_to_requests_per_s", 1e-6, MOST_RATE, where)
    elif made.pattern == "ramp":
        raise ProfileError("a ramp needs 'ramp_to_requests_per_s'.", where=where)


def _sound_load(made: WorkloadFile, where: str) -> None:
    """Raises ProfileError naming any other figure that no load has."""
    for key in ("ttft_s", "tpot_s"):
        value = getattr(made.targets, key)
        if value is not None:
            _within(value, key, 1e-6, LONGEST_S, where)
    _within(made.shared_prefix_tokens, "shared_prefix_tokens", 0, MOST_TOKENS, where)
    _within(made.shared_prefix_groups, "shared_prefix_groups", 1, MOST_TOKENS, where)
    _within(made.turns, "turns", 1, 1000, where)
    _within(made.turn_think_s, "turn_think_s", 0.0, LONGEST_S, where)
    _within(made.cancel_share, "cancel_share", 0.0, 1.0, where)
    _within(made.cancel_after_s, "cancel_after_s", 1e-6, LONGEST_S, where)


def _length_class(entry: ClassTable, where: str) -> LengthClass:
    _positive(entry.share, "share", where)
    pairs = tuple(_pair(pair, entry.name, where) for pair in entry.pairs)
    if pairs and (entry.prompt_tokens or entry.output_tokens):
        raise ProfileError(
            f"class '{entry.name}': 'pairs' stand in place of 'prompt_tokens' and 'output_tokens'.",
            where=where,
        )
    prompt = _bounds(entry.prompt_tokens, [p for p, _, _ in pairs], "prompt_tokens", entry, where)
    output = _bounds(entry.output_tokens, [o for _, o, _ in pairs], "output_tokens", entry, where)
    return LengthClass(
        name=entry.name,
        share=entry.share,
        prompt_tokens_low=prompt[0],
        prompt_tokens_high=prompt[1],
        output_tokens_low=output[0],
        output_tokens_high=output[1],
        pairs=pairs,
    )


def _bounds(
    given: tuple[int, int] | None, drawn: list[int], key: str, entry: ClassTable, where: str
) -> tuple[int, int]:
    low, high = given or ((min(drawn), max(drawn)) if drawn else (0, 0))
    if not 1 <= low <= high:
        raise ProfileError(
            f"class '{entry.name}': '{key}' must be [low, high] from 1 on.", where=where
        )
    _within(high, key, 1, MOST_TOKENS, where)
    return low, high


def _pair(pair: tuple[float, ...], name: str, where: str) -> tuple[int, int, float]:
    prompt, output, weight = (
        pair if len(pair) == 3 else (*pair, 1.0) if len(pair) == 2 else (0,) * 3
    )
    if prompt < 1 or output < 1 or prompt % 1 or output % 1 or not 0 < weight < float("inf"):
        raise ProfileError(
            f"class '{name}': a pair is [prompt tokens, output tokens, weight], all above 0.",
            where=where,
        )
    return int(prompt), int(output), float(weight)


_RATE = re.compile(
    r"^\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*"
    r"(?:([kmgt]?)(i?)(bit|bits|b|byte|bytes)?(?:ps|/s|/sec|/second))\s*$",
    re.IGNORECASE,
)
_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_rate(text: str) -> float | None:
    """Bytes per second of a typed rate (`2.35Gbit/s`, `300MB/s`, `1Gbps`); None if it is none.

    A lone `b` is a bit and a lone `B` a byte. Raises UsageError on a rate of 0.
    """
    found = _RATE.match(text)
    if found is None:
        return None
    number, prefix, binary, unit = found.groups()
    base = 1024.0 if binary else 1000.0
    value = float(number) * base ** _STEPS[prefix.lower()]
    as_bytes = unit is not None and (unit == "B" or unit.lower().startswith("byte"))
    rate = value if as_bytes else value / 8.0
    if not (rate > 0 and math.isfinite(rate)):
        raise UsageError(f"'{text}' is no rate above 0.", do_next="Give one as 2.35Gbit/s.")
    return rate


def typed_link(rate_bytes_per_s: float, a: str, b: str, *, text: str) -> LinkProfile:
    """A link of a typed payload rate, the same both ways; its latency is not known."""
    reading = stated(rate_bytes_per_s, unit="bytes/s", source=f"typed: {text}")
    said = unknown("a typed rate says nothing of latency")
    return LinkProfile(
        a=a,
        b=b,
        source=f"typed: {text}",
        a_to_b=reading,
        b_to_a=reading,
        latency_s=LatencyReading(p50=said, p99=said),
    )

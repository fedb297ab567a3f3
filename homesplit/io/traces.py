"""Reads recorded loads: Azure's CSV, Mooncake's JSON lines, BurstGPT's CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice, pairwise
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from homesplit.core.replay import Trace, TraceRow
from homesplit.errors import ProfileError

MAX_ROWS = 200_000


class _Mooncake(Struct):
    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> Trace:
    """The trace in `path`, its form told by its first line; raises ProfileError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            # Not gone back to: a pipe is read only once.
            rows = tuple(islice(_rows(first, chain((first,), file)), MAX_ROWS))
    except OSError as error:
        raise ProfileError(f"the trace can't be read: {error.strerror}", where=str(path)) from error
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        raise ProfileError(
            f"the trace can't be understood: {error}",
            where=str(path),
            do_next="Give an Azure CSV, a BurstGPT CSV or a Mooncake JSONL file.",
        ) from error
    if not rows:
        raise ProfileError(
            "the trace holds no request",
            where=str(path),
            do_next="Give an Azure CSV, a BurstGPT CSV or a Mooncake JSONL file.",
        )
    bucket_s = bucket_of([row.at_s for row in rows]) if first.startswith("{") else 0.0
    return Trace(name=path.stem, rows=rows, bucket_s=bucket_s, notes=_notes(bucket_s))


def _notes(bucket_s: float) -> tuple[str, ...]:
    if not bucket_s:
        return ()
    return (f"the trace's times are rounded to {bucket_s:g} s and are spread evenly inside that",)


def _rows(first: str, file: Iterable[str]) -> Iterator[TraceRow]:
    if first.startswith("{"):
        return _mooncake(file)
    if first.startswith("TIMESTAMP"):
        return _azure(file)
    if first.startswith("Timestamp"):
        return _burstgpt(file)
    raise ValueError(
        "its first line is none of Azure's (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT's "
        "(Timestamp,Model,Request tokens,…) or a JSON object as in Mooncake's"
    )


def _azure(file: Iterable[str]) -> Iterator[TraceRow]:
    """Times with seven decimals, of which Python's parser takes six."""
    for row in csv.DictReader(file):
        moment = datetime.fromisoformat(row["TIMESTAMP"][:26])
        yield TraceRow(
            at_s=(moment - datetime(1970, 1, 1)).total_seconds(),
            prompt_tokens=_positive(row["ContextTokens"]),
            output_tokens=_positive(row["GeneratedTokens"]),
        )


def _burstgpt(file: Iterable[str]) -> Iterator[TraceRow]:
    """Seconds from the start; failed requests have no answer tokens and are left out."""
    for row in csv.DictReader(file):
        if int(row["Response tokens"]) < 1:
            continue
        yield TraceRow(
            at_s=float(row["Timestamp"]),
            prompt_tokens=_positive(row["Request tokens"]),
            output_tokens=_positive(row["Response tokens"]),
        )


def _mooncake(file: Iterable[str]) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for line in file:
        if not line.strip():
            continue
        row = decoder.decode(line)
        yield TraceRow(
            at_s=row.timestamp / 1000.0,
            prompt_tokens=max(1, row.input_length),
            output_tokens=max(1, row.output_length),
            hash_ids=row.hash_ids,
        )


def _positive(text: str) -> int:
    return max(1, int(text))


def bucket_of(times: list[float]) -> float:
    """The grid in seconds that times were rounded to, 0 where most neighbours differ.

    Rounded times show as mostly zero gaps; the middle gap above zero is then the grid.
    """
    ordered = sorted(times)
    gaps = [later - earlier for earlier, later in pairwise(ordered)]
    zero = sum(gap == 0 for gap in gaps)
    if not gaps or zero * 2 < len(gaps):
        return 0.0
    above = [gap for gap in gaps if gap > 0]
    return round(median(above), 3) if above else 0.0

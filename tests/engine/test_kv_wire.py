"""KV that is sent smaller: how large, how exact, and never mixed up with exact KV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from homesplit_engine.cache import KvPool, KvShape
from homesplit_engine.handoff.layout import Piece, as_it_lies, pack, piece_bytes, unpack
from homesplit_engine.records import KV_WIRES, KvWire
from homesplit_engine.wire.messages import Failed

from tests.engine.client import Pair, submit
from tests.engine.tiny import generate, make_model, prompt_of

SHAPE = KvShape(kv_heads=(2, 3), head_dim=(8, 5), dtype=torch.float32)
PIECE = Piece(layer=0, layers=2, start=3, end=10)
BYTES: dict[KvWire, int] = {
    "same": 7 * 2 * (2 * 8 + 3 * 5) * 4,
    "fp16": 7 * 2 * (2 * 8 + 3 * 5) * 2,
    "int8": 7 * 2 * (2 * (8 + 4) + 3 * (5 + 4)),
}


def filled(seed: int) -> KvPool:
    pool = KvPool(SHAPE, blocks_total=4, block_tokens=4, device=torch.device("cpu"))
    torch.manual_seed(seed)
    for layer in pool.layers:
        layer.normal_()
    return pool


@pytest.mark.parametrize("wire", KV_WIRES)
@pytest.mark.parametrize("blocks", [[0, 1, 2], [3, 0, 2]], ids=["in a row", "scattered"])
def test_a_frame_has_the_stated_size_and_comes_back_within_its_rounding(
    wire: KvWire, blocks: list[int]
) -> None:
    source, target = filled(0), filled(1)
    there, here = source.place(blocks), target.place([1, 2, 3])
    frame = pack(source, there, PIECE, wire)
    assert frame.nbytes == piece_bytes(SHAPE, PIECE, wire) == BYTES[wire]
    lies = as_it_lies(source, there, PIECE, wire)
    assert (lies is None) is (wire != "same")
    assert lies is None or b"".join(lies) == frame
    unpack(target, here, PIECE, frame, wire)
    for layer in range(2):
        sent = source.read(layer, there, 3, 10)
        got = target.read(layer, here, 3, 10)
        step = {"same": 0.0, "fp16": 2**-10, "int8": 0.5001 / 127}[wire]
        assert ((sent - got).abs() <= step * sent.abs().amax(-1, keepdim=True)).all()
        untouched = filled(1).read(layer, here, 0, 3)
        assert torch.equal(target.read(layer, here, 0, 3), untouched)


def test_values_that_fp16_cannot_hold_stay_finite() -> None:
    source, target = filled(0), filled(1)
    source.layers[0][:] = 1e6
    place = source.place([0, 1, 2])
    unpack(target, place, PIECE, pack(source, place, PIECE, "fp16"), "fp16")
    assert target.read(0, place, 3, 10).eq(65504.0).all()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("pair"), model)
    yield both
    both.stop()


@pytest.mark.parametrize(("wire", "per_token"), [("same", 384), ("fp16", 192), ("int8", 144)])
def test_bytes_are_counted_as_sent(pair: Pair, wire: KvWire, per_token: int) -> None:
    request_id = f"bytes-{wire}"
    pair.split(request_id, prompt_of(20, 1), 12, wire)
    assert len(pair.b.finish(request_id)) == 5
    report = pair.a.handoff_report(request_id)
    assert report.event.committed
    assert report.event.bytes == report.event.tokens * per_token
    # What the router reckons with when it places a request or waits for a hand-off.
    assert pair.b.ready is not None
    assert pair.b.ready.handoff_bytes_per_token(wire) == per_token


def test_lossy_kv_is_no_prefix_for_an_exact_request(pair: Pair, model: Path) -> None:
    prompt = prompt_of(40, 2)
    assert pair.split("lossy", prompt, 12, "int8").cached_tokens == 0
    pair.b.finish("lossy")
    assert pair.split("lossy again", prompt, 12, "int8").cached_tokens == 32
    pair.b.finish("lossy again")
    exact = pair.split("exact", prompt, 12)
    assert exact.cached_tokens == 0
    assert pair.text("exact") == generate(model, prompt, 6)


def test_kv_of_another_kind_than_reserved_for_is_refused(pair: Pair) -> None:
    reserved = pair.reserve("mixed", prompt_of(20, 3))
    target = pair.target(reserved, "int8")
    pair.a.send(submit("mixed", prompt_of(20, 3), handoff=target))
    failed = pair.b.wait(Failed, lambda m: m.request_id == "mixed")
    assert "dtype is int8, expected was same" in failed.what
    pair.a.wait_until_free()
    pair.b.wait_until_free()

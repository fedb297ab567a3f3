"""The engine on a device that is not there: no operation mixes it with the CPU's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
import zmq
from homesplit_engine import devices
from homesplit_engine.attention import Plug
from homesplit_engine.cache import KvPool, KvShape
from homesplit_engine.devices import DeviceLost, Threads, Turn, why_no_device
from homesplit_engine.graphs import Bucket, StaticStep, why_not_static
from homesplit_engine.handoff.layout import Piece, pack, piece_bytes, unpack
from homesplit_engine.handoff.sender import Layer, Outgoing, Sender
from homesplit_engine.lean import make_lean
from homesplit_engine.model import LoadedModel, ModelError, load_model
from homesplit_engine.own_attention import adapt
from homesplit_engine.records import KV_WIRES, KvWire
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.sampling import Row, choose
from homesplit_engine.trial import try_steps
from homesplit_engine.wire.messages import HandoffSecret, HandoffTarget, SamplingParams
from torch._subclasses.fake_tensor import DataDependentOutputException

from tests.engine.fake_device import DEVICE, FakeDeviceMixed, fake_cuda, moved
from tests.engine.tiny import (
    CONTEXT,
    EXPERTS,
    KINDS,
    VOCABULARY,
    WAYS,
    config_of,
    make_model,
    prompt_of,
)

BLOCK = 8
DENSE = [kind for kind in (*KINDS, *WAYS) if kind not in EXPERTS]


def made(kind: str, dtype: torch.dtype) -> Any:
    """A tiny model on the CPU."""
    model: Any = transformers.AutoModelForCausalLM.from_config(
        config_of(kind), dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


def loaded_there(model: Any, dtype: torch.dtype) -> LoadedModel:
    """The model on the device that is not there; to be called inside `fake_cuda`."""
    layers = model.config.num_hidden_layers
    plug = Plug()
    moved(model)
    if not adapt(model, plug):
        model.set_attn_implementation(plug.name)
    model = make_lean(model, plug) or model
    tokens = torch.zeros((1, 20), dtype=torch.int64, device=DEVICE)
    model(tokens, position_ids=torch.arange(20, device=DEVICE)[None], use_cache=False)
    seen = [plug.seen[layer] for layer in range(layers)]
    shape = KvShape(
        kv_heads=tuple(one.kv_heads for one in seen),
        head_dim=tuple(one.head_dim for one in seen),
        dtype=dtype,
    )
    return LoadedModel(
        model=model,
        plug=plug,
        kv_shape=shape,
        name="tiny",
        max_context=CONTEXT,
        eos_token_ids=(2,),
        vocab_size=VOCABULARY,
        device=DEVICE,
        dtype=str(dtype),
        fields={},
    )


def request(name: str, length: int, blocks: list[int]) -> Request:
    return Request(
        request_id=name,
        tokens=prompt_of(length),
        prompt_tokens=length,
        max_tokens=4,
        arrived_s=0.0,
        deadline_s=1.0,
        blocks=blocks,
    )


CASES = [(kind, torch.float32) for kind in DENSE] + [
    (kind, torch.bfloat16) for kind in ("llama", "gemma2")
]


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_a_step_keeps_to_the_models_device(kind: str, dtype: torch.dtype) -> None:
    model = made(kind, dtype)
    with fake_cuda() as watched:
        loaded = loaded_there(model, dtype)
        pool = KvPool(
            loaded.kv_shape, blocks_total=12, block_tokens=BLOCK, device=DEVICE, spare=True
        )
        _computes_any_step(Runner(loaded, pool))
        assert why_not_static(loaded.model) is None
        step = StaticStep(loaded, pool, Bucket(rows=4, tokens=64))
        step.fill([5, 6], [29, 20], [pool.place([0, 1, 2, 3]), pool.place([9, 4, 7])])
        # One that is recorded asks for no value, and meets no memory but the device's.
        with watched():
            logits = step.compute()
        assert logits.device == DEVICE and logits.shape == (4, VOCABULARY)


def _computes_any_step(runner: Runner) -> None:
    whole, scattered = request("a", 30, [0, 1, 2, 3]), request("b", 30, [9, 4, 7, 5])
    told: list[int] = []
    parts = [(whole, 0, 29, False), (scattered, 0, 12, False)]
    logits, sampled = runner.logits(parts, told.append)
    assert (logits.shape, sampled) == ((0, VOCABULARY), [])
    assert told == list(range(runner.pool.shape.layers))
    runner.logits([(scattered, 12, 17, False), (whole, 29, 1, True)])
    logits, sampled = runner.logits([(whole, 29, 1, True), (scattered, 29, 1, True)])
    assert logits.device == DEVICE and logits.dtype == torch.float32
    assert logits.shape == (2, VOCABULARY) and sampled == [whole, scattered]


def test_models_whose_steps_depend_on_values_are_known_by_their_settings() -> None:
    for kind in EXPERTS:
        model = type("Model", (), {"config": config_of(kind)})()
        assert "experts" in (why_not_static(model) or "")
    longrope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}
    model = type("Model", (), {"config": type("C", (), {"rope_parameters": longrope})()})()
    assert "longrope" in (why_not_static(model) or "")


@pytest.mark.parametrize("wire", KV_WIRES)
@pytest.mark.parametrize("blocks", [[0, 1, 2], [3, 0, 2]], ids=["in a row", "scattered"])
def test_kv_leaves_the_device_as_bytes_and_comes_back(
    wire: KvWire, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = KvShape(kv_heads=(2, 3), head_dim=(8, 5), dtype=torch.bfloat16)
    piece = Piece(layer=0, layers=2, start=3, end=10)
    frame = memoryview(bytearray(piece_bytes(shape, piece, wire)))
    # Bytes have values: here they are as many without.
    monkeypatch.setattr(torch, "frombuffer", _as_many)
    monkeypatch.setattr(torch.Tensor, "numpy", _bytes_of)
    with fake_cuda():
        pool = KvPool(shape, blocks_total=4, block_tokens=4, device=DEVICE)
        assert not pool.arrays
        place = pool.place(blocks)
        unpack(pool, place, piece, frame, wire)
        assert pack(pool, place, piece, wire).nbytes == frame.nbytes


def _as_many(frame: memoryview, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(frame.nbytes, dtype=dtype)


def _bytes_of(tensor: torch.Tensor) -> Any:
    assert tensor.device.type == "cpu" and tensor.dtype == torch.uint8
    return bytearray(tensor.numel())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "seed": 3},
        {"top_logprobs": 3},
    ],
)
def test_tokens_are_chosen_without_mixing_devices(settings: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=4, **settings)
    row = Row(params=params, token_ids=[1, 2, 3, 2], prompt_tokens=2)
    with fake_cuda(values=True):
        (choice,) = choose(torch.empty((1, VOCABULARY), device=DEVICE), [row])
    assert choice is not None and choice.token_id == 1
    assert len(choice.top_logprobs) == (params.top_logprobs or 0)


def test_a_mixture_of_devices_is_seen_by_these_tests() -> None:
    with fake_cuda() as watched:
        with pytest.raises(RuntimeError, match="same device"):
            torch.mm(torch.empty(3, 3, device=DEVICE), torch.empty(3, 3))
        with pytest.raises(FakeDeviceMixed), watched():
            torch.empty(3).to(DEVICE)
        with pytest.raises(DataDependentOutputException):
            torch.empty(3, device=DEVICE).tolist()


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gpt2", "qwen3_moe", "gpt_oss"])
def test_the_trial_of_a_device_passes_where_steps_are_right(kind: str, tmp_path: Any) -> None:
    try_steps(load_model(make_model(tmp_path, kind), device="cpu", dtype="float32"))


def test_the_trial_of_a_device_fails_where_its_attention_is_wrong(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(make_model(tmp_path, "gemma3"), device="cpu", dtype="float32")
    right = torch.nn.functional.scaled_dot_product_attention

    def wrong(query: torch.Tensor, *rest: Any, **settings: Any) -> torch.Tensor:
        return right(query, *rest, **settings).flip(-1)

    monkeypatch.setattr("homesplit_engine.attention.scaled_dot_product_attention", wrong)
    with pytest.raises(ModelError, match="logits are off by"):
        try_steps(loaded)


@pytest.mark.parametrize(
    ("device", "sentence"),
    [("cuda", "CUDA"), ("mps", "Apple"), ("meta", "not one"), ("gpu", "not known")],
)
def test_a_device_that_is_not_there_is_refused_with_a_sentence(
    device: str, sentence: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert sentence in (why_no_device(device) or "")
    with pytest.raises(ModelError, match=sentence):
        load_model(tmp_path, device=device, dtype="float32")


def test_a_step_that_fails_on_a_lost_device_ends_the_worker_and_any_other_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, failed = torch.device("cuda"), RuntimeError("a step failed")
    monkeypatch.setattr(devices, "finish", _nothing)
    devices.check_alive(device, failed)

    def lost(_device: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(devices, "finish", lost)
    with pytest.raises(DeviceLost, match="illegal memory access"):
        devices.check_alive(device, failed)


def test_threads_take_turns_in_the_order_in_which_they_came() -> None:
    turn, order, threads = Turn(), [], []

    def take(name: int) -> None:
        with turn:
            order.append(name)

    with turn:
        for name in range(4):
            threads.append(threading.Thread(target=take, args=(name,)))
            threads[-1].start()
            _until(lambda at=name: turn.waiting == at + 1)
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3]
    with turn:
        assert turn.waiting == 0


def test_threads_compute_at_once_but_on_an_apple_gpu() -> None:
    assert Threads(torch.device("cpu")).turn is None
    assert Threads(torch.device("cuda")).turn is None
    apple = Threads(torch.device("mps"))
    assert apple.mark() is None
    with apple.computing():
        assert apple.turn is not None
        other = threading.Thread(target=lambda: apple.reading().__enter__())
        other.start()
        _until(lambda: apple.turn is not None and apple.turn.waiting == 1)
    other.join(60)


def _until(there: Callable[[], bool]) -> None:
    ready = threading.Event()
    for _ in range(6000):
        if there():
            return
        ready.wait(0.01)
    raise AssertionError("it never came")


def test_a_hand_off_reads_each_layer_behind_the_mark_that_was_made_when_it_was_stored() -> None:
    shape = KvShape(kv_heads=(2, 2), head_dim=(4, 4), dtype=torch.float32)
    pool = KvPool(shape, blocks_total=2, block_tokens=4, device=torch.device("cpu"))
    marks = _Marks()
    pool.threads = marks
    sender = Sender(zmq.Context.instance(), box="a", fingerprint="f", pool=pool, ended=_nothing)
    outgoing = Outgoing(request_id="q", target=_target(), prompt_tokens=4, deadline_s=9.0)
    sender.layer_done(outgoing, 0, 0, 4)
    sender.layer_done(outgoing, 1, 0, 4)
    sender.layer_done(outgoing, 1, 4, 4)
    notes = list(sender._notes)  # pyright: ignore[reportPrivateUsage]
    assert [note.mark for note in notes if isinstance(note, Layer)] == [1, 2]
    pack(pool, pool.place([0]), Piece(layer=0, layers=2, start=0, end=4), "same", 2)
    assert marks.read == [2]


def _target() -> HandoffTarget:
    secret = HandoffSecret(password="", seal_key=bytes(32))
    return HandoffTarget(
        reservation_id="r", box="b", endpoint="", secret=secret, fingerprint="f", cached_tokens=0
    )


class _Marks(Threads):
    """Numbers instead of what a GPU makes of them."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.made = 0
        self.read: list[Any] = []

    def mark(self) -> Any:
        self.made += 1
        return self.made

    @contextmanager
    def reading(self, mark: Any = None) -> Generator[None]:
        self.read.append(mark)
        yield


def _nothing(*_: Any) -> None:
    return None

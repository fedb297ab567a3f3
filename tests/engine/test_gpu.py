"""On the GPU that is there, CUDA or MPS: the text is transformers' own, however it is cut up.

`python -m pytest -m gpu tests/engine` on a machine with one; elsewhere each is skipped by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.devices import free_bytes
from homesplit_engine.graphs import why_no_graphs
from homesplit_engine.handoff.layout import Piece, pack, unpack
from homesplit_engine.keys import make_keys
from homesplit_engine.model import LoadedModel, load_model
from homesplit_engine.records import KV_WIRES, KvWire
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.trial import try_steps

from homesplit.io.paths import user_paths
from tests.engine.client import Pair, WorkerProcess
from tests.engine.engine_kit import ANSWER, BLOCK, CHUNK, LENGTHS, Engine, Models
from tests.engine.tiny import KINDS, WAYS, prompt_of

pytestmark = pytest.mark.gpu

NAME = "cuda" if torch.cuda.is_available() else "mps"
EVERY = [*KINDS, *WAYS]
LONG = 24
"""Answers long enough for a batch to shrink and for blocks to be added."""


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Products in full fp32: TF32 keeps 10 bits of each number."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"), NAME)


class Graphed(Engine):
    """An engine with CUDA graphs where it may have them."""

    def __init__(self, loaded: LoadedModel, *, blocks: int = 64, **settings: Any) -> None:
        super().__init__(loaded, blocks=blocks, **settings)
        pool = KvPool(
            loaded.kv_shape,
            blocks_total=blocks,
            block_tokens=BLOCK,
            device=loaded.device,
            spare=True,
        )
        self.runner = Runner(loaded, pool, graphs=why_no_graphs(loaded) is None)


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
@pytest.mark.parametrize("kind", EVERY)
def test_greedy_text_equals_generate_in_a_batch(
    kind: str, chunk: int | None, models: Models
) -> None:
    engine = Engine(models.loaded(kind))
    for length in (1, BLOCK + 1, 45):
        engine.add(str(length), prompt_of(length), chunk=chunk)
    assert engine.run() == {str(n): models.answer(kind, n) for n in (1, BLOCK + 1, 45)}


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_text_equals_generate_at_every_border(
    length: int, chunk: int | None, models: Models
) -> None:
    engine = Engine(models.loaded("llama"))
    engine.add("alone", prompt_of(length), chunk=chunk)
    assert engine.run()["alone"] == models.answer("llama", length)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_a_prefix_that_is_cached_gives_the_same_text(kind: str, models: Models) -> None:
    engine = Engine(models.loaded(kind))
    engine.add("first", prompt_of(45))
    engine.run()
    engine.add("second", prompt_of(45))
    request = engine.scheduler.request("second")
    answers = engine.run()
    assert request is not None and request.cached_tokens == 40
    assert answers["second"] == answers["first"] == models.answer(kind, 45)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_scattered_blocks_give_the_same_text(kind: str, models: Models) -> None:
    engine = Graphed(models.loaded(kind), blocks=18, prefix_cache=False)
    engine.scheduler.pool.allocate(18)
    engine.scheduler.pool.release(list(range(0, 18, 2)))
    engine.add("alone", prompt_of(45), max_tokens=LONG)
    assert engine.run()["alone"] == models.answer(kind, 45, LONG)


def test_preempted_requests_still_give_the_same_text(models: Models) -> None:
    engine = Graphed(models.loaded("llama"), blocks=8, prefix_cache=False)
    for seed in range(4):
        engine.add(str(seed), prompt_of(15, seed))
    requests = [engine.scheduler.request(str(seed)) for seed in range(4)]
    answers = engine.run()
    assert sum(r.preemptions for r in requests if r is not None) > 0
    assert answers == {str(n): models.answer("llama", 15, ANSWER, n) for n in range(4)}


def test_a_seed_gives_the_same_text_alone_and_in_a_batch(models: Models) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 10}
    alone = Engine(models.loaded("llama"))
    alone.add("a", prompt_of(20), seed=7, **sampling)
    batch = Graphed(models.loaded("llama"))
    for name in ("x", "a", "y"):
        batch.add(name, prompt_of(20), seed=7 if name == "a" else 8, **sampling)
    assert alone.run()["a"] == batch.run()["a"]
    assert batch.answers["x"] == batch.answers["y"] != batch.answers["a"]


def test_penalties_and_logprobs_come_out_as_on_the_cpu(models: Models) -> None:
    settings: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "top_logprobs": 3,
        "max_tokens": 10,
    }
    texts: list[list[int]] = []
    for device in (NAME, "cpu"):
        engine = Engine(models.loaded("llama", device=device))
        engine.add("a", prompt_of(20), **settings)
        texts.append(engine.run()["a"])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", EVERY)
def test_graphs_on_and_off_give_the_same_text(kind: str, models: Models) -> None:
    loaded = models.loaded(kind)
    refusal = why_no_graphs(loaded)
    if refusal is not None:
        pytest.skip(f"no graphs for {kind} here: {refusal}")
    engine = Graphed(loaded)
    batch = ((1, LONG), (BLOCK + 1, 3), (23, LONG), (45, 7))
    for length, tokens in batch:
        engine.add(str(length), prompt_of(length), max_tokens=tokens)
    answers = engine.run()
    assert engine.runner.graphs is not None
    assert engine.runner.graphs.off is None and engine.runner.graphs.buckets
    assert answers == {str(n): models.answer(kind, n, tokens) for n, tokens in batch}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_graphs_of_half_precision_pass_their_own_comparison(dtype: str, models: Models) -> None:
    loaded = models.loaded("llama", dtype)
    refusal = why_no_graphs(loaded)
    if refusal is not None:
        pytest.skip(f"no graphs here: {refusal}")
    engine = Graphed(loaded)
    for length in (1, BLOCK + 1, 45):
        engine.add(str(length), prompt_of(length), max_tokens=LONG)
    engine.run()
    assert engine.runner.graphs is not None
    assert engine.runner.graphs.off is None and engine.runner.graphs.buckets


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", EVERY)
def test_the_trial_that_a_worker_begins_with_passes(kind: str, dtype: str, models: Models) -> None:
    try_steps(models.loaded(kind, dtype))


def test_memory_for_the_pool_is_found() -> None:
    assert free_bytes(torch.device(NAME)) > 2**20


def _request(length: int, blocks: list[int]) -> Request:
    return Request(
        request_id="a",
        tokens=prompt_of(length),
        prompt_tokens=length,
        max_tokens=ANSWER,
        arrived_s=0.0,
        deadline_s=1.0,
        blocks=blocks,
    )


@pytest.mark.parametrize("wire", KV_WIRES)
@pytest.mark.parametrize("way", [("cpu", NAME), (NAME, "cpu"), (NAME, NAME)], ids="-".join)
def test_kv_that_is_handed_over_between_devices_is_what_was_there(
    way: tuple[str, str], wire: KvWire, models: Models
) -> None:
    """Told layer by layer while later layers and steps are queued, as the sender is."""
    source, target = (models.loaded("llama", device=device) for device in way)
    runners = [
        Runner(one, KvPool(one.kv_shape, blocks_total=12, block_tokens=BLOCK, device=one.device))
        for one in (source, target)
    ]
    subject = _request(30, [9, 4, 7, 5])
    there = runners[0].place(subject)
    here = runners[1].pool.place([2, 3, 6, 1])
    marks: list[Any] = []
    runners[0].logits(
        [(subject, 0, 30, False)], lambda _: marks.append(runners[0].pool.threads.mark())
    )
    other = _request(16, [0, 1])
    runners[0].logits([(other, 0, 16, False)])
    for layer, mark in enumerate(marks):
        piece = Piece(layer=layer, layers=1, start=0, end=30)
        frame = pack(runners[0].pool, there, piece, wire, mark)
        unpack(runners[1].pool, here, piece, frame, wire)
        sent = runners[0].pool.read(layer, there, 0, 30).cpu()
        got = runners[1].pool.read(layer, here, 0, 30).cpu()
        step = {"same": 0.0, "fp16": 2**-10, "int8": 0.51 / 127}[wire]
        assert sent.abs().max() > 0
        assert ((sent - got).abs() <= step * sent.abs().amax(-1, keepdim=True)).all()


class Boxes(Pair):
    """Two real workers, each on a device of its own."""

    def __init__(self, folder: Path, model: Path, way: tuple[str, str]) -> None:
        self.keys = make_keys(["A", "B"])
        started = [
            WorkerProcess(
                folder,
                self.keys[box],
                self.keys["router"],
                model,
                run=("-m", "homesplit_engine"),
                device=device,
                prefix_cache=False,
            )
            for box, device in zip("AB", way, strict=True)
        ]
        self.a, self.b = started
        self.a.connect()
        self.b.connect()


@pytest.mark.parametrize("way", [("cpu", NAME), (NAME, "cpu"), (NAME, NAME)], ids="-".join)
def test_two_workers_on_different_devices_split_requests(
    way: tuple[str, str], models: Models, tmp_path: Path
) -> None:
    boxes = Boxes(tmp_path, models.folder("llama"), way)
    try:
        for chunk in (None, CHUNK):
            name = f"chunk-{chunk}"
            boxes.split(name, prompt_of(45), chunk, max_tokens=ANSWER)
            assert boxes.text(name) == models.answer("llama", 45)
    finally:
        boxes.stop()


@pytest.mark.model
@pytest.mark.slow
def test_the_real_models_text_equals_generate() -> None:
    from homesplit_engine.reference import answer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = user_paths().models / "smollm2-135m"
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    text = (Path(__file__).parents[1] / "bench" / "quality.txt").read_text()
    ids: list[int] = tokenizer(text)["input_ids"]
    prompts = {str(count): ids[count : 2 * count] for count in (5, 64, 200)}
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    model.to(NAME)
    expected = {
        name: answer(model, tokenizer, {"token_ids": prompt, "max_tokens": LONG})["token_ids"]
        for name, prompt in prompts.items()
    }
    for chunk in (None, 48):
        engine = Graphed(load_model(folder, device=NAME, dtype="float32"), blocks=128)
        for name, prompt in prompts.items():
            engine.add(name, prompt, chunk=chunk, max_tokens=LONG)
        assert engine.run() == expected

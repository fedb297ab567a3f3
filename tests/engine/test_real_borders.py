"""SmolLM2's real weights at the lengths where a cut could go wrong: the text of `generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.model import LoadedModel, load_model
from homesplit_engine.pages import BlockPool
from homesplit_engine.records import ModeSetting
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.scheduler import Limits, Scheduler
from homesplit_engine.wire.messages import SamplingParams

from homesplit.io.paths import user_paths
from tests.engine.live_kit import live

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

BLOCK = 16
CHUNK = 64
ANSWER = 4
CONTEXT = 160
"""The real context is minutes of arithmetic away; the limit is a setting of the same weights."""
BORDERS = (1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, CONTEXT - ANSWER)
TEXT = Path(__file__).parents[1] / "bench" / "quality.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder again, with a shorter context."""
    source = user_paths().models / "smollm2-135m"
    made = tmp_path_factory.mktemp("short-context")
    for file in source.iterdir():
        (made / file.name).symlink_to(file)
    config = json.loads((source / "config.json").read_text())
    (made / "config.json").unlink()
    (made / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return made


@pytest.fixture(scope="module")
def prompt(folder: Path) -> Callable[[int], list[int]]:
    """A prompt of so many tokens, each length from another place of the text."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    ids: list[int] = tokenizer(TEXT.read_text())["input_ids"]

    def cut(tokens: int) -> list[int]:
        return ids[tokens : 2 * tokens]

    return cut


@pytest.fixture(scope="module")
def own(folder: Path) -> Any:
    """Transformers' own model, in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def wanted(folder: Path, own: Any, prompt: Callable[[int], list[int]]) -> dict[str, list[int]]:
    """Transformers' own greedy answer at every border."""
    from homesplit_engine.reference import answer
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    jobs = {
        str(tokens): {"token_ids": prompt(tokens), "max_tokens": ANSWER, "ignore_eos": True}
        for tokens in BORDERS
    }
    return {name: answer(own, tokenizer, job)["token_ids"] for name, job in jobs.items()}


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, device="cpu", dtype="float32")


class Engine:
    """Scheduler and runner on one pool."""

    def __init__(self, loaded: LoadedModel) -> None:
        blocks = 64
        self.scheduler = Scheduler(BlockPool(blocks, BLOCK), Limits(max_context=CONTEXT))
        kv = KvPool(loaded.kv_shape, blocks_total=blocks, block_tokens=BLOCK, device=loaded.device)
        self.runner = Runner(loaded, kv)

    def answers(
        self, prompts: dict[str, list[int]], chunk: int | None
    ) -> tuple[dict[str, list[int]], int]:
        """The answers to prompts that arrive together, and how many tokens the cache had."""
        requests = [self.request(name, ids, chunk) for name, ids in prompts.items()]
        found: dict[str, list[int]] = {name: [] for name in prompts}
        for request in requests:
            assert self.scheduler.add(request, now_s=0.0) is None
        while (plan := self.scheduler.schedule(0.0)) is not None:
            choices = self.runner.run(plan).choices
            sampled = {name: choice.token_id for name, choice in choices.items()}
            for token in self.scheduler.finish_step(plan, sampled, now_s=0.0).tokens:
                found[token.request_id].append(token.token_id)
        return found, sum(request.cached_tokens for request in requests)

    @staticmethod
    def request(name: str, ids: list[int], chunk: int | None) -> Request:
        return Request(
            request_id=name,
            tokens=list(ids),
            prompt_tokens=len(ids),
            max_tokens=ANSWER,
            arrived_s=0.0,
            deadline_s=1e9,
            chunk_tokens=chunk,
            sampling=SamplingParams(max_tokens=ANSWER),
        )

    def refusal(self, ids: list[int]) -> Any:
        """What is said to a prompt that can't be taken."""
        return self.scheduler.add(self.request("long", ids, None), now_s=0.0)


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
def test_alone_each_border_length_gives_the_text_of_generate(
    chunk: int | None, loaded: LoadedModel, prompt: Any, wanted: dict[str, list[int]]
) -> None:
    answers: dict[str, list[int]] = {}
    for tokens in BORDERS:
        found, _ = Engine(loaded).answers({str(tokens): prompt(tokens)}, chunk)
        answers |= found
    assert answers == wanted


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
def test_in_a_batch_and_again_from_the_prefix_cache_the_text_is_the_same(
    chunk: int | None, loaded: LoadedModel, prompt: Any, wanted: dict[str, list[int]]
) -> None:
    engine = Engine(loaded)
    prompts = {str(tokens): prompt(tokens) for tokens in BORDERS}
    fresh, _ = engine.answers(prompts, chunk)
    again, cached = engine.answers(prompts, chunk)
    assert fresh == again == wanted
    # Every full block of each prompt, but never its last token: something must be computed.
    assert cached == sum((tokens - 1) // BLOCK * BLOCK for tokens in BORDERS)


def test_one_token_past_the_context_is_refused_in_words(loaded: LoadedModel, prompt: Any) -> None:
    refusal = Engine(loaded).refusal([*prompt(CONTEXT - ANSWER), 1])
    assert refusal.kind == "too_long"
    assert f"exceed the context of {CONTEXT}" in refusal.what


def test_logits_are_close_to_transformers_own(loaded: LoadedModel, own: Any, prompt: Any) -> None:
    ids = prompt(CHUNK + 1)
    with torch.inference_mode():
        theirs = own(torch.tensor([ids])).logits[0]
    engine = Engine(loaded)
    request = engine.request("cut", ids, CHUNK)
    request.blocks = list(range(5))
    start = 0
    for end in (1, BLOCK, BLOCK + 1, CHUNK, CHUNK + 1):
        (ours,), _ = engine.runner.logits([(request, start, end - start, True)])
        torch.testing.assert_close(ours, theirs[end - 1], rtol=1e-3, atol=1e-3)
        start = end


HALVES: dict[str, Any] = {"prefill_box": "left", "decode_box": "right"}


async def test_every_mode_gives_the_text_of_generate(
    folder: Path, loaded: LoadedModel, prompt: Any, wanted: dict[str, list[int]], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    pair = (loaded, load_model(folder, device="cpu", dtype="float32"))
    lengths = (1, BLOCK, BLOCK + 1, CHUNK + 1, CONTEXT - ANSWER)
    boxes: dict[str, Any] = {"blocks": 64, "block_tokens": BLOCK, "prefix_cache": False}
    async with live(tmp_path, pair, model_dir=folder, **boxes) as running:
        for mode in ("colocated", "replica", "split"):
            await running.client.set_mode(ModeSetting(mode=mode, chunk_tokens=CHUNK, **HALVES))
            names = {f"{mode}-{tokens}": tokens for tokens in lengths}
            for name, tokens in names.items():
                _, told = await running.ask(prompt(tokens), ANSWER, name, ignore_eos=True)
                text = tokenizer.decode(wanted[str(tokens)])
                assert told["choices"][0]["text"].rstrip("\ufffd") == text.rstrip("\ufffd")
            served = {record.served for record in (await running.records(set(names))).values()}
            assert served == {"split" if mode == "split" else "colocated"}
        full = [*prompt(CONTEXT - ANSWER), 1]
        status, told = await running.ask(full, ANSWER, "one-too-many")
        assert (status, told["error"]["param"]) == (400, "prompt")

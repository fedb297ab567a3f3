"""Every kind of model behind the router: transformers' text in every mode, at every border."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.model import load_model
from homesplit_engine.records import ModeSetting
from tokenizers import Tokenizer

from tests.engine.engine_kit import ANSWER, BLOCK, CHUNK, LENGTHS, Models
from tests.engine.live_kit import Live, live
from tests.engine.router_kit import make_tokenizer
from tests.engine.tiny import CONTEXT, KINDS, prompt_of

pytestmark = pytest.mark.usefixtures("one_thread")

THERE: dict[str, Any] = {"mode": "split", "prefill_box": "left", "decode_box": "right"}
BACK: dict[str, Any] = {"mode": "split", "prefill_box": "right", "decode_box": "left"}
SETTINGS = {
    "colocated": ModeSetting(mode="colocated", chunk_tokens=CHUNK),
    "replica": ModeSetting(mode="replica", prefill="whole"),
    "split-whole": ModeSetting(**BACK, prefill="whole"),
    "split-chunked": ModeSetting(**THERE, chunk_tokens=CHUNK),
}


@pytest.mark.parametrize("kind", list(KINDS))
async def test_every_mode_gives_the_text_of_transformers_at_every_border(
    kind: str, models: Models, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    pair = (models.loaded(kind), load_model(models.folder(kind), device="cpu", dtype="float32"))
    wanted = {n: models.answer(kind, n, seed=seed) for seed, n in enumerate(LENGTHS)}
    folders: dict[str, Any] = {"model_dir": tmp_path / "tokenizer"}
    for name in ("fresh", "cached"):
        (tmp_path / name).mkdir()
    async with live(tmp_path / "fresh", pair, prefix_cache=False, **folders) as running:
        for name, setting in SETTINGS.items():
            await running.client.set_mode(setting)
            await _all_right(running, tokenizer, name, wanted)
        # The longest of them filled the context; one token more is refused.
        full = prompt_of(CONTEXT - ANSWER + 1)
        status, answer = await running.ask(full, ANSWER, "one-too-many")
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert answer["error"]["param"] == "prompt"
        assert "holds 128 tokens, but prompt and answer ask for 129" in answer["error"]["message"]
    async with live(tmp_path / "cached", pair, prefix_cache=True, **folders) as running:
        await running.client.set_mode(SETTINGS["split-chunked"])
        for turn in ("first", "again"):
            await _all_right(running, tokenizer, turn, wanted)
        again = await running.records({f"again-{n}" for n in LENGTHS})
        # A second turn hands over no block that the decode box has.
        for length in LENGTHS:
            record = again[f"again-{length}"]
            if record.handoff_tokens is not None:
                assert record.handoff_tokens <= (length - 1) % BLOCK + 1
        assert any(record.handoff_tokens for record in again.values())


async def _all_right(
    running: Live, tokenizer: Tokenizer, turn: str, wanted: dict[int, list[int]]
) -> None:
    """All lengths at once, so that they are in one batch."""
    names = {f"{turn}-{length}": length for length in wanted}
    prompts = [prompt_of(length, seed) for seed, length in enumerate(wanted)]
    answers = await asyncio.gather(
        *(running.ask(prompt, ANSWER, name) for name, prompt in zip(names, prompts, strict=True))
    )
    texts = {
        name: answer["choices"][0]["text"] for name, (_, answer) in zip(names, answers, strict=True)
    }
    assert texts == {name: tokenizer.decode(wanted[length]) for name, length in names.items()}
    records = await running.records(set(names))
    mode = turn.split("-")[0] if turn in SETTINGS else "split"
    assert {record.mode for record in records.values()} == {mode}
    if mode == "split":
        # An answer that ends with its first token needs no hand-off.
        longer = [record for record in records.values() if record.output_tokens > 1]
        assert longer and {record.served for record in longer} == {"split"}

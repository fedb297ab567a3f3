"""Tries the steps on the device that they will run on, before anyone relies on them.

Loading compares a model's own logits with those of our plain attention. What a GPU's fused kernels
make of batches, cut prompts and scattered blocks is compared here, and whether a model of a family
that nobody here knows can be read in parts at all.
"""

from __future__ import annotations

from typing import Any

import torch

from homesplit_engine.cache import KvPool
from homesplit_engine.model import LoadedModel, ModelError, slack_of
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner

BLOCK_TOKENS = 8
LENGTHS = (41, 18)
_CUT = 23
_BLOCKS: tuple[tuple[int, ...], ...] = ((7, 2, 5, 0, 8, 3), (9, 10, 11))
"""The first lies in scattered blocks, the second in neighbours."""


def try_steps(loaded: LoadedModel) -> None:
    """Raises ModelError when steps on the model's device give other logits than its own way.

    One prompt is read in two parts beside another that is read whole; then both get a token.
    """
    try:
        ours = _stepped(loaded)
        with torch.inference_mode():
            theirs = torch.stack([_whole(loaded, at) for at in range(len(LENGTHS))])
        scale = float(theirs.abs().max()) + 1e-6
        off = float((ours - theirs).abs().max()) / scale
    except RuntimeError as error:
        raise ModelError(
            f"{loaded.name}: a first step on {loaded.device} failed: {error}; "
            "choose another device or dtype for this box"
        ) from error
    if not off <= slack_of(loaded.kv_shape.dtype):
        if loaded.device.type == "cpu":
            raise ModelError(
                f"{loaded.name}: read in parts its logits are off by {off:.2g} of the largest; its "
                "layers pass more on from token to token than keys and values (a convolution, or "
                "a recurrence), which this engine can't serve"
            )
        raise ModelError(
            f"{loaded.name}: on {loaded.device} a step's logits are off by {off:.2g} of the "
            "largest; this torch computes attention wrongly there: choose another device or dtype"
        )


def _stepped(loaded: LoadedModel) -> torch.Tensor:
    pool = KvPool(loaded.kv_shape, blocks_total=12, block_tokens=BLOCK_TOKENS, device=loaded.device)
    runner = Runner(loaded, pool)
    first, second = (_request(loaded, at) for at in range(len(LENGTHS)))
    runner.logits([(first, 0, _CUT, False), (second, 0, LENGTHS[1] - 1, False)])
    runner.logits([(first, _CUT, LENGTHS[0] - 1 - _CUT, False)])
    parts = [(one, count - 1, 1, True) for one, count in zip((first, second), LENGTHS, strict=True)]
    return runner.logits(parts)[0]


def _whole(loaded: LoadedModel, at: int) -> torch.Tensor:
    """The last logits of a whole sequence, attended plainly as when the model was looked at."""
    loaded.plug.seen.clear()
    tokens = _request(loaded, at).tokens
    model: Any = loaded.model
    output = model(
        torch.tensor([tokens], device=loaded.device),
        position_ids=torch.arange(len(tokens), device=loaded.device)[None],
        use_cache=False,
        logits_to_keep=torch.tensor([len(tokens) - 1], device=loaded.device),
    )
    return output.logits[0, -1].float()


def _request(loaded: LoadedModel, at: int) -> Request:
    count = LENGTHS[at]
    generator = torch.Generator().manual_seed(at)
    tokens = torch.randint(0, loaded.vocab_size, (count,), generator=generator).tolist()
    return Request(
        request_id=f"trial-{at}",
        tokens=tokens,
        prompt_tokens=count,
        max_tokens=1,
        arrived_s=0.0,
        deadline_s=0.0,
        blocks=list(_BLOCKS[at]),
    )

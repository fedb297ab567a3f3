"""Asks transformers' own greedy `generate`, in a process of its own, for the right text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from homesplit.errors import EngineError

REFERENCE_S = 900.0
"""Longest time for all prompts together."""


class _Answer(msgspec.Struct):
    text: str


async def reference_texts(model_dir: Path, jobs: Sequence[dict[str, Any]]) -> list[str]:
    """The greedy text of each job (`prompt`, `max_tokens`, `ignore_eos`) in fp32.

    Raises EngineError when the process fails or takes too long.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "homesplit_engine.reference",
        "--model",
        str(model_dir),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, errors = await asyncio.wait_for(
            process.communicate(msgspec.json.encode(list(jobs))), REFERENCE_S
        )
    except TimeoutError as error:
        raise EngineError(
            f"the reference took longer than {REFERENCE_S:.0f} s",
            do_next="Try again with fewer --seconds, on a quieter machine.",
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise EngineError(
            f"the reference run failed: {''.join(last) or 'it said nothing'}",
            do_next="Check that there is memory for a second copy of the model.",
        )
    return [answer.text for answer in msgspec.json.decode(said, type=list[_Answer])]

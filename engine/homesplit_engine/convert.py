"""Turns a GGUF file into an ordinary Hugging Face folder, in a process of its own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def convert(gguf: Path, out: Path) -> None:
    """Write `gguf`'s weights (fp32), tokenizer, chat template and settings into folder `out`.

    The weights are dequantised: the folder computes what the GGUF's own arithmetic states,
    not what an unquantised release of the model would.
    """
    # Imported here so that `--help` and a missing package are answered at once.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    where: dict[str, Any] = {"gguf_file": gguf.name}
    _tell("reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    _tell("reading and dequantising the weights")
    loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    _tell("writing the folder")
    settings = loaded.config
    if hasattr(settings, "quantization_config"):
        del settings.quantization_config
    settings.dtype = torch.float32
    # A fresh model of the same class: the loaded one refuses to be saved unquantised.
    plain: Any = type(loaded)(settings)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.model_max_length = settings.max_position_embeddings
    out.mkdir(parents=True, exist_ok=True)
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _tell(step: str) -> None:
    """One line of progress on stdout, JSON."""
    sys.stdout.write(json.dumps({"step": step}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """`python -m homesplit_engine.convert GGUF OUT`; 3 when a needed package is missing."""
    parser = argparse.ArgumentParser(prog="python -m homesplit_engine.convert")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    try:
        convert(args.gguf.resolve(), args.out)
    except ImportError as error:
        sys.stderr.write(f"missing package: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Transformers' own greedy `generate` in fp32: the text every mode must reproduce.

`python -m homesplit_engine.reference --model DIR` reads JSON `[{"messages" | "prompt" |
"token_ids": …, "max_tokens": n, "ignore_eos": bool}, …]` on stdin and writes a JSON list of
`{"text": …, "token_ids": […]}` on stdout. It shares no code with the engine on purpose.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from typing import Any


def _prompt_ids(tokenizer: Any, job: dict[str, Any]) -> list[int]:
    """The prompt's token ids, by the model's own chat template when it is a conversation."""
    if "token_ids" in job:
        return list(job["token_ids"])
    if "messages" in job:
        return list(
            tokenizer.apply_chat_template(
                job["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
    return list(tokenizer(job["prompt"])["input_ids"])


def answer(model: Any, tokenizer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The greedy continuation of one prompt, with an explicit attention mask and no padding."""
    import torch

    ids = torch.tensor([_prompt_ids(tokenizer, job)], device=model.device)
    config = copy.deepcopy(model.generation_config)
    config.pad_token_id = config.pad_token_id or 0
    if job.get("ignore_eos"):
        config.eos_token_id = None
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            do_sample=False,
            max_new_tokens=int(job["max_tokens"]),
        )
    new = output[0, ids.shape[1] :].tolist()
    return {"text": tokenizer.decode(new, skip_special_tokens=True), "token_ids": new}


def load(folder: str) -> Any:
    """The model in fp32, by transformers alone; GPT-OSS's packed weights as what they stand for."""
    import torch
    import transformers
    from transformers.utils.quantization_config import Mxfp4Config

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    packed = getattr(config, "quantization_config", None) is not None
    # Left to itself it asks for packages that no box has.
    unpack = {"quantization_config": Mxfp4Config(dequantize=True)} if packed else {}
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, **unpack
    ).eval()


def main() -> int:
    """Answer every prompt of stdin."""
    parser = argparse.ArgumentParser(prog="homesplit_engine.reference")
    parser.add_argument("--model", required=True, help="a model folder in Hugging Face layout")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    jobs = json.load(sys.stdin)

    import torch
    import transformers

    if args.threads:
        torch.set_num_threads(args.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    model = load(args.model)
    json.dump([answer(model, tokenizer, job) for job in jobs], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fields of a body that would change the answer and that no box here obeys.

Who sends one must not get another answer than asked for in silence, so it is refused by name.
Many clients send every field that they know at its neutral value: that asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from homesplit_engine.router.errors import ApiError, bad_request

ON: tuple[Any, ...] = (True,)
"""For what is on by default: nothing but that asks for nothing."""
UNCARRIED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's.
    "logit_bias": (),
    "response_format": ({"type": "text"}, "text"),
    "functions": (),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "suffix": (),
    "verbosity": ("medium",),
    # vLLM's.
    "length_penalty": (1,),
    "use_beam_search": (),
    "bad_words": (),
    "allowed_token_ids": (),
    "logits_processors": (),
    "include_stop_str_in_output": (),
    "skip_special_tokens": ON,
    "spaces_between_special_tokens": ON,
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_token_ids": (),
    "return_tokens_as_token_ids": (),
    "continue_final_message": (),
    "chat_template": (),
    "documents": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    # llama.cpp's, and those of front ends that know it.
    "grammar": (),
    "json_schema": (),
    "n_predict": (-1,),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "top_a": (),
    "tfs": (1,),
    "tfs_z": (1,),
    "mirostat": (),
    "mirostat_mode": (),
    "dynatemp_range": (),
    "dry_multiplier": (),
    "xtc_probability": (),
    "guidance_scale": (1,),
    "negative_prompt": (),
    # Ollama's own door has them; its OpenAI door has other names for what they ask.
    "format": (),
    "options": (),
}
"""By field: values that ask for nothing, beside null, false, 0 and what is empty."""
_Asked = msgspec.defstruct("_Asked", [(name, Any, None) for name in UNCARRIED])


def refuse_uncarried(raw: bytes) -> None:
    """Raises ApiError 400 for the first field that asks for what can't be done.

    `raw` was read as a body before.
    """
    asked = msgspec.json.decode(raw, type=_Asked)
    for name, neutral in UNCARRIED.items():
        value = getattr(asked, name)
        if value is None or value in neutral or _is_off(name, value):
            continue
        raise uncarried(name)


def uncarried(name: str) -> ApiError:
    """The 400 for a field that asks for what can't be done."""
    return bad_request(
        f"`{name}` is not offered here, and without it the answer would be another one. "
        "Leave it out.",
        param=name,
    )


def _is_off(name: str, value: Any) -> bool:
    if name == "logit_bias" and isinstance(value, dict):
        return not any(cast("dict[str, Any]", value).values())
    return not value and UNCARRIED[name] is not ON

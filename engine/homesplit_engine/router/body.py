"""Request bodies of the OpenAI API: typed, bounded, unknown fields ignored.

Known fields that no box obeys are refused: `uncarried.py`.
"""

from __future__ import annotations

import math
import re
import secrets
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from homesplit_engine.router.errors import bad_request
from homesplit_engine.router.uncarried import uncarried
from homesplit_engine.wire.messages import SamplingParams

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 64
COMPLETION_TOKENS = 16
"""OpenAI's default length of a plain completion."""


class StreamOptions(Struct, frozen=True):
    """What a stream tells besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Message(Struct, frozen=True):
    """One message of a conversation; its content is text or a list of text parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class _Body(Struct, frozen=True, kw_only=True):
    """What both doors share."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    """Carried where nothing but its length ends the answer: it asks for nothing then."""
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    """Tools and effort are told to the template: it makes them part of the prompt."""
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    """`POST /v1/completions`; a prompt is text or token ids, or a list of either."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


class Wish(Struct, frozen=True, kw_only=True):
    """What both bodies ask for beside the prompt, checked and with defaults filled in."""

    model: str | None
    stream: bool
    include_usage: bool
    usage_in_each_chunk: bool
    stops: tuple[str, ...]
    n: int
    max_tokens: int | None
    """None: as long as the context allows."""
    logprobs: int | None
    """None: no log-probabilities; else how many alternatives beside the chosen token."""
    prompt_field: str = "prompt"
    length_field: str = "max_tokens"
    """What the client calls its prompt and its answer's length: refusals name these."""
    first_token_s: float | None = None
    """When the client gives up waiting for the first token; None says nothing."""
    ttft_target_s: float | None = None
    """The request's own TTFT target; None is the deployment's."""
    sampling: SamplingParams
    """Its `max_tokens` is filled in once the prompt's length is known."""


_B = TypeVar("_B", ChatBody, CompletionBody)


def parse(raw: bytes, kind: type[_B]) -> _B:
    """A body of `kind`; raises ApiError 400 naming the field."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(f"The body is not as expected: {error}", param=_field(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The body is not valid JSON: {error}") from error


def _field(error: msgspec.ValidationError) -> str | None:
    """The body's own field that msgspec names: by its path, or as one that is missing."""
    text = str(error)
    _, found, path = text.partition("`$.")
    if not found:
        _, found, path = text.partition("missing required field `")
    return re.split(r"[`.\[]", path)[0] if found else None


def chat_wish(body: ChatBody) -> Wish:
    """What a chat body asks for; raises ApiError 400."""
    if not body.messages:
        raise bad_request("`messages` is empty.", param="messages")
    logprobs = None
    if body.logprobs:
        logprobs = _bounded("top_logprobs", body.top_logprobs or 0, 0, MAX_TOP_LOGPROBS)
    elif body.top_logprobs:
        raise bad_request("`top_logprobs` needs `logprobs`: true.", param="top_logprobs")
    return _wish(body, logprobs, None, "messages")


def wanted_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """The tools that the prompt is to name; raises ApiError 400 where a call would be forced."""
    if body.tool_choice == "none":
        return None
    if body.tool_choice not in (None, "auto"):
        raise bad_request(
            "`tool_choice` may be 'auto' or 'none': no model is made to call a tool here.",
            param="tool_choice",
        )
    return body.tools or None


def completion_wish(body: CompletionBody) -> Wish:
    """What a completion body asks for; raises ApiError 400."""
    if body.echo:
        raise bad_request("`echo` is not offered: the prompt is not repeated.", param="echo")
    if body.best_of not in (None, body.n or 1):
        raise uncarried("best_of")
    logprobs = body.logprobs
    if logprobs is not None:
        logprobs = _bounded("logprobs", logprobs, 0, MAX_TOP_LOGPROBS)
    return _wish(body, logprobs, COMPLETION_TOKENS, "prompt")


def _wish(body: _Body, logprobs: int | None, default_tokens: int | None, prompt_field: str) -> Wish:
    length_field, max_tokens = "max_tokens", default_tokens
    for name in ("max_tokens", "max_completion_tokens"):  # the newer word counts
        asked: int | None = getattr(body, name)
        if asked is not None:
            length_field, max_tokens = name, _bounded(name, asked, 1, 2**31)
    if _bounded("min_tokens", body.min_tokens or 0, 0, max_tokens or 2**31) and (
        not body.ignore_eos or body.stop or body.stop_token_ids
    ):
        raise uncarried("min_tokens")
    options = body.stream_options or StreamOptions()
    return Wish(
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        usage_in_each_chunk=bool(options.continuous_usage_stats),
        stops=_stops(body.stop),
        n=_bounded("n", 1 if body.n is None else body.n, 1, MAX_CHOICES),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_field=prompt_field,
        length_field=length_field,
        sampling=_sampling(body, logprobs),
    )


def _sampling(body: _Body, logprobs: int | None) -> SamplingParams:
    # A seed is always fixed here, so that an answer that moves to another box goes on alike.
    seed = secrets.randbits(62) if body.seed is None else body.seed
    return SamplingParams(
        max_tokens=1,
        temperature=_number("temperature", body.temperature, 1.0, 0.0, 100.0),
        top_p=_number("top_p", body.top_p, 1.0, 0.0, 1.0),
        # Both 0 and -1 say that it is off, as in vLLM.
        top_k=max(0, _bounded("top_k", body.top_k or 0, -1, 2**31)),
        min_p=_number("min_p", body.min_p, 0.0, 0.0, 1.0),
        seed=_bounded("seed", seed, -(2**63), 2**63 - 1),
        repetition_penalty=_number("repetition_penalty", body.repetition_penalty, 1.0, 0.01, 100.0),
        presence_penalty=_number("presence_penalty", body.presence_penalty, 0.0, -2.0, 2.0),
        frequency_penalty=_number("frequency_penalty", body.frequency_penalty, 0.0, -2.0, 2.0),
        top_logprobs=logprobs,
        stop_token_ids=_token_ids(body.stop_token_ids),
        ignore_eos=bool(body.ignore_eos),
    )


def _number(name: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not math.isfinite(value) or not low <= value <= high:
        raise bad_request(f"`{name}` must lie between {low:g} and {high:g}.", param=name)
    return float(value)


def _bounded(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise bad_request(f"`{name}` must lie between {low} and {high}.", param=name)
    return value


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    stops = tuple(stop for stop in stops if stop)
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise bad_request(
            f"`stop` takes up to {MAX_STOPS} strings of up to {MAX_STOP_CHARS} characters.",
            param="stop",
        )
    return stops


def _token_ids(value: list[int] | None) -> tuple[int, ...]:
    ids = tuple(value or ())
    if len(ids) > 64 or any(not 0 <= token < 2**31 for token in ids):
        raise bad_request("`stop_token_ids` takes up to 64 token ids.", param="stop_token_ids")
    return ids


def prompts_of(prompt: Any) -> list[str | list[int]]:
    """The prompts of a completion body, each text or token ids; raises ApiError 400."""
    if isinstance(prompt, str) or _is_ids(prompt):
        return [prompt]
    prompts: list[Any] = prompt if isinstance(prompt, list) else []
    if not prompts or not all(isinstance(one, str) or _is_ids(one) for one in prompts):
        raise bad_request(
            "`prompt` must be text, a list of texts, token ids, or a list of token id lists.",
            param="prompt",
        )
    if len(prompts) > MAX_PROMPTS:
        raise bad_request(f"`prompt` takes up to {MAX_PROMPTS} prompts at once.", param="prompt")
    return prompts


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(token) is int for token in value)  # a bool is no token id
    )

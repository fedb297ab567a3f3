"""What the doors refuse: each refusal names the field that the client sent, in OpenAI's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.router.body import ChatBody, CompletionBody, completion_wish, parse
from homesplit_engine.router.template import ChatTemplate
from homesplit_engine.router.uncarried import UNCARRIED, refuse_uncarried

from tests.engine.router_kit import Rig, rig, stub_settings

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
USER = {"role": "user", "content": "hi"}
DOORS: dict[str, dict[str, Any]] = {CHAT: {"messages": [USER]}, PLAIN: {"prompt": "hi"}}
BOTH: dict[str, list[Any]] = {
    "model": [3, "gpt-9"],
    "max_tokens": [0, -1, 1.5, "5", True],
    "max_completion_tokens": [0, -1, 1.5, "5"],
    "temperature": [-0.1, 101, "1", True],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, -5, 2**40, 1.5],
    "min_p": [-0.1, 1.1],
    "seed": [2**63, -(2**63) - 1, "x"],
    "n": [0, -1, 17],
    "stop": [3, ["a"] * 17, "a" * 1001],
    "stop_token_ids": ["x", [-1], [1] * 65],
    "ignore_eos": ["yes"],
    "min_tokens": [-1, 3, "x"],
    "repetition_penalty": [0, -1, 1e9],
    "presence_penalty": [2.1, -2.1],
    "frequency_penalty": [2.1, -2.1],
    "stream": ["yes"],
    "stream_options": [3, {"include_usage": 3}],
}
"""By field: values that both doors refuse."""
OWN: dict[str, dict[str, list[Any]]] = {
    CHAT: {
        "messages": [
            "hi",
            [],
            [{"content": "no role"}],
            [{"role": "user", "content": [{"type": "image_url"}]}],
            [{"role": "user", "content": "a" * 5000}],
        ],
        "logprobs": [3],
        "top_logprobs": [1, "x"],
        "tools": ["x", [{"type": "function", "function": {"name": "look"}}]],
        "tool_choice": ["required", {"type": "function", "function": {"name": "look"}}, 3],
        "reasoning_effort": ["high", 3],
        "add_generation_prompt": [3],
        "chat_template_kwargs": [3],
    },
    PLAIN: {
        "prompt": [3, "", [], [1.5], [-1], [10**9], ["a"] * 65, "a" * 5000, [7] * 5000],
        "logprobs": [21, -1, True],
        "echo": [True, "x"],
        "best_of": [2, 0, "x"],
    },
}
"""By door and field: values that this door refuses."""


async def refused(running: Rig, door: str, body: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error of a body that is no good."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with running.http.post(running.url + door, data=data) as answer:
        told = await answer.json()
        assert set(told) == {"error"}, (body, told)
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["type"] == "invalid_request_error"
        return answer.status, told["error"]


@pytest.mark.parametrize("door", [CHAT, PLAIN])
async def test_every_field_with_a_wrong_value_is_named_in_param_and_message(
    tmp_path: Path, door: str
) -> None:
    fields = BOTH | OWN[door]
    assert set(fields) == set((ChatBody if door == CHAT else CompletionBody).__struct_fields__)
    async with rig(tmp_path, boxes=("left",)) as running:
        for field, values in fields.items():
            for value in values:
                status, error = await refused(running, door, DOORS[door] | {field: value})
                told = (field, str(value)[:40], error)
                assert status == (404 if value == "gpt-9" else 400), told
                assert error["param"] == field and field in error["message"], told


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
ASKING: dict[str, Any] = {
    "logit_bias": {"50": -100},
    "response_format": SCHEMA,
    "function_call": {"name": "look"},
    "modalities": ["text", "audio"],
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "verbosity": "high",
}
"""What asks for another answer in fields that no box obeys; in all others 0.5 does."""
NEUTRAL: dict[str, list[Any]] = {
    "logit_bias": [{}, {"50": 0}, []],
    "response_format": [{"type": "text"}],
    "function_call": ["auto"],
    "modalities": [["text"]],
    "skip_special_tokens": [True],
    "spaces_between_special_tokens": [True],
    "verbosity": ["medium"],
    "repeat_penalty": [1, 1.0],
    "use_beam_search": [False],
    "length_penalty": [1.0],
    "n_predict": [-1],
    "guided_json": [""],
}
"""What clients send in those fields who ask for nothing."""


@pytest.mark.parametrize("door", [CHAT, PLAIN])
async def test_a_field_that_no_box_obeys_is_refused_by_name_unless_it_asks_for_nothing(
    tmp_path: Path, door: str
) -> None:
    harmless = {name: values[0] for name, values in NEUTRAL.items()}
    nothing = {name: None for name in UNCARRIED if name not in harmless}
    plain = DOORS[door] | {"max_tokens": 2}
    async with rig(tmp_path, boxes=("left",)) as running:
        for field in UNCARRIED:
            status, error = await refused(running, door, plain | {field: ASKING.get(field, 0.5)})
            assert status == 400, field
            assert error["param"] == field and f"`{field}`" in error["message"]
        for bodies in (
            {"user": "u", "store": True, "metadata": {}},
            harmless,
            nothing,
            BESIDE[door],
        ):
            status, answer = await running.post(door, plain | bodies)
            assert status == 200, (bodies, answer)
    for field, values in NEUTRAL.items():
        for value in values:
            refuse_uncarried(json.dumps({field: value}).encode())


BESIDE: dict[str, dict[str, Any]] = {
    CHAT: {
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "tool_choice": "none",
        "reasoning_effort": "medium",
        "ignore_eos": True,
        "min_tokens": 2,
    },
    PLAIN: {"n": 2, "best_of": 2, "min_tokens": 0},
}
"""What asks for nothing beside the other fields."""


def test_tools_and_effort_are_told_to_a_template_that_knows_them() -> None:
    template = ChatTemplate("{{ tools[0].name }} {{ reasoning_effort }}", {})
    assert template.render([], tools=[{"name": "look"}], reasoning_effort="high") == "look high"


ODD: list[tuple[str, Any, str | None]] = [
    (CHAT, {}, "messages"),
    (PLAIN, {}, "prompt"),
    (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"messages": [USER], "max_tokens": 0, "max_completion_tokens": 4}, "max_tokens"),
    (CHAT, b"{", None),
    (CHAT, b"[]", None),
    (CHAT, b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}', None),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', None),
    (CHAT, b"[" * 100_000, None),
]


async def test_a_body_that_lacks_something_or_is_no_body_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, boxes=("left",)) as running:
        for door, body, param in ODD:
            status, error = await refused(running, door, body)
            assert (status, error["param"]) == (400, param), (body, error)


async def test_one_past_the_context_names_the_prompt_and_the_length_as_they_were_sent(
    tmp_path: Path,
) -> None:
    small = {"left": stub_settings(max_context=20)}
    async with rig(tmp_path, boxes=("left",), settings=small) as running:
        status, answer = await running.post(PLAIN, {"prompt": "a" * 12, "max_tokens": 8})
        assert status == 200 and answer["usage"]["total_tokens"] == 20
        for door, prompt, length in (
            (PLAIN, "prompt", "max_tokens"),
            (PLAIN, "prompt", "max_completion_tokens"),
            (CHAT, "messages", "max_completion_tokens"),
        ):
            # A chat's template adds three tokens.
            given = "a" * 12 if door == PLAIN else [USER | {"content": "a" * 9}]
            status, error = await refused(running, door, {prompt: given, length: 9})
            assert (status, error["param"]) == (400, prompt)
            assert error["code"] == "context_length_exceeded"
            assert (
                f"holds 20 tokens, but prompt and answer ask for 21. Shorten `{prompt}` or "
                in (error["message"])
            )
            assert f"`{length}`" in error["message"]


@pytest.mark.parametrize("value", [-1, 0, None])
def test_top_k_may_be_off_by_either_word(value: int | None) -> None:
    raw = json.dumps({"prompt": "a", "top_k": value}).encode()
    assert completion_wish(parse(raw, CompletionBody)).sampling.top_k == 0

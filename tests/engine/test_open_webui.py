"""What Open WebUI sends to an OpenAI-compatible server, by its source, and what it needs back.

From `backend/open_webui/routers/openai.py` (2026): the model list under `URL/models` with the
key as a bearer, each chat streamed with the fields that the person has set and `stream_options`
where the model is marked as telling usage, text that may come in parts, and titles asked for
without a stream under `max_completion_tokens`. Open WebUI itself was not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engine.router_kit import rig

CHAT = "/v1/chat/completions"
FRONT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "and now?"},
    ],
    "temperature": 0.8,
    "top_p": 0.9,
    "frequency_penalty": 0.0,
    "seed": 7,
    "stop": ["###"],
    "max_tokens": 4,
}


async def test_its_list_of_models_needs_an_id_each(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        headers = {"Authorization": "Bearer none"}
        async with running.http.get(running.url + "/v1/models", headers=headers) as answer:
            listed = await answer.json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == ["tiny"]


async def test_a_chat_streams_with_usage_at_its_end(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        body = {**FRONT, "stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in running.stream(CHAT, body)]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text and chunks[-1]["usage"]["completion_tokens"] == 4


async def test_a_title_is_asked_for_without_a_stream(tmp_path: Path) -> None:
    title = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Give this chat a title."}],
        "stream": False,
        "max_completion_tokens": 5,
    }
    async with rig(tmp_path) as running:
        status, answer = await running.post(CHAT, title)
    assert status == 200 and answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 5

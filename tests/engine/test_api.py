"""The OpenAI doors against a live router: the real client, streams, and wrong input."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from homesplit_engine.router.shapes import ChatShape

from tests.engine.router_kit import letters, make_tokenizer, rig, stub_settings

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"


def client(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


async def test_the_openai_client_chats_with_and_without_a_stream(tmp_path: Path) -> None:
    async with rig(tmp_path) as running, client(running.url) as api:
        models = await api.models.list()
        assert [model.id for model in models.data] == ["tiny"]
        whole = await api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6)
        assert whole.usage and whole.usage.completion_tokens == 6
        assert whole.choices[0].finish_reason == "length"
        stream = await api.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_completion_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        texts = [c.choices[0].delta.content for c in chunks if c.choices]
        assert texts[0] == "" and texts[-1] is None
        assert len(texts) == 1 + 6 + 1
        assert "".join(text or "" for text in texts) == whole.choices[0].message.content
        assert chunks[-1].choices == [] and chunks[-1].usage
        assert chunks[-1].usage.completion_tokens == 6


async def test_the_openai_client_gets_typed_errors(tmp_path: Path) -> None:
    async with rig(tmp_path) as running, client(running.url) as api:
        with pytest.raises(openai.NotFoundError) as missing:
            await api.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            await api.completions.create(model="tiny", prompt="a" * 5000, max_tokens=1)
        assert long.value.code == "context_length_exceeded"


async def test_a_plain_stream_puts_the_finish_reason_on_the_last_token(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        body = {"prompt": "ab", "max_tokens": 4}
        chunks = [c["choices"][0] async for c in running.stream(PLAIN, body)]
        assert [c["finish_reason"] for c in chunks] == [None, None, None, "length"]
        assert "".join(c["text"] for c in chunks) == running.expected("ab", 4)


async def test_a_prompt_may_be_text_ids_or_a_list_of_either(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        ids = list(letters(running.tokenizer, "ab"))
        for prompt, count in (("ab", 1), (["ab"], 1), (ids, 1), ([ids, ids], 2), (["ab", "c"], 2)):
            status, answer = await running.post(PLAIN, {"prompt": prompt, "max_tokens": 3})
            assert status == 200
            assert len(answer["choices"]) == count
            assert answer["choices"][0]["text"] == running.expected("ab", 3)


@pytest.mark.parametrize("streamed", [False, True])
async def test_n_choices_come_with_their_index(tmp_path: Path, streamed: bool) -> None:
    async with rig(tmp_path) as running:
        body = {"messages": MESSAGES, "max_tokens": 3, "n": 3}
        if streamed:
            seen = [c["choices"][0]["index"] async for c in running.stream(CHAT, body)]
            assert sorted(seen) == sorted([0, 1, 2] * 5)
        else:
            _, answer = await running.post(CHAT, body)
            assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
            assert answer["usage"]["completion_tokens"] == 9
            assert answer["usage"]["prompt_tokens"] == 5


async def test_a_stop_string_over_token_borders_is_cut_off_and_ends_the_work(
    tmp_path: Path,
) -> None:
    tokenizer = make_tokenizer(tmp_path)
    script = letters(tokenizer, "one two three")
    async with rig(tmp_path, settings={"left": stub_settings(script=script)}) as running:
        for stop, text in (("two", "one "), (["x", "e tw"], "on"), ("zzz", "one two three")):
            body = {"prompt": "a", "max_tokens": len(script), "stop": stop}
            _, answer = await running.post(PLAIN, body)
            assert answer["choices"][0]["text"] == text
            reason = "length" if stop == "zzz" else "stop"
            assert answer["choices"][0]["finish_reason"] == reason
            streamed = [c["choices"][0]["text"] async for c in running.stream(PLAIN, body)]
            assert "".join(streamed) == text


async def test_a_stream_never_holds_half_a_character_whatever_the_length(tmp_path: Path) -> None:
    text = "né 日本 👩‍🔬!"
    tokenizer = make_tokenizer(tmp_path)
    script = letters(tokenizer, text)
    async with rig(tmp_path, settings={"left": stub_settings(script=script)}) as running:
        pieces: list[str] = []
        for length in range(1, len(script) + 1):
            body = {"prompt": "a", "max_tokens": length, "stream_options": {"include_usage": True}}
            chunks = [c async for c in running.stream(PLAIN, body)]
            pieces = [c["choices"][0]["text"] for c in chunks[:-1]]
            assert "\ufffd" not in "".join(pieces)
            assert text.startswith("".join(pieces))
            assert chunks[-1]["usage"]["completion_tokens"] == length
        assert "".join(pieces) == text


async def test_the_end_token_stops_without_text_and_counts(tmp_path: Path) -> None:
    ending = {"left": stub_settings(eos_after=2)}
    async with rig(tmp_path, settings=ending) as running:
        body = {"prompt": "ab", "max_tokens": 9}
        _, answer = await running.post(PLAIN, body)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["text"] == running.expected("ab", 2)
        assert answer["usage"]["completion_tokens"] == 3
        _, answer = await running.post(PLAIN, body | {"ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == 9


async def test_logprobs_come_in_both_doors_shapes_and_many_are_written_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[bool] = []

    def noted(*told: Any) -> dict[str, Any]:
        loops.append(threading.current_thread() is threading.main_thread())
        return whole(*told)

    whole = ChatShape.whole
    monkeypatch.setattr(ChatShape, "whole", noted)
    async with rig(tmp_path) as running:
        body = {"messages": MESSAGES, "max_tokens": 2, "logprobs": True, "top_logprobs": 3}
        _, answer = await running.post(CHAT, body)
        content = answer["choices"][0]["logprobs"]["content"]
        assert [len(entry["top_logprobs"]) for entry in content] == [3, 3]
        assert content[0]["bytes"] == list(content[0]["token"].encode())
        _, answer = await running.post(PLAIN, {"prompt": "a", "max_tokens": 2, "logprobs": 2})
        details = answer["choices"][0]["logprobs"]
        assert details["token_logprobs"] == [-0.5, -0.5]
        assert details["text_offset"] == [0, 1]
        monkeypatch.setattr("homesplit_engine.router.answer.SHORT_TEXT_CHARS", 7)
        _, again = await running.post(CHAT, body)
        assert again["choices"][0]["logprobs"]["content"] == content
        assert loops == [True, False]


async def test_usage_may_ride_on_each_chunk_and_unknown_fields_are_ignored(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as running:
        body = {
            "messages": MESSAGES,
            "max_tokens": 2,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "a_field_of_tomorrow": {"x": [1]},
        }
        counts = [c["usage"]["completion_tokens"] async for c in running.stream(CHAT, body)]
        assert counts[-1] == 2
        assert counts == sorted(counts)


async def test_without_a_chat_template_chat_is_a_400_and_completions_work(tmp_path: Path) -> None:
    async with rig(tmp_path, template=False) as running:
        status, answer = await running.post(CHAT, {"messages": MESSAGES})
        assert status == 400
        assert answer["error"]["code"] == "no_chat_template"
        assert await running.complete("ab", 3) == running.expected("ab", 3)


async def test_the_api_key_opens_the_door_and_nothing_else_does(tmp_path: Path) -> None:
    key = tmp_path / "api.key"
    key.write_text("sesame\n")
    key.chmod(0o600)
    async with rig(tmp_path, api_key_file=str(key), wait=False) as running:
        cases: list[Mapping[str, str]] = [{}, {"Authorization": "Bearer wrong"}]
        cases.append({"Authorization": "sesame"})
        for headers in cases:
            for path in ("/v1/models", "/homesplit/status", "/homesplit/events"):
                async with running.http.get(running.url + path, headers=headers) as answer:
                    assert answer.status == 401
        async with client(running.url, "sesame") as api:
            assert (await api.models.list()).data[0].id == "tiny"


async def test_the_request_id_comes_back(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": 3}):
            headers = {"x-request-id": "abc-1"}
            async with running.http.post(running.url + PLAIN, json=body, headers=headers) as answer:
                assert answer.headers["x-request-id"] == "abc-1"
                await answer.read()
        assert (await running.records(2))[0].request_id == "abc-1"


async def test_health_asks_for_a_known_answer(tmp_path: Path) -> None:
    async with rig(tmp_path, boxes=("left",)) as running:
        first = await running.get("/health")
        assert first["status"] == "ok" and len(first["answer"]) == 4
        assert not (await running.get("/homesplit/records?since=0"))["records"]


async def test_metrics_carry_the_names_that_dashboards_know(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        await running.complete("ab", 3)
        await running.records(1)
        async with running.http.get(running.url + "/metrics") as answer:
            page = await answer.text()
        for name in (
            "vllm:time_to_first_token_seconds_count",
            "vllm:inter_token_latency_seconds_count",
            "vllm:generation_tokens_total",
            "vllm:kv_cache_usage_perc",
            "vllm:num_requests_waiting",
            'vllm:request_success_total{finished_reason="length"',
            "vllm:request_queue_time_seconds_count",
            "vllm:request_prefill_time_seconds_count",
            "vllm:request_decode_time_seconds_count",
            "vllm:e2e_request_latency_seconds_count",
            "vllm:num_requests_running",
            "vllm:prompt_tokens_total",
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
            "vllm:request_max_num_generation_tokens_sum",
            "homesplit:stall_seconds_count",
            "homesplit:stalled_seconds",
            "homesplit:handoff_seconds",
            "homesplit:handoff_exposed_seconds",
            "homesplit:requests_inside_ttft",
            "homesplit:requests_inside_tpot",
            "homesplit:requests_inside_targets",
        ):
            assert name in page, name
        # A prompt that takes minutes on a small box, and one whole prompt's wait, have buckets.
        for name, le in (("time_to_first_token", "160.0"), ("inter_token_latency", "40.0")):
            assert f'vllm:{name}_seconds_bucket{{le="{le}",model_name="tiny"}}' in page


async def test_paths_and_methods_that_are_not_there_say_so_in_json(tmp_path: Path) -> None:
    async with rig(tmp_path, wait=False) as running:
        assert (await running.get("/v1/nothing"))["error"]["code"] == "not_found"
        assert (await running.get(CHAT))["error"]["code"] == "method_not_allowed"
        big = json.dumps({"prompt": "a" * (17 * 2**20)})
        async with running.http.post(running.url + PLAIN, data=big) as answer:
            assert answer.status == 413

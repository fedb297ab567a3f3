"""The load generator against a fake server over real HTTP: every way a server may answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from homesplit_engine.words import itl_s, stalled_s, tpot_s, ttft_s
from msgspec.structs import replace

from homesplit.core.load import LoadPlan, plan_load
from homesplit.core.measured import CUT, RequestLog, timeline
from homesplit.core.summary import RunSummary, summarise
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload
from homesplit.errors import EngineError
from homesplit.io.endpoint import Endpoint, connect
from homesplit.io.load import LoadResult, new_session, run_load
from tests.engine.router_kit import PATIENCE_S, until
from tests.io.fake_openai import FakeServer, Manners, Seen, fake_server, token


def small_plan(
    *, requests: int = 4, prompt: int = 20, output: int = 8, cancel_share: float = 0.0
) -> LoadPlan:
    kind = LengthClass(
        name="small",
        share=1.0,
        prompt_tokens_low=prompt,
        prompt_tokens_high=prompt,
        output_tokens_low=output,
        output_tokens_high=output,
    )
    workload = Workload(
        name="small",
        classes=(kind,),
        arrivals=Arrivals(rate_requests_per_s=requests / 0.1, burstiness=0.0),
        cancel_share=cancel_share,
        cancel_after_s=0.01,
    )
    return plan_load(workload, seed=1, seconds=0.1)


def closed_plan() -> LoadPlan:
    kind = LengthClass(
        name="small",
        share=1.0,
        prompt_tokens_low=5,
        prompt_tokens_high=5,
        output_tokens_low=3,
        output_tokens_high=3,
    )
    workload = Workload(name="closed", classes=(kind,), arrivals=Arrivals(kind="closed", users=2))
    return plan_load(workload, seed=1, seconds=1.0)


async def offer(
    server: FakeServer, plan: LoadPlan | None = None, *, api: str | None = None
) -> tuple[LoadResult, Endpoint]:
    async with new_session() as session:
        endpoint = await connect(session, server.url, api=api)  # pyright: ignore[reportArgumentType]
        asked = plan or small_plan()
        result = await run_load(session, endpoint, asked, run_id="run", drain_s=PATIENCE_S)
    return result, endpoint


def figures(result: LoadResult, plan: LoadPlan | None = None) -> RunSummary:
    return summarise(plan or small_plan(), result.logs, Targets(), warm_up=0.0, drain=0.0)


def read_as_written(log: RequestLog, seen: Seen, each: int = 1) -> bool:
    """Whether each bundle of chunks came after its last one was written and before the next began.

    However late this computer lets either end go on, there is a difference between both clocks'
    beginnings for which that is so.
    """
    written_s = [moment / 1e9 for moment in seen.writes_ns]
    came = sorted(set(log.arrival_s))
    ends, begins = written_s[each - 1 :: each], [*written_s[each::each], math.inf]
    earliest = max(end - at for end, at in zip(ends, came, strict=True))
    return earliest <= min(begin - at for begin, at in zip(begins, came, strict=True))


def outcomes(logs: Sequence[RequestLog]) -> set[str]:
    return {log.outcome for log in logs}


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_every_token_of_every_request_is_stamped_in_order(api: str) -> None:
    async with fake_server() as server:
        result, _ = await offer(server, api=api)
    assert len(result.logs) == 4 and outcomes(result.logs) == {"completed"}
    for log in result.logs:
        assert len(log.arrival_s) == 8 and list(log.arrival_s) == sorted(log.arrival_s)
        assert log.sent_s <= log.arrival_s[0]
        assert log.text == "".join(token(i) for i in range(8))
        assert (log.prompt_tokens, log.output_tokens, log.tokens_from) == (20, 8, "usage")


@pytest.mark.parametrize("first", ["role", "empty"])
async def test_an_empty_first_chunk_does_not_stop_the_ttft_clock(first: str) -> None:
    manners = Manners(first=first, first_wait_s=0.3)  # pyright: ignore[reportArgumentType]
    async with fake_server(manners) as server:
        result, _ = await offer(server, api="chat")
        written = {seen.request_id: seen.writes_ns for seen in server.load_requests()}
    for log in result.logs:
        first_s = ttft_s(timeline(log))
        assert first_s is not None and first_s >= 0.3
        assert len(log.arrival_s) == len(written[log.request_id]) == 8


async def test_reasoning_counts_as_content_and_is_said() -> None:
    async with fake_server(Manners(reasoning_only=True)) as server:
        result, _ = await offer(server, api="chat")
    assert all(log.reasoning and len(log.arrival_s) == 8 for log in result.logs)
    assert any("with reasoning, which counts as content" in n for n in figures(result).notes)


async def test_a_whole_answer_in_one_chunk_has_a_ttft_and_no_tpot() -> None:
    async with fake_server(Manners(whole=True)) as server:
        result, _ = await offer(server)
    for log in result.logs:
        line = timeline(log)
        assert line.tokens == 8 and ttft_s(line) is not None
        assert tpot_s(line) is None


async def test_comment_lines_are_no_tokens() -> None:
    async with fake_server(Manners(comment=True)) as server:
        result, _ = await offer(server)
    assert all(len(log.arrival_s) == 8 for log in result.logs)


async def test_a_stream_without_chunks_is_a_failure_and_never_a_quick_answer() -> None:
    async with fake_server(Manners()) as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.manners = Manners(no_chunks=True)
        result = await run_load(session, endpoint, small_plan(), run_id="run")
    assert outcomes(result.logs) == {"failed"}
    summary = figures(result)
    assert summary.figures.ttft_s.p50 is None
    assert summary.no_data is not None and "holds no content" in summary.no_data


async def test_an_answer_that_is_not_streamed_is_taken_and_said() -> None:
    async with fake_server(Manners(json_reply=True)) as server:
        result, _ = await offer(server, api="chat")
    assert all(log.outcome == "completed" and not log.streamed for log in result.logs)
    assert any("one piece" in note for note in figures(result).notes)


@pytest.mark.parametrize("chunk_usage", [True, False])
async def test_tpot_does_not_depend_on_how_many_tokens_a_chunk_holds(chunk_usage: bool) -> None:
    plan = small_plan(requests=2, output=128)
    for each in (1, 4, 64):
        manners = Manners(tokens_per_chunk=each, itl_s=0.005, chunk_usage=chunk_usage)
        async with fake_server(manners) as server:
            result, _ = await offer(server, plan)
            written = {seen.request_id: seen for seen in server.load_requests()}
        assert {len(log.arrival_s) for log in result.logs} == {128 // each}
        summary = figures(result, plan)
        lines = [timeline(log) for log in result.logs]
        assert all(line.first_tokens == each for line in lines)
        assert summary.figures.itl_s.count == 2 * 127
        for log, line in zip(result.logs, lines, strict=True):
            assert read_as_written(log, written[log.request_id])
            span_s = log.arrival_s[-1] - log.arrival_s[0]
            assert tpot_s(line) == pytest.approx(span_s / (128 - each))


@pytest.mark.parametrize("usage", [True, False])
async def test_a_proxy_that_holds_text_back_gives_what_the_reader_sees_and_says_so(
    usage: bool,
) -> None:
    manners = Manners(itl_s=0.02, hold_back=8, usage=usage)
    plan = small_plan(requests=2, output=16)
    async with fake_server(manners) as server:
        result, _ = await offer(server, plan)
        written = {seen.request_id: seen for seen in server.load_requests()}
    summary = figures(result, plan)
    for log in result.logs:
        line = timeline(log)
        assert len(log.arrival_s) == 16 and len(set(log.arrival_s)) == 2
        # Eight tokens were there at once, and eight more after one wait of 160 ms.
        assert read_as_written(log, written[log.request_id], 8)
        first_s, wait_s = ttft_s(line), log.arrival_s[-1] - log.arrival_s[0]
        assert first_s is not None and first_s >= 7 * 0.02
        assert sorted(itl_s(line)) == [0.0] * 14 + [wait_s]
        assert tpot_s(line) == pytest.approx(wait_s / 15)
        assert stalled_s(line, 0.01) == pytest.approx(wait_s - 0.01)
    assert any("held back" in note for note in summary.notes)
    # When text came was seen: nothing of that is an estimate, only what nobody counted.
    assert not {"ttft_s", "stall_s", "longest_gap_s"} & set(summary.estimated)
    assert ("tpot_s" in summary.estimated) is not usage


async def test_an_answer_held_back_whole_has_no_tpot_instead_of_one_of_nothing() -> None:
    plan = small_plan(requests=2, output=16)
    # No wait at all before them would be a pace within any target.
    async with fake_server(Manners(hold_back=16, ttft_s=0.5)) as server:
        result, _ = await offer(server, plan)
    summary = summarise(plan, result.logs, Targets(ttft_s=None, tpot_s=0.01), warm_up=0.0, drain=0)
    found = summary.figures
    assert found.tpot_s.count == 0 and found.stall_s.p50 == 0.0
    assert (found.completed, found.unjudged, found.judged) == (2, 2, 0)
    assert found.attainment is None and found.goodput_requests_per_s is None
    assert any("2 of them can't be judged by the TPOT target" in note for note in summary.notes)


async def test_without_usage_token_counts_are_called_estimated() -> None:
    async with fake_server(Manners(usage=False, tokens_per_chunk=4)) as server:
        result, endpoint = await offer(server)
    assert all(log.tokens_from == "one a chunk" for log in result.logs)
    found = figures(result)
    assert any("estimated" in note and "TPOT" in note for note in found.notes)
    assert {"tpot_s", "itl_s", "throughput_tokens_per_s", "attainment"} <= set(found.estimated)
    assert "ttft_s" not in found.estimated
    assert any("estimated" in note for note in endpoint.notes)


@pytest.mark.parametrize(("tokens", "defined"), [(1, False), (2, True)])
async def test_a_one_token_answer_has_no_tpot_and_a_two_token_answer_one_gap(
    tokens: int, defined: bool
) -> None:
    plan = small_plan(output=tokens)
    async with fake_server(Manners(itl_s=0.1)) as server:
        result, _ = await offer(server, plan)
    for log in result.logs:
        line = timeline(log)
        assert (tpot_s(line) is not None) == defined
        if defined:
            assert tpot_s(line) == pytest.approx(line.token_s[1] - line.token_s[0])
    summary = figures(result, plan)
    assert summary.figures.completed == 4
    assert summary.figures.tpot_s.count == (4 if defined else 0)


async def test_a_server_that_refuses_everything_gives_no_data() -> None:
    async with fake_server(Manners(refuse_with=503)) as server:
        result, endpoint = await offer(server)
    assert any("refused" in note for note in endpoint.notes)
    summary = figures(result)
    assert outcomes(result.logs) == {"rejected"}
    assert summary.figures.rejected == 4 and summary.figures.attainment is None
    assert summary.figures.ttft_s.p50 is None and summary.figures.tpot_s.p99 is None
    assert summary.figures.throughput_tokens_per_s is None
    assert summary.no_data is not None and "503 too busy" in summary.no_data


async def test_one_answer_in_many_gives_that_one_answers_figures_alone() -> None:
    plan = small_plan(requests=20)
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.seen.clear()
        server.manners = Manners(refuse_with=429, serve_one_in=20)
        result = await run_load(session, endpoint, plan, run_id="run")
    summary = figures(result, plan)
    assert (summary.figures.completed, summary.figures.rejected) == (1, 19)
    assert summary.figures.ttft_s.count == 1
    assert summary.figures.attainment == pytest.approx(0.05)


async def test_an_error_inside_the_stream_fails_the_request_with_its_words() -> None:
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.manners = Manners(error_after=3)
        result = await run_load(session, endpoint, small_plan(), run_id="run")
    assert outcomes(result.logs) == {"failed"}
    assert all("the engine failed" in (log.error or "") for log in result.logs)


async def test_a_broken_connection_fails_the_request_and_keeps_what_came() -> None:
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.manners = Manners(break_after=3)
        result = await run_load(session, endpoint, small_plan(), run_id="run")
    assert outcomes(result.logs) == {"failed"}
    assert all(len(log.arrival_s) == 3 for log in result.logs)


async def test_users_who_cancel_close_the_connection_and_count_as_offered() -> None:
    plan = small_plan(requests=10, output=500, cancel_share=1.0)
    async with fake_server() as server:
        result, _ = await offer(server, plan)
        await until(lambda: all(seen.closed_by_client for seen in server.load_requests()))
    assert outcomes(result.logs) == {"cancelled"}
    found = figures(result, plan)
    assert (found.figures.offered, found.figures.cancelled) == (10, 10)
    assert found.figures.attainment is None and found.no_data is not None


async def test_a_slow_server_does_not_slow_the_offered_load() -> None:
    plan = small_plan(requests=20)
    async with fake_server(Manners(answers_once_seen=20)) as server:
        result, _ = await offer(server, plan)
    assert len(result.logs) == 20 and outcomes(result.logs) == {"completed"}
    assert max(log.sent_s for log in result.logs) < min(log.arrival_s[0] for log in result.logs)


async def test_answers_that_do_not_come_in_time_fail_by_time_out() -> None:
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.manners = Manners(ttft_s=30.0)
        result = await run_load(session, endpoint, small_plan(), run_id="r", drain_s=0.1)
    assert outcomes(result.logs) == {"failed"}
    assert all("waiting time" in (log.error or "") for log in result.logs)


@pytest.mark.parametrize("when", ["offered", "drained"])
async def test_answers_that_a_stop_cuts_are_given_up_and_no_failures(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.io.load.STOPPED_S", 0.1)
    # Two of four are sent at once; the others come soon, or would after ten minutes.
    plan = small_plan()
    later = [replace(r, send_at_s=600.0) for r in plan.requests[2:]]
    plan = (
        plan
        if when == "drained"
        else replace(plan, seconds=1200.0, requests=(*plan.requests[:2], *later))
    )
    sent = len([r for r in plan.requests if (r.send_at_s or 0.0) < 1.0])
    stop = asyncio.Event()
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.manners = Manners(ttft_s=600.0)

        async def stops() -> None:
            await until(lambda: len(server.load_requests()) == sent)
            if when == "drained":
                await until(lambda: "load-drain" in {t.get_name() for t in asyncio.all_tasks()})
            stop.set()

        stopping = asyncio.create_task(stops())
        result = await run_load(session, endpoint, plan, run_id="r", stop=stop)
        await stopping
    assert len(result.logs) == sent and outcomes(result.logs) == {"cancelled"}
    assert {log.error for log in result.logs} == {CUT}
    assert result.stopped and (result.offered_s == plan.seconds) == (when == "drained")
    patient = summarise(plan, result.logs, Targets(ttft_s=900.0), warm_up=0.0, drain=0.0).figures
    assert (patient.left, patient.failed, patient.judged) == (sent, 0, 0)


async def test_a_stop_after_which_every_answer_comes_leaves_a_whole_run() -> None:
    plan, stop = small_plan(), asyncio.Event()
    async with fake_server(Manners(answers_once_seen=4)) as server, new_session() as session:
        endpoint = await connect(session, server.url)

        def tell(log: RequestLog) -> None:
            # The first answer comes when all have been sent and the others are on their way.
            stop.set()

        result = await run_load(
            session, endpoint, replace(plan, seconds=0.0), run_id="r", tell=tell, stop=stop
        )
    assert len(result.logs) == 4 and outcomes(result.logs) == {"completed"}
    assert not result.stopped


@pytest.mark.parametrize("kind", ["open", "closed"])
async def test_nothing_is_sent_once_a_run_is_stopped_not_even_a_users_first_request(
    kind: str,
) -> None:
    plan = small_plan() if kind == "open" else closed_plan()
    stop = asyncio.Event()
    stop.set()
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        result = await run_load(session, endpoint, plan, run_id="r", stop=stop)
        assert not server.load_requests()
    assert result.logs == () and result.stopped


async def test_a_template_and_its_tokens_are_measured_and_the_prompt_length_kept() -> None:
    async with fake_server(Manners(template_tokens=7)) as server:
        result, endpoint = await offer(server, api="chat")
    assert endpoint.fit.measured and endpoint.fit.fixed == pytest.approx(7)
    assert {log.prompt_tokens for log in result.logs} == {20}


async def test_calibration_prompts_differ_from_each_other_and_from_the_load_at_once() -> None:
    async with fake_server() as server:
        await offer(server)
        firsts = [str(seen.body["prompt"]).split()[0] for seen in server.seen]
    assert len(firsts) == 6
    assert len(set(firsts[:2])) == 2 and len(set(firsts[2:])) == 4
    assert len({str(seen.body["prompt"])[:40] for seen in server.seen}) == 6


async def test_calibration_prompts_are_the_same_words_in_another_order_each_time() -> None:
    asked: list[list[list[str]]] = []
    for _ in range(3):
        async with fake_server() as server, new_session() as session:
            await connect(session, server.url)
            asked.append([str(seen.body["prompt"]).split() for seen in server.seen])
    for number in range(2):
        # All but the first word, which is a token like any other.
        assert len({tuple(sorted(run[number][1:])) for run in asked}) == 1
        assert len({tuple(run[number]) for run in asked}) == 3
    assert all(len(run[0]) == 16 and len(run[1]) == 96 for run in asked)
    assert all(run[0][0] != run[1][0] for run in asked)


async def test_a_strict_server_is_asked_without_the_fields_it_does_not_know() -> None:
    async with fake_server(Manners(strict_fields=True)) as server:
        result, endpoint = await offer(server)
    assert not endpoint.dialect.ignore_eos
    assert outcomes(result.logs) == {"completed"}


async def test_a_server_with_the_chat_door_alone_is_asked_there() -> None:
    async with fake_server(Manners(chat_only=True)) as server:
        _, endpoint = await offer(server)
    assert endpoint.api == "chat"


async def test_the_same_seed_sends_the_same_bodies_to_every_server() -> None:
    bodies: list[list[object]] = []
    for _ in range(2):
        async with fake_server() as server:
            await offer(server)
            seen = sorted(server.load_requests(), key=lambda s: str(s.request_id))
            bodies.append([s.body for s in seen])
    assert bodies[0] == bodies[1]


async def test_a_closed_loop_never_has_more_requests_open_than_users() -> None:
    plan = closed_plan()
    async with fake_server() as server:
        result, _ = await offer(server, plan)
    edges = [(log.sent_s, 1) for log in result.logs] + [
        (log.ended_s or 0, -1) for log in result.logs
    ]
    running, most = 0, 0
    for _, step in sorted(edges):
        running += step
        most = max(most, running)
    assert most <= 2 and len(result.logs) > 4
    assert outcomes(result.logs) == {"completed"}


async def test_nobody_there_is_told_in_a_sentence() -> None:
    async with new_session() as session:
        with pytest.raises(EngineError, match="no server answers"):
            await connect(session, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("manners", "told"),
    [
        (Manners(break_after=0), "the server broke off a first short request without an answer"),
        (Manners(ttft_s=30.0), "took a first short request and gave no answer within 0.3 s"),
    ],
    ids=["closes the connection", "never answers"],
)
async def test_a_server_that_takes_the_first_request_and_gives_no_answer_is_told_as_that(
    manners: Manners, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manners.ttft_s > 1.0:
        monkeypatch.setattr("homesplit.io.endpoint.ASK_S", 0.3)
    async with fake_server(manners) as server, new_session() as session:
        with pytest.raises(EngineError, match=told) as caught:
            # Its name is given, so that nothing else is asked of it.
            await connect(session, server.url, model="fake")
    assert caught.value.where == f"{server.url}/v1/completions"
    assert "no server answers" not in caught.value.sentence()


async def test_a_server_that_breaks_off_the_question_for_its_models_is_no_absent_one() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server, new_session() as here:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EngineError, match="broke off the question for its models"):
            await connect(here, f"http://127.0.0.1:{port}")


async def test_a_refused_key_is_told_in_a_sentence() -> None:
    async with fake_server(Manners(api_key="right")) as server, new_session() as session:
        with pytest.raises(EngineError, match="refuses the API key"):
            await connect(session, server.url, api_key="wrong")


@pytest.mark.parametrize(("target_s", "told"), [(4.5, "4.5"), (None, None)])
async def test_each_request_of_a_run_tells_the_runs_ttft_target(
    target_s: float | None, told: str | None
) -> None:
    async with fake_server() as server, new_session() as session:
        endpoint = await connect(session, server.url)
        server.seen.clear()
        await run_load(session, endpoint, small_plan(), run_id="run", ttft_target_s=target_s)
        assert {seen.ttft_target for seen in server.seen} == {told}

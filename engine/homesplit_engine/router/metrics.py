"""The router's figures for Prometheus: vLLM's names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from homesplit_engine.records import RequestRecord, TransferEvent, WorkerStatus
from homesplit_engine.router.stalls import CAUSES, Cause
from homesplit_engine.words import Timeline, inside_targets, itl_s, stalled_s, tpot_s, ttft_s

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20),
    *(40, 80, 160, 640, 2560),
)
# SGLang's finer inter-token buckets: vLLM's begin at 10 ms, too coarse for small models. A whole
# prompt on a small box holds answers up for longer than SGLang's end.
_ITL = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 80),
)
_SECONDS = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240),
    *(480, 960, 1920, 7680),
)
_TOKENS = tuple(2**power for power in range(18))


class Metrics:
    """One registry of its own, labelled by model (vLLM's `model_name`) and box (`engine`)."""

    def __init__(
        self, model_name: str, ttft_target_s: float | None, tpot_target_s: float | None
    ) -> None:
        self._model = model_name
        self._ttft_target_s = ttft_target_s
        self._tpot_target_s = tpot_target_s
        self.registry = CollectorRegistry()
        self._gauges()
        self._counters()
        self._histograms()

    def _gauges(self) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model_name", "engine"), registry=self.registry)

        self._running = gauge("vllm:num_requests_running", "Requests in the batch of a box.")
        self._waiting = gauge("vllm:num_requests_waiting", "Requests queued on a box.")
        self._kv = gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.")
        self._alive = gauge("homesplit:worker_usable", "1 when requests are placed on the box.")
        self._power = gauge("homesplit:power_watts", "Power of the box where it can be read.")

    def _counters(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("model_name", *labels), registry=self.registry)

        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens read, or found in a cache.")
        self._generated = counter("vllm:generation_tokens", "Tokens given out.")
        self._success = counter(
            "vllm:request_success", "Completed requests by reason.", "finished_reason"
        )
        self._cached = counter("vllm:prompt_tokens_cached", "Prompt tokens found in a cache.")
        self._asked = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in a cache.")
        self._found = counter("vllm:prefix_cache_hits", "Prompt tokens found there.")
        self._ended = counter("homesplit:requests", "Requests by how they ended.", "outcome")
        self._served = counter("homesplit:served", "Requests by how they were served.", "served")
        self._ttft_met = counter("homesplit:requests_inside_ttft", "Requests inside TTFT target.")
        self._tpot_met = counter("homesplit:requests_inside_tpot", "Requests inside TPOT target.")
        self._good_tokens = counter("homesplit:goodput_tokens", "Their tokens, inside both.")
        self._stalled = counter(
            "homesplit:stalled_seconds", "Seconds beyond the TPOT target by cause.", "cause"
        )
        for cause in CAUSES:
            self._stalled.labels(self._model, cause)
        self._inside = counter("homesplit:requests_inside_targets", "Requests inside both targets.")
        self._moved = counter("homesplit:resubmissions", "Requests moved after a failure.")
        self._handoff_bytes = counter("homesplit:handoff_bytes", "KV payload bytes handed over.")
        self._handoff_failed = counter("homesplit:handoff_failed", "Hand-offs not committed.")
        self.faults = counter("homesplit:faults", "Faults met, by kind.", "kind")

    def _histograms(self) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                name, text, ("model_name", *labels), registry=self.registry, buckets=buckets
            )

        self._ttft = histogram("vllm:time_to_first_token_seconds", "TTFT.", _TTFT)
        self._itl = histogram("vllm:inter_token_latency_seconds", "Gaps between tokens.", _ITL)
        self._tpot = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean gap of a request.", _ITL
        )
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "Receipt to end.", _SECONDS)
        self._queue = histogram("vllm:request_queue_time_seconds", "Before prefill.", _SECONDS)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "Prefill.", _SECONDS)
        self._decode = histogram("vllm:request_decode_time_seconds", "First to last.", _SECONDS)
        self._prompts = histogram("vllm:request_prompt_tokens", "Prompt tokens.", _TOKENS)
        self._answers = histogram("vllm:request_generation_tokens", "Answer tokens.", _TOKENS)
        self._longest = histogram(
            "vllm:request_max_num_generation_tokens", "Answer tokens, of each answer.", _TOKENS
        )
        self._stall = histogram(
            "homesplit:stall_seconds", "Seconds of a request beyond the TPOT target.", _ITL, "mode"
        )
        self._handoff = histogram("homesplit:handoff_seconds", "Hand-off.", _SECONDS)
        self._exposed = histogram("homesplit:handoff_exposed_seconds", "After prefill.", _ITL)

    def handoff(self, event: TransferEvent) -> None:
        """One hand-off has ended."""
        if not event.committed:
            self._handoff_failed.labels(self._model).inc()
            return
        self._handoff.labels(self._model).observe(event.end_s - event.start_s)
        self._exposed.labels(self._model).observe(event.exposed_s)
        self._handoff_bytes.labels(self._model).inc(event.bytes)

    def request(self, record: RequestRecord, causes: Mapping[Cause, float]) -> None:
        """One request has ended; `causes` are its stalled seconds by cause."""
        for cause, seconds in causes.items():
            self._stalled.labels(self._model, cause).inc(seconds)
        self._ended.labels(self._model, record.outcome).inc()
        self._served.labels(self._model, record.served).inc()
        self._generated.labels(self._model).inc(record.output_tokens)
        self._moved.labels(self._model).inc(record.resubmitted)
        if record.token_s:
            self._read(record)
        if record.outcome != "completed":
            return
        self._success.labels(self._model, record.finish_reason or "stop").inc()
        self._prompts.labels(self._model).observe(record.prompt_tokens)
        self._answers.labels(self._model).observe(record.output_tokens)
        self._longest.labels(self._model).observe(record.output_tokens)
        self._durations(record)

    def _read(self, record: RequestRecord) -> None:
        """A prompt was read to its end, whatever became of its answer."""
        for counter in (self._prompt, self._asked):
            counter.labels(self._model).inc(record.prompt_tokens)
        for counter in (self._cached, self._found):
            counter.labels(self._model).inc(record.cached_tokens)

    def _durations(self, record: RequestRecord) -> None:
        timeline = Timeline(
            request_id=record.request_id,
            outcome=record.outcome,
            start_s=record.received_s,
            token_s=record.token_s,
        )
        for gap in itl_s(timeline):
            self._itl.labels(self._model).observe(gap)
        self._observe(self._ttft, ttft_s(timeline))
        self._observe(self._tpot, tpot_s(timeline))
        self._observe(self._queue, record.queue_s)
        self._observe(self._prefill, record.prefill_s)
        if record.token_s:
            self._observe(self._e2e, record.token_s[-1] - record.received_s)
            self._observe(self._decode, record.token_s[-1] - record.token_s[0])
        if self._tpot_target_s is not None:
            stall = stalled_s(timeline, self._tpot_target_s)
            if stall is not None:
                self._stall.labels(self._model, record.mode).observe(stall)
        self._targets(timeline)

    def _targets(self, timeline: Timeline) -> None:
        """Goodput: which of the targets the request met."""
        ttft, tpot = self._ttft_target_s, self._tpot_target_s
        if inside_targets(timeline, ttft_target_s=ttft, tpot_target_s=None):
            self._ttft_met.labels(self._model).inc()
        if inside_targets(timeline, ttft_target_s=None, tpot_target_s=tpot):
            self._tpot_met.labels(self._model).inc()
        if inside_targets(timeline, ttft_target_s=ttft, tpot_target_s=tpot):
            self._inside.labels(self._model).inc()
            self._good_tokens.labels(self._model).inc(timeline.tokens)

    def _observe(self, histogram: Histogram, value: float | None) -> None:
        if value is not None:
            histogram.labels(self._model).observe(value)

    def page(self, workers: Iterable[tuple[str, bool, WorkerStatus | None]]) -> bytes:
        """The text of `/metrics`, with each box's gauges as they stand now.

        Of a box that is lost nothing stands: what it told last is not so any more.
        """
        for gauge in (self._running, self._waiting, self._kv, self._power):
            gauge.clear()
        for box, usable, status in workers:
            self._alive.labels(self._model, box).set(int(usable))
            if status is None or not usable:
                continue
            self._running.labels(self._model, box).set(status.running)
            self._waiting.labels(self._model, box).set(status.waiting)
            if status.blocks_total:
                used = 1 - status.blocks_free / status.blocks_total
                self._kv.labels(self._model, box).set(used)
            if status.power_w is not None:
                self._power.labels(self._model, box).set(status.power_w)
        return generate_latest(self.registry)

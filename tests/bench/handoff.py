"""The hand-off beside plain TCP, between two lab boxes. Needs root.

    python -m tests.bench.handoff [--links 1gbe,2.5gbe,loopback] [--latency-ms L] [--tokens N]
        [--wire same] [--prefill-tokens-per-s R] [--ahead-ms A] [--subnet S] [--rounds N]
        [--bursts N] [--json]

Each box has a core of its own, and iperf3 (plain TCP) has its turn in the same boxes in every
round. Both ends are the engine's own sender and receiver (seals, reservations), on a pool of
SmolLM2-135M's shape without a model: *back to back* notes all layers at once and tells the rate,
the median of `--bursts` hand-offs a round; *paced* notes each layer of each chunk when a prefill
of R tokens/s would have it, and tells how much of the hand-off comes after that prefill's end. By
default a layer's KV is noted at its layer's end; the engine notes it before the layer's attention,
so that `--ahead-ms` of computing are still to come, the model's head among them. `loopback` is the
lab's link without shaping. What `core.handoff` predicts from iperf3's rate and ping's round trip
stands beside both, as its share of what was measured.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 16
LAYERS, KV_HEADS, HEAD_DIM = 30, 3, 64
FINGERPRINT = "bench"
CHUNK_TOKENS = 256
WAIT_S = 120.0


def _ended(number: int, frame: object) -> None:
    sys.exit(128 + number)


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    if args.end:
        return _end_of(args)
    # An end by signal must still take the lab down.
    signal.signal(signal.SIGTERM, _ended)
    rows: list[dict[str, Any]] = []
    for link in args.links.split(","):
        rows.append(_link(args, link))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps({"tokens": args.tokens, "wire": args.wire, "links": rows}))
    else:
        print("\n".join(_table(args, rows)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", default="1gbe,2.5gbe,loopback")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="round trip of the link")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--wire", default="same", choices=("same", "fp16", "int8"))
    parser.add_argument("--prefill-tokens-per-s", type=float, default=300.0)
    parser.add_argument("--ahead-ms", type=float, default=0.0)
    parser.add_argument("--subnet", default="10.77.0.0/24")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bursts", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--end", choices=("send", "receive"), help=argparse.SUPPRESS)
    parser.add_argument("--secret", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", default="127.0.0.1", help=argparse.SUPPRESS)
    return parser.parse_args()


# ------------------------------------------------------------------ in the boxes


def _end_of(args: argparse.Namespace) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from homesplit_engine.heap import keep_freed_memory

    torch.set_num_threads(1)
    # As the worker's process does.
    keep_freed_memory()
    gc.freeze()
    return _receive(args) if args.end == "receive" else _send(args)


def _pool(tokens: int) -> Any:
    import torch
    from homesplit_engine.cache import KvPool, KvShape

    shape = KvShape(
        kv_heads=(KV_HEADS,) * LAYERS, head_dim=(HEAD_DIM,) * LAYERS, dtype=torch.float32
    )
    blocks = -(-tokens // BLOCK_TOKENS)
    pool = KvPool(shape, blocks_total=blocks, block_tokens=BLOCK_TOKENS, device=torch.device("cpu"))
    for layer in pool.layers:
        layer.normal_()
    return pool


def _gated(secret: Any) -> Any:
    import zmq
    from homesplit_engine.wire import sockets

    context: Any = zmq.Context()
    sockets.Gatekeeper(context, {}, {sockets.KV_DOMAIN: secret.password})
    return context


def _read_secret(path: Path) -> Any:
    import msgspec
    from homesplit_engine.wire.messages import HandoffSecret

    return msgspec.json.decode(path.read_bytes(), type=HandoffSecret)


def _seal_key(secret: Any, number: int) -> bytes:
    """A key for each hand-off, that both ends can make."""
    return hashlib.sha256(secret.seal_key + number.to_bytes(4, "big")).digest()


def _receive(args: argparse.Namespace) -> int:
    """Takes hand-offs `r0`, `r1`, … until its standard output is closed or it is ended."""
    from homesplit_engine.handoff.receiver import Incoming, Receiver

    secret = _read_secret(args.secret)
    pool = _pool(args.tokens)
    receiver = Receiver(
        _gated(secret),
        host=args.address,
        port=0,
        fingerprint=FINGERPRINT,
        pool=pool,
        arrived=lambda _: True,
        failed=lambda name, why: print(f"{name}: {why}", file=sys.stderr),
    )
    for number in range(args.rounds * (args.bursts + 1) + 1):
        receiver.expect(
            Incoming(
                reservation_id=f"r{number}",
                request_id=f"r{number}",
                from_box="A",
                seal_key=_seal_key(secret, number),
                place=pool.place(list(range(args.tokens // BLOCK_TOKENS))),
                cached_tokens=0,
                prompt_tokens=args.tokens,
                wire=args.wire,
            )
        )
    receiver.start()
    print(receiver.endpoint, flush=True)
    time.sleep(10 * WAIT_S)
    return 0


def _sleep_until(due_s: float) -> None:
    time.sleep(max(0.0, due_s - time.monotonic()))


class _Sending:
    def __init__(self, args: argparse.Namespace) -> None:
        import zmq
        from homesplit_engine.handoff.senders import Senders

        self._args = args
        self._secret = _read_secret(args.secret)
        context = zmq.Context()
        self._pool = _pool(args.tokens)
        self._over = threading.Event()
        self._result: Any = None
        self._senders = Senders(
            context, box="A", fingerprint=FINGERPRINT, pool=self._pool, ended=self._ended
        )

    def _ended(self, _outgoing: Any, result: Any) -> None:
        self._result = result
        self._over.set()

    def one(self, number: int, *, paced: bool) -> dict[str, float]:
        """One hand-off: seconds, bytes, exposed seconds, CPU seconds of this process."""
        from homesplit_engine.handoff.sender import Outgoing
        from homesplit_engine.wire.messages import HandoffTarget, Token
        from msgspec.structs import replace

        tokens = self._args.tokens
        target = HandoffTarget(
            reservation_id=f"r{number}",
            box="B",
            endpoint=self._args.address,
            secret=replace(self._secret, seal_key=_seal_key(self._secret, number)),
            fingerprint=FINGERPRINT,
            cached_tokens=0,
            kv_wire=self._args.wire,
        )
        outgoing = Outgoing(
            request_id=f"r{number}",
            target=target,
            prompt_tokens=tokens,
            deadline_s=time.monotonic() + WAIT_S,
        )
        outgoing.place = self._pool.place(list(range(tokens // BLOCK_TOKENS)))
        self._over.clear()
        cpu_s, start_s = time.process_time(), time.monotonic()
        chunk = CHUNK_TOKENS if paced else tokens
        ahead_s, rate = self._args.ahead_ms / 1e3, self._args.prefill_tokens_per_s
        for first in range(0, tokens, chunk):
            for layer in range(LAYERS):
                if paced:
                    done = first + chunk * (layer + 1) / LAYERS
                    _sleep_until(start_s + done / rate - ahead_s)
                self._senders.layer_done(outgoing, layer, first, min(first + chunk, tokens))
        if paced:
            _sleep_until(start_s + tokens / rate)
        token = Token(request_id=f"r{number}", index=0, token_id=1)
        self._senders.prefilled(outgoing, token, time.monotonic())
        if not self._over.wait(WAIT_S) or not self._result.event.committed:
            raise SystemExit(f"hand-off {number} was not committed: {self._result}")
        event = self._result.event
        return {
            "seconds": event.end_s - event.start_s,
            "bytes": float(event.bytes),
            "exposed_s": event.exposed_s,
            "cpu_s": time.process_time() - cpu_s,
        }


def _send(args: argparse.Namespace) -> int:
    """Hand-offs back to back and a paced one in each round, told as a line of JSON."""
    sending = _Sending(args)
    # The first one also connects, shakes hands and touches every page.
    sending.one(0, paced=False)
    numbers = itertools.count(1)
    for _ in range(args.rounds):
        bursts = [sending.one(next(numbers), paced=False) for _ in range(args.bursts)]
        paced = sending.one(next(numbers), paced=True)
        print(json.dumps({"bursts": bursts, "paced": paced}), flush=True)
    return 0


# ------------------------------------------------------------------ the lab


def _link(args: argparse.Namespace, link: str) -> dict[str, Any]:
    import tempfile

    import msgspec
    from homesplit_engine.wire.messages import HandoffSecret
    from homesplit_engine.wire.seal import new_seal_key

    from tests.lab.api import CORE_EACH, running_lab
    from tests.lab.measure import round_trip_ms

    # Each box's own latency is half a round trip to a box that has as much.
    latency = [str(args.latency_ms)] if args.latency_ms else []
    with (
        running_lab(2, link, cpu=CORE_EACH, latency=latency, subnet=args.subnet) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        secret = Path(folder) / "secret.json"
        made = HandoffSecret(password="bench", seal_key=new_seal_key())
        secret.write_bytes(msgspec.json.encode(made))
        sender, receiver = lab.boxes[:2]
        before = lab.iperf_bits_per_s(sender, receiver)
        told = _hand_offs(args, lab.lab, secret, (sender, receiver), lab.address(receiver))
        after = lab.iperf_bits_per_s(sender, receiver)
        round_trip_s = round_trip_ms(lab.lab, sender, receiver) / 1e3
    return _row(args, link, told, (before + after) / 2, round_trip_s)


def _hand_offs(
    args: argparse.Namespace, lab: Any, secret: Path, boxes: tuple[str, str], address: str
) -> list[dict[str, Any]]:
    from tests.lab.inside import start_inside

    def command(end: str, at: str) -> list[str]:
        words = [sys.executable, "-m", "tests.bench.handoff", "--end", end, "--secret", str(secret)]
        words += ["--address", at, "--tokens", str(args.tokens), "--wire", args.wire]
        words += ["--rounds", str(args.rounds), "--bursts", str(args.bursts)]
        words += ["--ahead-ms", str(args.ahead_ms)]
        words += ["--prefill-tokens-per-s", str(args.prefill_tokens_per_s)]
        # A box has no working folder of the host's: the module is found from here.
        here = str(Path(__file__).parents[2])
        return ["env", "-C", here, *words]

    receiving = start_inside(lab, boxes[1], command("receive", address), root=True, host_files=True)
    sending: subprocess.Popen[str] | None = None
    try:
        assert receiving.stdout is not None
        endpoint = receiving.stdout.readline().strip()
        if not endpoint:
            raise SystemExit(f"the receiver ended: {receiving.communicate(timeout=10)[1][-500:]}")
        words = command("send", endpoint)
        sending = start_inside(lab, boxes[0], words, root=True, host_files=True)
        out, err = sending.communicate(timeout=10 * WAIT_S)
        if sending.returncode != 0:
            raise SystemExit(f"the sender ended: {err[-500:]}")
        return [json.loads(line) for line in out.splitlines()]
    finally:
        for process in (receiving, sending):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(timeout=10)


def _predicted(
    args: argparse.Namespace, size: float, tcp_bits_per_s: float, round_trip_s: float
) -> tuple[float, float]:
    """Seconds of a hand-off back to back, and of the exposed part of a paced one."""
    from homesplit.core.handoff import Piece, Wire, hand_over

    wire = Wire(bytes_per_s=tcp_bits_per_s / 8, round_trip_s=round_trip_s)
    burst = hand_over([Piece(start_s=0.0, end_s=0.0, bytes=size)], wire, layers=LAYERS)
    pace_s = 1 / args.prefill_tokens_per_s
    paced = [
        Piece(
            start_s=first * pace_s,
            end_s=(first + CHUNK_TOKENS) * pace_s,
            bytes=size * CHUNK_TOKENS / args.tokens,
        )
        for first in range(0, args.tokens, CHUNK_TOKENS)
    ]
    return burst.total_s, hand_over(paced, wire, layers=LAYERS).exposed_s


def _row(
    args: argparse.Namespace,
    link: str,
    told: list[Any],
    tcp_bits_per_s: float,
    round_trip_s: float,
) -> dict[str, Any]:
    bursts = [burst for one in told for burst in one["bursts"]]

    def middle(what: str) -> float:
        return statistics.median(burst[what] for burst in bursts)

    prefill_s = args.tokens / args.prefill_tokens_per_s
    rate = statistics.median(8 * burst["bytes"] / burst["seconds"] for burst in bursts)
    size = middle("bytes")
    exposed = statistics.median(one["paced"]["exposed_s"] for one in told)
    burst_s, exposed_s = _predicted(args, size, tcp_bits_per_s, round_trip_s)
    last_layer_s = 8 * size / LAYERS / args.tokens * min(CHUNK_TOKENS, args.tokens) / rate
    return {
        "link": link,
        "bytes": size,
        "handoff_bits_per_s": rate,
        "iperf3_bits_per_s": tcp_bits_per_s,
        "ratio": rate / tcp_bits_per_s,
        "exposed_s": exposed,
        "round_trip_s": round_trip_s,
        "predicted_burst_ratio": burst_s / middle("seconds"),
        "predicted_exposed_ratio": exposed_s / exposed,
        "last_layer_s": last_layer_s,
        "beyond_prefill_s": max(0.0, 8 * size / rate - prefill_s),
        "prefill_s": prefill_s,
        "sender_cpu_s": middle("cpu_s"),
        "sender_cpu_share": middle("cpu_s") / prefill_s,
    }


def _table(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{args.tokens} tokens, {rows[0]['bytes'] / 1e6:.1f} MB as {args.wire}; median of "
        f"{args.rounds} rounds; prefill taken as {args.prefill_tokens_per_s:.0f} tokens/s",
        "",
        "| link | hand-off Gbit/s | iperf3 Gbit/s | ratio | exposed ms | last layer's wire ms "
        "| round trip ms | both | wire beyond prefill ms | sender CPU ms | of the prefill's "
        "| predicted ÷ measured, back to back | and exposed |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        both_s = row["last_layer_s"] + row["round_trip_s"]
        lines.append(
            f"| {row['link']} | {row['handoff_bits_per_s'] / 1e9:.2f} "
            f"| {row['iperf3_bits_per_s'] / 1e9:.2f} | {row['ratio']:.2f} "
            f"| {row['exposed_s'] * 1e3:.1f} | {row['last_layer_s'] * 1e3:.1f} "
            f"| {row['round_trip_s'] * 1e3:.2f} | {both_s * 1e3:.1f} "
            f"| {row['beyond_prefill_s'] * 1e3:.1f} | {row['sender_cpu_s'] * 1e3:.0f} "
            f"| {row['sender_cpu_share']:.1%} "
            f"| {row['predicted_burst_ratio']:.2f} | {row['predicted_exposed_ratio']:.2f} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())

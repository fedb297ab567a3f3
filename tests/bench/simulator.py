"""How long the simulator takes for 10,000 requests in each mode, in seconds of CPU time.

    python -m tests.bench.simulator [--requests 10000]

CPU time, so that the figure holds on a busy machine. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import time

from homesplit_engine.records import ModeSetting

from homesplit.core.cost import cost_model
from homesplit.core.handoff import Wire
from homesplit.core.load import plan_load
from homesplit.core.scene import Arrangement, Scene, SimBox
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals, LengthClass, Workload
from homesplit.io.paths import user_paths
from homesplit.io.profiles import load_hardware, load_model

RATE = 0.8
BOXES = {"a": "dgx-spark", "b": "mac-studio-m3-ultra-512gb"}
SETTINGS = (
    ModeSetting(mode="colocated", prefill="whole", decode_box="a"),
    ModeSetting(mode="colocated", prefill="chunked", chunk_tokens=512, decode_box="a"),
    ModeSetting(mode="replica", prefill="chunked", chunk_tokens=512),
    ModeSetting(mode="split", prefill="whole", prefill_box="a", decode_box="b"),
    ModeSetting(mode="auto", prefill="chunked", chunk_tokens=512),
)


def scene() -> Scene:
    """A Spark and a Mac over 10 Gbit/s with Llama 3.1 8B."""
    shape = load_model("llama-3.1-8b", user_paths())
    boxes = tuple(
        SimBox(
            name=name,
            cost=cost_model(load_hardware(profile, user_paths()), shape),
            kv_tokens=400_000,
        )
        for name, profile in BOXES.items()
    )
    wire = Wire(bytes_per_s=9.4e9 / 8, round_trip_s=2e-4)
    return Scene(boxes=boxes, wires={("a", "b"): wire, ("b", "a"): wire}, shape=shape)


def main() -> None:
    """Time every mode once."""
    parser = argparse.ArgumentParser(description="CPU seconds of the simulator.")
    parser.add_argument("--requests", type=int, default=10_000)
    count = parser.parse_args().requests
    kind = LengthClass(
        name="mixed",
        share=1,
        prompt_tokens_low=500,
        prompt_tokens_high=3000,
        output_tokens_low=50,
        output_tokens_high=200,
    )
    workload = Workload(name="bench", classes=(kind,), arrivals=Arrivals(rate_requests_per_s=RATE))
    load = plan_load(workload, seed=1, seconds=count / RATE)
    found: dict[str, float] = {}
    here = scene()
    for setting in SETTINGS:
        boxes = ("a",) if setting.mode == "colocated" else ("a", "b")
        began_s = time.process_time()
        simulate(here, Arrangement(setting=setting, boxes=boxes), load)
        found[f"{setting.mode}:{setting.prefill}"] = round(time.process_time() - began_s, 2)
    print(json.dumps({"requests": len(load.requests), "cpu_s": found}, indent=1))


if __name__ == "__main__":
    main()

"""Settings that nothing could be done with are refused by the name of their field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from homesplit_engine.config import ConfigError, RouterConfig, WorkerConfig, load

ROUTER: dict[str, Any] = {
    "model_dir": "m",
    "model_name": "m",
    "keys_file": "k",
    "ready_file": "r",
    "workers": [],
}
WORKER: dict[str, Any] = {"box": "a", "model_dir": "m", "keys_file": "k", "ready_file": "r"}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (RouterConfig, "detection_s", 0),
        (RouterConfig, "detection_s", -2.0),
        (RouterConfig, "detection_s", 1e300),
        (RouterConfig, "request_deadline_s", 1.1e9),
        (RouterConfig, "request_deadline_s", 0),
        (RouterConfig, "first_token_deadline_s", 0),
        (RouterConfig, "ttft_target_s", -1),
        (RouterConfig, "max_waiting", 0),
        (RouterConfig, "http_port", 70_000),
        (RouterConfig, "link_bytes_per_s", 0),
        (WorkerConfig, "kv_port", -1),
        (WorkerConfig, "threads", 0),
        (WorkerConfig, "kv_blocks", 0),
        (WorkerConfig, "block_tokens", 0),
        (WorkerConfig, "max_batch_requests", 2**40),
        (WorkerConfig, "memory_fraction", 1.5),
    ],
)
def test_a_figure_that_nothing_can_be_done_with_is_refused_by_its_name(
    tmp_path: Path, kind: Any, field: str, value: float
) -> None:
    file = tmp_path / "settings.json"
    usual = ROUTER if kind is RouterConfig else WORKER
    file.write_bytes(msgspec.json.encode(usual))
    assert load(file, kind)
    file.write_bytes(msgspec.json.encode(usual | {field: value}))
    with pytest.raises(ConfigError, match=rf"settings.json: .*\$\.{field}"):
        load(file, kind)

"""A deployment as lines: what is not known of it is not made up."""

from __future__ import annotations

from homesplit_engine.records import ModeSetting

from homesplit.cli.deployment_text import deployment_lines
from homesplit.core.deployment import DeployedBox, Deployment


def test_of_boxes_that_nobody_reaches_only_that_is_told() -> None:
    lost = DeployedBox(box="atlas", address="", state="unreachable", why="no answer")
    unknown = Deployment(
        id="", boxes=(lost,), router_box="atlas", model="", setting=ModeSetting(), router_port=0
    )
    assert deployment_lines(unknown) == [
        "What is deployed there can't be told:",
        "  atlas worker: unreachable, no answer",
    ]

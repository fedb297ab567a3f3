"""Words of `homesplit up` that can't be meant are wrong usage before any box is reached."""

from __future__ import annotations

import pytest

from homesplit.cli.main import run


@pytest.mark.parametrize(
    "words",
    [("--threads", "0"), ("--kv-blocks", "-3"), ("--port", "65534"), ("--port", "1023")],
)
def test_a_figure_that_no_worker_could_use_is_named(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--boxes", "nobody.invalid", "--model", "m", "--yes", *words]) == 2
    told = capsys.readouterr().err
    assert " ".join(words) in told and f"or leave {words[0]} out" in told

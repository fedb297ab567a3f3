"""A local pair that can't start leaves its logs, which the error names, and nothing else."""
# ruff: noqa: ASYNC240  (a log of one line)

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homesplit.errors import EngineError
from homesplit.io.local_engine import engine_is_installed, local_engine


@pytest.mark.skipif(not engine_is_installed(), reason="needs the engine's packages (torch)")
async def test_the_log_that_an_error_names_is_there_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        async with local_engine(model_dir=tmp_path, model_name="none"):
            pass
    named = re.search(r"Its log is (\S+)\.$", caught.value.do_next or "")
    assert named is not None
    log = Path(named[1])
    assert log.read_text().strip()
    assert {path.suffix for path in log.parent.iterdir()} == {".log"}

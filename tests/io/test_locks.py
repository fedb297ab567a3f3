"""A lock that another process holds: who holds it and what they do is told, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homesplit.errors import HomesplitError
from homesplit.io.locks import at_work, file_lock


async def refused(path: Path) -> HomesplitError:
    """What one is told who wants the lock while another has it."""
    with pytest.raises(HomesplitError) as caught:
        async with file_lock(path, doing="stopping the engine", wait_s=0):
            pass
    return caught.value


async def test_who_holds_a_lock_and_what_they_do_is_told(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert at_work(path) is None
    async with file_lock(path, doing="deploying to atlas and borea", wait_s=0):
        error = await refused(path)
        assert at_work(path) == error.what
    assert at_work(path) is None
    assert f"process {os.getpid()}" in error.what
    assert error.what.endswith("is deploying to atlas and borea.")
    assert error.where is None
    assert error.do_next == "Wait until it is done, or end it there, then try again."


@pytest.mark.parametrize("raw", [b"", b"{", b'{"pid": "one"}', b"\xff" * 5000])
async def test_a_holder_that_says_nothing_readable_is_told_as_such(
    tmp_path: Path, raw: bytes
) -> None:
    path = tmp_path / "lock"
    async with file_lock(path, doing="deploying", wait_s=0):
        path.write_bytes(raw)
        assert "Another homesplit on this machine is at work" in (await refused(path)).what


async def test_a_lock_is_free_and_names_nobody_once_its_holder_is_done(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for doing in ("deploying", "stopping the engine"):
        with pytest.raises(ValueError, match="failed"):
            async with file_lock(path, doing=doing, wait_s=0):
                raise ValueError("failed")
        assert path.read_bytes() == b""


def test_who_was_killed_while_at_it_is_not_at_work_any_more(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text('{"pid": 1, "doing": "deploying", "since_s": 1.0}')
    assert at_work(path) is None

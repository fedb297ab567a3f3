"""What lies between the markers, however the stream is cut and whatever is printed before."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homesplit.io.shell import COMMAND, Between, opening, what_it_needs

TOKEN = "0123456789abcdef"


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 255), st.data())
def test_payload_and_code_survive_any_cut(
    before: bytes, payload: bytes, code: int, data: st.DataObject
) -> None:
    stream = before + f"\n{TOKEN}\n".encode() + payload + f"{TOKEN} {code}\n".encode()
    between, got = Between(TOKEN), b""
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += between.feed(stream[:size])
        stream = stream[size:]
    assert (got, between.code) == (payload, code)


def test_a_finished_line_is_not_held_back() -> None:
    between = Between(TOKEN)
    assert between.feed(f"hello\n\n{TOKEN}\nline\n".encode()) == b"line\n"


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "fish", "tcsh"])
def test_every_login_shell_starts_the_script(shell: str) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    script = 'printf \'%s|\' "it\'s a `echo \\"b\\"` \\$x!" ; cat; exit 7'
    done = subprocess.run(
        [found, "-c", COMMAND], input=opening(script, TOKEN) + b"in\0put", capture_output=True
    )
    between = Between(TOKEN)
    payload = between.feed(b"noise { \x1b[31m" + done.stdout)
    assert payload == b"it's a b $x!|in\0put"
    assert between.code == 7


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ("'exec' is not recognized as an internal or external command,\r\noperable program", True),
        ('Der Befehl "exec" ist entweder falsch geschrieben oder\r\nkonnte nicht gefunden', True),
        ("exec : The term 'exec' is not recognized as the name of a cmdlet, function", True),
        ("+ FullyQualifiedErrorId : CommandNotFoundException", True),
        ("rbash: line 1: exec: restricted", False),
        ("This account is currently not available.", False),
        ("", False),
    ],
)
def test_a_shell_of_windows_is_told_from_one_that_a_start_file_ends(
    said: str, windows: bool
) -> None:
    assert ("WSL" in what_it_needs(said)) is windows

"""Servers that ask for more than a key: the person is asked in their words, each time anew."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import asyncssh
import pytest

from homesplit.errors import UnreachableError
from tests.io.far_end import Asked, Lab

Challenge = tuple[str, str, str, Sequence[tuple[str, bool]]]
CODE = "Verification code: "


class Guard(asyncssh.SSHServer):
    """Asks for a password and then for a code, which a telephone shows."""

    def begin_auth(self, username: str) -> bool:
        self._right = 0
        return True

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Challenge:
        return "", "", "", [("(owner@box) Password: ", False)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> Challenge | bool:
        wanted = ["right", "123456"][self._right]
        self._right += 1
        if list(responses) != [wanted]:
            return False
        return self._right == 2 or ("", "", "", [(f"\x1b[2J{CODE}", False)])


@pytest.fixture
async def guarded(lab: Lab) -> AsyncGenerator[None]:
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[lab.host_key], server_factory=Guard
    )
    lab.config(f"Host box\n  HostName 127.0.0.1\n  Port {server.get_port()}\n  User owner\n")
    yield
    server.close()


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("secrets", "kinds"),
    [(["right", "123456"], "Pc"), (["wrong", "right", "123456"], "PPc")],
)
async def test_a_password_and_then_a_code_let_in(
    lab: Lab, secrets: list[str | None], kinds: str
) -> None:
    ask = Asked(secrets=secrets)
    async with lab.connections(ask) as connections:
        assert (await connections.connect("box")).user == "owner"
    said = {"P": "Password of owner on box: ", "c": "[2JVerification code: (owner on box): "}
    assert ask.asked[1:] == [said[kind] for kind in kinds]


@pytest.mark.usefixtures("guarded")
async def test_a_wrong_code_is_asked_for_again_and_nobody_is_asked_without_end(lab: Lab) -> None:
    ask = Asked(secrets=["right", "000000", "000001", "000002"])
    async with lab.connections(ask) as connections:
        with pytest.raises(UnreachableError, match="does not let owner in"):
            await connections.connect("box")
    assert [word.split()[0] for word in ask.asked[1:]] == ["Password", *["[2JVerification"] * 2]

"""Servers that ask for more than a key: the person is asked in their words, each time anew."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import asyncssh
import pytest

from homesplit.errors import UnreachableError
from homesplit.io.ssh_attempt import asks_for_password
from tests.io.far_end import Asked, Lab

Challenge = tuple[str, str, str, Sequence[tuple[str, bool]]]
CODE = "Verification code: "


class Guard(asyncssh.SSHServer):
    """Asks for a password and then for a code, which a telephone shows."""

    asks = (("(owner@box) Password: ", "right"), (f"\x1b[2J{CODE}", "123456"))
    heard: list[str]
    """What was said to it, whichever connection that came by."""

    def begin_auth(self, username: str) -> bool:
        self._right = 0
        return True

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Challenge:
        return "", "", "", [(self.asks[0][0], False)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> Challenge | bool:
        type(self).heard += responses
        wanted = self.asks[self._right][1]
        self._right += 1
        if list(responses) != [wanted]:
            return False
        if self._right == len(self.asks):
            return True
        return "", "", "", [(self.asks[self._right][0], False)]


class Strict(Guard):
    """Asks for three things, of which only the last one is the password."""

    asks = (("One-time password (OATH) for `owner': ", "111"), ("PIN: ", "22"), ("Password:", "x"))


@pytest.fixture(params=[Guard])
async def guarded(lab: Lab, request: pytest.FixtureRequest) -> AsyncGenerator[None]:
    request.param.heard = []
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[lab.host_key], server_factory=request.param
    )
    lab.config(f"Host box\n  HostName 127.0.0.1\n  Port {server.get_port()}\n  User owner\n")
    yield
    server.close()


AGAIN = "That was not accepted. "


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("secrets", "kinds"),
    [(["right", "123456"], "Pc"), (["wrong", "right", "123456"], "PAc")],
)
async def test_a_password_and_then_a_code_let_in(
    lab: Lab, secrets: list[str | None], kinds: str
) -> None:
    ask = Asked(secrets=secrets)
    async with lab.connections(ask) as connections:
        assert (await connections.connect("box")).user == "owner"
    said = {"P": "Password of owner on box: ", "A": AGAIN + "Password of owner on box: "}
    said |= {"c": "[2JVerification code: (owner on box): "}
    assert ask.asked[1:] == [said[kind] for kind in kinds]


@pytest.mark.usefixtures("guarded")
async def test_a_wrong_code_is_asked_for_again_and_nobody_is_asked_without_end(lab: Lab) -> None:
    ask = Asked(secrets=["right", "000000", "000001", "000002"])
    async with lab.connections(ask) as connections:
        with pytest.raises(UnreachableError, match="does not let owner in"):
            await connections.connect("box")
    code = "[2JVerification code: (owner on box): "
    assert ask.asked[1:] == ["Password of owner on box: ", code, AGAIN + code]


@pytest.mark.parametrize("guarded", [Strict], indirect=True)
@pytest.mark.usefixtures("guarded")
async def test_what_was_answered_rightly_is_said_again_and_no_code_is_taken_for_the_password(
    lab: Lab,
) -> None:
    ask = Asked(secrets=["111", "22", "x"])
    async with lab.connections(ask) as connections:
        assert (await connections.connect("box")).user == "owner"
    assert [word.split(" (owner")[0].split()[0] for word in ask.asked[1:]] == [
        "One-time",
        "PIN:",
        "Password",
    ]
    assert "".join(Strict.heard[-3:]) == "11122x"
    assert "x" not in Strict.heard[:-1]


@pytest.mark.parametrize(
    ("question", "so"),
    [
        ("Password:", True),
        ("(owner@new) Password:", True),
        ("owner@code's password:", True),
        ("Password for owner@box:", True),
        ("Password for owner:", True),
        ("(current) UNIX password:", True),
        ("One-time password (OATH) for `owner':", False),
        ("One-time password:", False),
        ("OTP password:", False),
        ("Verification code:", False),
        ("New password:", False),
        ("Retype new password:", False),
        ("Password + code:", False),
        ("Which password do you want?", False),
    ],
)
def test_only_a_question_for_the_login_password_is_answered_with_it(
    question: str, so: bool
) -> None:
    assert asks_for_password(question) is so

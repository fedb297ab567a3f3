"""One attempt after another to connect and log in, each with a deadline."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import asyncssh

from homesplit.errors import HomesplitError, UsageError
from homesplit.io import known_hosts, ssh_errors, ssh_keys
from homesplit.io.ssh_box import SshBox
from homesplit.io.ssh_route import Route, agent_of

_LONGEST_QUESTION = 100
_PASSWORD = re.compile(r"\bpassword(?: for)?\s*:$")
_OTHER_PASSWORD = re.compile(r"\b(one[- ]?time|otp|oath|verification|code|token|new)\b")
_NAMED = re.compile(r"\S*@[^\s:]*|(?<=for )\S+(?=:$)")
_KEEPALIVE_S = 15
_KEEPALIVE_MISSED = 3


class Attempt:
    """One attempt after another along a route; remembers the key and methods it was shown."""

    def __init__(self, route: Route, tunnel: SshBox | None, seconds: float) -> None:
        self._route = route
        self._tunnel = tunnel
        self._seconds = seconds
        self.offered_key: asyncssh.SSHKey | None = None
        self.address: str | None = None
        self.takes_password = False
        self.password: str | None = None
        self.question: str | None = None
        """What the server asked last beyond a password: for a code that a telephone shows."""
        self.answers: dict[str, str] = {}
        """To such questions; each is given once, for a code holds only once."""
        self._given: dict[str, str] = {}

    async def make(
        self, open_keys: Sequence[asyncssh.SSHKey], keys: ssh_keys.FoundKeys, password: str | None
    ) -> asyncssh.SSHClientConnection | str:
        """A connection, `untrusted` or `refused`; raises UnreachableError."""
        route = self._route
        self.password, self.question = password, None
        self._given.clear()
        try:
            async with (
                asyncio.timeout(self._seconds),
                ssh_keys.agent_keys(*agent_of(route, keys)) as of_agent,
            ):
                offered = ssh_keys.in_order(of_agent, open_keys, keys)
                options = self._options(offered, keys.certificates, password)
                return await asyncssh.connect(**options)
        except asyncssh.HostKeyNotVerifiable:
            return "untrusted"
        except asyncssh.PermissionDenied:
            return "refused"
        except (OSError, asyncssh.Error, TimeoutError) as error:
            raise self._failure(error) from error
        except ValueError as error:
            raise UsageError(
                f"the SSH set-up for {route.box} is wrong: {error}.",
                do_next=f"Look at what `ssh -G {route.box}` says, and at ~/.ssh/config.",
            ) from error

    def answer(self, question: str) -> str | None:
        """What is said to a server's question; None when the person has to be asked first."""
        if asks_for_password(question):
            self.question = None
            secret = self.password
        else:
            self.question = question
            secret = self.answers.pop(question, None)
        if secret is None:
            # What was said before led here, so it was right, and is said again on the next way.
            before = {asked: said for asked, said in self._given.items() if asked != question}
            self.answers.update(before)
        elif self.question:
            self._given[question] = secret
        return secret

    def _failure(self, error: BaseException) -> HomesplitError:
        route = self._route
        if route.proxy_command and isinstance(error, FileNotFoundError | PermissionError):
            return UsageError(
                f"the SSH set-up for {route.box} is wrong: its ProxyCommand can't be started "
                f"({error.strerror}).",
                do_next="Install that program on this machine, or correct ProxyCommand.",
            )
        cause = ssh_errors.many_errors(error)
        at = route.at + (f" over {self._tunnel.name}" if self._tunnel else "")
        return ssh_errors.told(cause, box=route.box, at=at, seconds=self._seconds)

    def _options(
        self,
        keys: Sequence[asyncssh.SSHKey | asyncssh.SSHKeyPair],
        certificates: Sequence[asyncssh.SSHCertificate],
        password: str | None,
    ) -> dict[str, Any]:
        route = self._route
        options: dict[str, Any] = {
            "host": route.host,
            "port": route.port,
            "username": route.user,
            "config": route.config,
            "tunnel": self._tunnel.connection if self._tunnel else None,
            "proxy_command": route.proxy_command,
            "host_key_alias": route.alias,
            "known_hosts": self._trusted,
            "server_host_key_algs": self._kinds_of_host_key(),
            "client_factory": lambda: _Client(self),
            # An empty list would make asyncssh take the usual key files instead.
            "client_keys": list(keys) or None,
            "client_certs": list(certificates),
            "agent_path": None,
            "agent_identities": None,
            "keepalive_interval": _KEEPALIVE_S,
            "keepalive_count_max": _KEEPALIVE_MISSED,
            "login_timeout": self._seconds,
            "compression_algs": None,
        }
        if password is not None:
            options["password"] = password
        return options

    def _kinds_of_host_key(self) -> Sequence[str]:
        """In which order host keys are asked for; the person's own order comes before ours."""
        route = self._route
        return () if route.orders_host_keys else known_hosts.algorithms(self._known(None))

    def _known(self, address: str | None) -> list[known_hosts.Entry]:
        """What is held for this host."""
        route = self._route
        entries = known_hosts.entries_for(route.trust_files, route.names(address))
        if route.host_key is not None:
            # The same machine at an address where its key was never seen is still the same.
            entries += known_hosts.entries_of(route.trust_files, route.host_key)
            return known_hosts.of_machine(entries, route.host_key)
        return entries

    def _trusted(self, host: str, address: str, port: int | None) -> Sequence[Any]:
        """asyncssh asks which keys it may trust: host keys, authorities, revoked keys."""
        self.address = address or None
        entries = self._known(address)
        return [
            [e.key for e in entries if e.marker is None],
            [e.key for e in entries if e.marker == "cert-authority"],
            [e.key for e in entries if e.marker == "revoked"],
        ]


def asks_for_password(question: str) -> bool:
    """Whether a server's question is for the password of the log-in, and nothing beside it."""
    plain = _NAMED.sub("", question.lower()).strip()
    return bool(_PASSWORD.search(plain)) and not _OTHER_PASSWORD.search(plain)


class _Client(asyncssh.SSHClient):
    """Tells an attempt which host key and which ways to log in it was shown.

    Why the connection ended stands in it as `ended`.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._asked = False
        self._connection: asyncssh.SSHClientConnection | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connection.set_extra_info(ended=exc)

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self._attempt.offered_key = key
        return False

    def password_auth_requested(self) -> str | None:
        self._attempt.takes_password = True
        return None

    def kbdint_auth_requested(self) -> str | None:
        self._attempt.takes_password = True
        first, self._asked = not self._asked, True
        return "" if first else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        given: list[str] = []
        for prompt, _ in prompts:
            question = "".join(filter(str.isprintable, prompt)).strip()[:_LONGEST_QUESTION]
            secret = self._attempt.answer(question)
            if secret is None:
                return None
            given.append(secret)
        return given

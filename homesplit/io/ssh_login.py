"""Logging in: keys, passphrases and passwords, and trust in the key that a box shows."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path

import asyncssh

from homesplit.core.found import SHOW_HOST_KEYS
from homesplit.errors import TrustError, UnreachableError
from homesplit.io import known_hosts, ssh_keys
from homesplit.io.ask import Ask
from homesplit.io.ssh_attempt import Attempt
from homesplit.io.ssh_box import SshBox
from homesplit.io.ssh_route import Route

_SECRET_TRIES = 3


class RefusedError(UnreachableError):
    """The box is there, but lets us not in."""


class WithheldError(RefusedError):
    """It would let us in by a secret, which nobody gave rightly: the person is not asked again."""


class DeclinedError(TrustError):
    """Nobody said that the unknown key is right."""


class Login:
    """Logs in along routes; asks the person one question at a time."""

    def __init__(self, *, ask: Ask, own_known_hosts: Path, connect_s: float) -> None:
        self._ask = ask
        self._own_known_hosts = own_known_hosts
        self._connect_s = connect_s
        self._asking = asyncio.Lock()

    async def log_in(self, route: Route, tunnel: SshBox | None) -> SshBox:
        """One attempt after another until it is let in or nothing is left to try."""
        keys = await asyncio.to_thread(ssh_keys.find_keys, route.identities, route.certificates)
        attempt = Attempt(route, tunnel, self._connect_s)
        secrets_left = _SECRET_TRIES
        unlocked: list[asyncssh.SSHKey] = []
        password: str | None = None
        refused: str | None = None
        while True:
            outcome = await attempt.make([*unlocked, *keys.open], keys, password)
            if isinstance(outcome, asyncssh.SSHClientConnection):
                return SshBox(route.box, route, outcome, tunnel)
            if outcome == "untrusted":
                await self._settle_trust(route, attempt)
                continue
            key = await self._unlock_one(route, keys, unlocked)
            if key is not None:
                unlocked.insert(0, key)
                continue
            if not attempt.takes_password or secrets_left == 0:
                raise _refused(route, keys, len(unlocked), tried_password=password is not None)
            secrets_left -= 1
            question, who = attempt.question, f"{route.user} on {route.box}"
            asked = f"{question} ({who}): " if question else f"Password of {who}: "
            secret = await self._secret(_again(asked) if asked == refused else asked)
            refused = asked
            if secret is None:
                raise _refused(route, keys, len(unlocked), wants_password=True)
            if question:
                attempt.answers[question] = secret
            else:
                password = secret

    async def _settle_trust(self, route: Route, attempt: Attempt) -> None:
        """Ask once about an unknown key and keep the answer; refuse a changed one."""
        key, address = attempt.offered_key, attempt.address
        if key is None:
            raise UnreachableError(
                f"{route.at} showed no host key.",
                where=route.box,
                do_next="See whether that port is an SSH server's.",
            )
        names = route.names(address)
        entries = known_hosts.entries_for(route.trust_files, names)
        for entry in entries:
            if entry.key == key and entry.marker == "revoked":
                raise TrustError(
                    f"its host key {entry.fingerprint} is revoked in {entry.file}, "
                    f"line {entry.line}.",
                    where=route.box,
                    do_next="Don't use this box until whoever revoked its key says otherwise.",
                )
        changed = [e for e in entries if e.marker is None and e.key != key]
        if changed:
            raise _changed(route, key, changed, names)
        if route.host_key is not None and key.get_fingerprint() != route.host_key:
            raise TrustError(
                f"another machine than before answers at {route.at}: it shows "
                f"{key.get_fingerprint()}, not {route.host_key}.",
                where=route.box,
                do_next="Run `homesplit discover` to see who is where now.",
            )
        async with self._asking:
            trusted = await self._ask.trust_host_key(route.box, key.get_fingerprint())
        if not trusted:
            raise DeclinedError(
                f"its host key {key.get_fingerprint()} is not known here.",
                where=route.box,
                do_next=f"Compare it with what `{SHOW_HOST_KEYS}` says on the box, then accept "
                "it in homesplit, or log in once with `ssh`.",
            )
        await asyncio.to_thread(known_hosts.remember, self._own_known_hosts, names, key)

    async def _unlock_one(
        self, route: Route, keys: ssh_keys.FoundKeys, unlocked: Sequence[asyncssh.SSHKey]
    ) -> asyncssh.SSHKey | None:
        """The next locked key, opened by the person's passphrase; None when there is none."""
        if len(unlocked) >= len(keys.locked):
            return None
        path = keys.locked[len(unlocked)]
        asked = f"Passphrase of {path} (for {route.box}): "
        for tried in range(_SECRET_TRIES):
            passphrase = await self._secret(_again(asked) if tried else asked)
            if passphrase is None:
                return None
            key = await asyncio.to_thread(ssh_keys.unlock, path, passphrase)
            if key is not None:
                return key
        raise WithheldError(
            f"the passphrase of {path} was wrong {_SECRET_TRIES} times.",
            where=route.box,
            do_next="Add the key to the agent with `ssh-add`, or try again.",
        )

    async def _secret(self, prompt: str) -> str | None:
        async with self._asking:
            return await self._ask.secret(prompt)


def _again(question: str) -> str:
    """A question for what was just given wrongly."""
    return f"That was not accepted. {question}"


def _refused(
    route: Route,
    keys: ssh_keys.FoundKeys,
    unlocked: int,
    *,
    tried_password: bool = False,
    wants_password: bool = False,
) -> RefusedError:
    """Nothing is left to try; the first `unlocked` of the locked keys were opened and tried."""
    locked = keys.locked[unlocked:]
    tried = [str(f) for f in (*keys.open_files, *keys.locked[:unlocked])]
    if route.agent_path:
        tried.append("the agent's keys")
    what = f"{route.at} does not let {route.user} in"
    what += f" with {' and '.join(tried)}" if tried else " and there is no usable key here"
    what += " nor with the password" if tried_password else ""
    if locked:
        what += f"; locked by a passphrase: {', '.join(map(str, locked))}"
    what += "".join(f"; {sentence}" for sentence in keys.broken)
    asked = locked or wants_password or tried_password
    kind = WithheldError if asked else RefusedError
    return kind(f"{what}.", where=route.box, do_next=_way_in(route, locked, wants_password))


def _way_in(route: Route, locked: Sequence[Path], wants_password: bool) -> str:
    """What lets the person in: a passphrase or password that nobody gave, or another user."""
    if locked:
        return (
            "Nobody gave its passphrase: put the key into the agent with "
            f"`ssh-add {shlex.quote(str(locked[0]))}`, or run the command in a terminal, where it "
            "is asked for."
        )
    other = (
        f"If {route.user} is not the user there, name it: USER@{route.box}. If it is, run "
        f"`ssh-copy-id -p {route.port} {route.user}@{route.host}` once."
    )
    if wants_password:
        asked = "It takes a password, which nobody gave: in a terminal it is asked for."
        return f"{asked} {other}"
    return other


def _changed(
    route: Route, key: asyncssh.SSHKey, entries: Sequence[known_hosts.Entry], names: Sequence[str]
) -> TrustError:
    entry = entries[0]
    name = next(
        (n for n in names if known_hosts.entries_for([entry.file], [n])),
        names[0],
    )
    return TrustError(
        f"its host key has changed: it shows {key.get_fingerprint()}, but {entry.file}, line "
        f"{entry.line}, holds {entry.fingerprint}. Either the machine was installed afresh or "
        "somebody stands in between.",
        where=route.box,
        do_next=f"When you are sure, run: {known_hosts.removal_command(entry, name)}",
    )

"""One sentence for each kind of failure to reach a box over SSH."""

from __future__ import annotations

import errno
import socket

import asyncssh

from homesplit.core.found import NO_ZONE, lacks_zone
from homesplit.errors import UnreachableError

_REFUSED = {errno.ECONNREFUSED}
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EADDRNOTAVAIL}


def told(error: BaseException, *, box: str, at: str, seconds: float) -> UnreachableError:
    """The failure in words; `at` is `host:port` as it was tried."""
    what, do_next = sentence(error, at=at, seconds=seconds)
    return UnreachableError(what, where=box, do_next=do_next)


def sentence(error: BaseException, *, at: str, seconds: float) -> tuple[str, str]:
    """What happened and what to do next."""
    match error:
        case TimeoutError():
            return (
                f"no answer from {at} within {seconds:g} s.",
                "Is it switched on, awake and in this network, and does a firewall let SSH in?",
            )
        case socket.gaierror():
            return (
                f"the name in {at} is known to nobody here.",
                "Check its spelling, or give the box's address instead.",
            )
        case asyncssh.ChannelOpenError():
            return (
                f"the jump host could not reach {at}: {error.reason}.",
                "Check that the box is on and that the jump host sees it.",
            )
        case asyncssh.KeyExchangeFailed():
            return (
                f"{at} and this machine have no SSH algorithm in common: it offers only "
                f"{error.reason.rpartition('received ')[2]}.",
                "Update the SSH server there.",
            )
        case asyncssh.ConnectionLost():
            return (
                f"{at} closed the connection during the SSH handshake.",
                "Is that port really an SSH server, and does it allow this machine?",
            )
        case asyncssh.DisconnectError() if "too many auth" in error.reason.lower():
            return (
                f"{at} was offered so many keys that it ended the log-in before the right one.",
                "Name that host's key in ~/.ssh/config (IdentityFile, and IdentitiesOnly yes), or "
                "take others out of the agent (`ssh-add -d`).",
            )
        case asyncssh.ProtocolError() | asyncssh.ProtocolNotSupported():
            return (
                f"what listens at {at} is not an SSH server ({error.reason}).",
                "Check the port.",
            )
        case asyncssh.DisconnectError():
            return f"{at} ended the connection: {error.reason}.", "Look at the SSH server's log."
        case OSError() if error.errno in _REFUSED or isinstance(error, ConnectionRefusedError):
            return (
                f"{at} refuses the connection: nothing listens there.",
                "Turn on its SSH server (Linux: install openssh-server; "
                "macOS: System Settings, General, Sharing, Remote Login), or check the port.",
            )
        case OSError() if lacks_zone(at.rpartition(":")[0]):
            return (
                f"{at} can't be reached: {NO_ZONE}.",
                "Name it with the interface of this machine that leads there, as in fe80::1%eth0.",
            )
        case OSError() if error.errno in _NO_ROUTE:
            return (
                f"there is no way to {at} from here.",
                "Is the box on, and is this machine in the same network?",
            )
        case ConnectionResetError() | BrokenPipeError():
            return (
                f"{at} cut the connection during the SSH handshake.",
                "Is that port really an SSH server, and does it allow this machine?",
            )
        case OSError():
            return (
                f"{at} can't be reached ({error.strerror or error}).",
                "Check the network, then try again.",
            )
        case _:
            return f"SSH to {at} failed: {error}.", "Try `ssh` by hand to see more."


def many_errors(error: BaseException) -> BaseException:
    """The most telling one of several addresses' errors that came as one OSError."""
    text = str(error)
    if isinstance(error, OSError) and error.errno is None and "Multiple exceptions" in text:
        if "refused" in text.lower():
            return ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return OSError(errno.EHOSTUNREACH, "No route to host")
    return error


def cut(error: BaseException | None) -> str:
    """Why a connection that stood has ended, in words; None came where it was ended in order."""
    match error:
        case None:
            return "its SSH server ended it"
        case asyncssh.ConnectionLost() if "keepalive" in error.reason.lower():
            return "it has not answered for a minute"
        case asyncssh.ConnectionLost():
            return "it was closed there without a word"
        case asyncssh.Error():
            return error.reason
        case ConnectionResetError() | BrokenPipeError():
            return "it was cut there"
        case OSError() if error.errno in _NO_ROUTE | {errno.ETIMEDOUT}:
            return "nothing gets through to it any more"
        case _:
            return str(error) or type(error).__name__

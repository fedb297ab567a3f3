"""Whether a server's address is this very machine: then no network was measured."""

from __future__ import annotations

import socket

import pytest

from homesplit.io.own_machine import is_own_machine


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "http://127.0.0.7:8000/v1",
        "http://localhost:8000",
        "http://0.0.0.0:8000",
        "http://[::1]:8000",
        "http://[::ffff:127.0.0.1]:8000",
    ],
)
async def test_loopback_in_every_spelling_is_this_machine(url: str) -> None:
    assert await is_own_machine(url) is True


async def test_an_address_of_one_of_this_machines_interfaces_is_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no way out, and so no address beside loopback")
        own = probe.getsockname()[0]
    assert await is_own_machine(f"http://{own}:8000") is True


@pytest.mark.parametrize("url", ["http://192.0.2.1:8000", "http://[2001:db8::1]:8000/v1"])
async def test_an_address_elsewhere_is_not(url: str) -> None:
    assert await is_own_machine(url) is False


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "http://"])
async def test_what_is_no_address_tells_nothing(url: str) -> None:
    assert await is_own_machine(url) is None

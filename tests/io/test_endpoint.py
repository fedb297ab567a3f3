"""The address of a server as people type it."""

from __future__ import annotations

import pytest

from homesplit.errors import UsageError
from homesplit.io.endpoint import base_url


@pytest.mark.parametrize(
    ("typed", "root"),
    [
        ("http://desk:8000", "http://desk:8000"),
        (" http://desk:8000/v1/ ", "http://desk:8000"),
        ("http://desk:8000/a@b/v1", "http://desk:8000/a@b"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_taken_with_and_without_its_version(typed: str, root: str) -> None:
    assert base_url(typed) == root


@pytest.mark.parametrize(
    "typed",
    ["http://user:hidden@desk:8000/v1", "user:hidden@desk:8000", "https://hidden@desk?x=1"],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        base_url(typed)
    assert "hidden" not in str(caught.value) and "--api-key-file" in str(caught.value)

"""What the demo counts as the same text."""

from __future__ import annotations

import pytest

from homesplit.core.demo_result import same_text

HALF = "\ufffd"


@pytest.mark.parametrize(
    ("given", "reference", "same"),
    [
        ("a cat", "a cat", True),
        ("a cat", f"a cat{HALF}", True),
        (f"a{HALF}cat", f"a{HALF}cat", True),
        (f"a{HALF}", f"a{HALF}{HALF}", True),
        ("a ca", "a cat", False),
        ("a ca", f"a cat{HALF}", False),
        (f"a cat{HALF}", "a cat", False),
        ("acat", f"a{HALF}cat", False),
        ("", "a cat", False),
    ],
)
def test_only_a_character_cut_off_at_the_end_may_be_missing(
    given: str, reference: str, same: bool
) -> None:
    assert same_text(given, reference) is same

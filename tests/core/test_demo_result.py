"""What the demo counts as the same text."""

from __future__ import annotations

import pytest
from homesplit_engine.records import ModeSetting

from homesplit.core.demo_result import (
    DemoMode,
    DemoResult,
    demo_document,
    demo_problems,
    demo_settings,
    differing,
    label,
    same_text,
    strayed,
)
from tests.core.test_bench_result import result

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


def test_a_lossy_split_is_one_more_mode_and_its_texts_are_told_apart() -> None:
    assert demo_settings("int8")[:4] == demo_settings()
    setting = demo_settings("int8")[4]
    assert label(setting) == "split-int8"
    texts = {0: "a cat sat"}
    run = result(None, None, text="a cat ran", arrival_characters=(2, 4, 3), arrival_tokens=())
    found = strayed(texts, run, setting)
    assert found is not None and found.differs_after_tokens == (2,)
    whole = DemoResult(
        modes=(
            DemoMode(
                setting=setting, result=run, different=differing(texts, run), divergence=found
            ),
        ),
        compared_prompts=1,
        kv_bytes_per_token=8,
        kv_dtype="fp32",
    )
    assert whole.identical_text
    assert not any("differ" in problem for problem in demo_problems(whole))
    told = demo_document(whole)
    assert told["modes"][0]["different_texts"] == ["run-1"]
    assert [each["sentence"] for each in told["divergences"]] == [found.sentence]


def test_a_split_that_sends_all_its_precision_has_no_divergence() -> None:
    assert strayed({0: "a"}, result(None, None, text="b"), ModeSetting(mode="split")) is None

"""`/health` holds the engine's answer against the one it gave first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.health import Health


class Engine:
    """A reader of orders whose answers are told beforehand; an error is raised."""

    def __init__(self, *answers: str | ApiError, fingerprint: str = "f") -> None:
        self.fleet = SimpleNamespace(fingerprint=fingerprint)
        self._answers = list(answers)
        self.asked = 0

    def encode(self, text: str, wish: Any, *, add_special_tokens: bool) -> list[int]:
        return [len(text)]

    def orders(self, *given: Any, **named: Any) -> list[Any]:
        assert named["internal"]
        return []

    def answering(self, wish: Any, orders: list[Any]) -> Any:
        assert wish.sampling.temperature == 0.0
        return SimpleNamespace(pieces=self._pieces)

    async def _pieces(self) -> AsyncGenerator[Any, None]:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, ApiError):
            raise answer
        for letter in answer:
            yield SimpleNamespace(text=letter)


@pytest.fixture(autouse=True)
def always_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homesplit_engine.router.health.FRESH_S", -1.0)


def health_of(engine: Any) -> Health:
    return Health(engine)


async def test_another_answer_than_the_first_is_a_failure_that_names_both() -> None:
    health = health_of(Engine("Thu", "Thu", "Foo", "Thu"))
    said = [await health.verdict() for _ in range(4)]
    assert [verdict.status for verdict in said] == ["ok", "ok", "failed", "ok"]
    assert said[2].why == "the known answer was 'Thu', now it is 'Foo'"
    assert said[2].answer == "Foo"


async def test_an_engine_that_answers_nothing_is_a_failure_with_its_reason() -> None:
    health = health_of(Engine(ApiError(503, "no box is there")))
    verdict = await health.verdict()
    assert (verdict.status, verdict.why) == ("failed", "no box is there")


async def test_another_model_has_an_answer_of_its_own() -> None:
    engine = Engine("Thu", "Foo")
    health = health_of(engine)
    assert (await health.verdict()).good
    engine.fleet.fingerprint = "g"
    assert (await health.verdict()).good


async def test_a_fresh_check_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homesplit_engine.router.health.FRESH_S", 1e9)
    engine = Engine("Thu", "Foo")
    health = health_of(engine)
    assert [(await health.verdict()).answer for _ in range(3)] == ["Thu"] * 3
    assert engine.asked == 1

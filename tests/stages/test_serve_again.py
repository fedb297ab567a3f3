"""A deployment is followed through an SSH connection that breaks, over a real one on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from homesplit_engine.records import ModeSetting

from homesplit.core.deployment import DeployedBox, Deployment
from homesplit.core.events import Event, Progress
from homesplit.errors import HomesplitError
from homesplit.stages import serve, serve_again
from homesplit.stages.context import Context
from homesplit.stages.deploy import Api
from tests.engine.router_kit import until
from tests.io.fake_openai import Manners
from tests.io.fake_router import fake_router
from tests.io.far_end import PATIENCE_S, Asked, Lab, far_end


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A server known as `box`, tried again at once."""
    monkeypatch.setattr(serve, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(serve, "LONGEST_PAUSE_S", 0.05)
    async with far_end(tmp_path, monkeypatch) as made:
        yield made


def deployed(port: int) -> Deployment:
    return Deployment(
        id="d",
        boxes=(DeployedBox(box="box", address="127.0.0.1", state="running"),),
        router_box="box",
        model="m",
        setting=ModeSetting(decode_box="box"),
        router_port=port,
        loopback=True,
    )


async def test_the_way_to_a_router_is_made_anew_when_it_breaks_and_the_loss_is_told(
    lab: Lab,
) -> None:
    told: list[Event] = []
    ways: list[str] = []
    lost = 0

    def reached(api: Api) -> None:
        ways.append(api.url)

    def gone() -> None:
        nonlocal lost
        lost += 1

    context = Context(emit=told.append, paths=lab.paths, ask=Asked())
    async with fake_router({"colocated": Manners(model="m")}) as router:
        port = int(router.url.rsplit(":", 1)[-1])
        following = asyncio.create_task(
            serve_again.follow_deployment(context, deployed(port), reached, gone)
        )
        try:
            for number in (1, 2, 3):
                await until(lambda number=number: len(ways) == number and lost == number - 1)
                lab.cut()
            await until(lambda: len(ways) == 4)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    assert lost == 4
    unheard = [one for one in told if isinstance(one, Progress) and one.step == serve.HEARD]
    assert len(unheard) >= 3
    assert all(one.sentence and one.left_s for one in unheard)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("a declined password", "does not let owner in"),
        ("another host key", "its host key has changed"),
    ],
)
async def test_a_way_that_only_a_person_can_make_anew_ends_the_stage_and_asks_once(
    lab: Lab, change: str, said: str
) -> None:
    ways: list[str] = []
    ask = Asked(secrets=["right", None, "right", "right"])
    if change == "a declined password":
        (lab.home / ".ssh" / "id_ed25519").unlink()
    context = Context(emit=lambda _: None, paths=lab.paths, ask=ask)
    async with fake_router({"colocated": Manners(model="m")}) as router:
        port = int(router.url.rsplit(":", 1)[-1])
        work = serve_again.follow_deployment(
            context, deployed(port), lambda api: ways.append(api.url), lambda: None
        )
        following = asyncio.create_task(work)
        await until(lambda: ways)
        if change == "another host key":
            known = lab.paths.known_hosts
            words = known.read_text().split()
            other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
            known.write_text(f"{words[0]} {other}")
        asked = len(ask.asked)
        lab.cut()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(HomesplitError, match=said):
                await following
    assert len(ways) == 1
    assert len(ask.asked) - asked == (change == "a declined password")


async def test_a_router_that_can_not_be_reached_at_first_is_an_error(lab: Lab) -> None:
    (lab.home / ".ssh" / "id_ed25519").unlink()
    context = Context(emit=lambda _: None, paths=lab.paths, ask=Asked())
    with pytest.raises(HomesplitError, match="does not let owner in"):
        await serve_again.follow_deployment(context, deployed(1), lambda _: None, lambda: None)

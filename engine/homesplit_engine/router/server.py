"""The router process: HTTP on one side, the workers on the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from aiohttp import web

from homesplit_engine.config import (
    ConfigError,
    RouterConfig,
    RouterEndpoints,
    living_with,
    load,
    write_ready,
)
from homesplit_engine.farewell import Keeper
from homesplit_engine.keys import is_key, read_keys
from homesplit_engine.open_files import allow_open_files
from homesplit_engine.parent import Parent
from homesplit_engine.router.answer import Reader
from homesplit_engine.router.desk import Desk
from homesplit_engine.router.door_log import door_log
from homesplit_engine.router.doors import Doors
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.fleet import ROUTER_ENDED, Fleet
from homesplit_engine.router.gate import about_to_answer, echo_request_id, gate, read_api_key
from homesplit_engine.router.health import FRESH_S, Health
from homesplit_engine.router.listen import listen, refuse_open_door
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.setting import check_setting
from homesplit_engine.router.template import load_template
from homesplit_engine.router.text import load_tokenizer

log = logging.getLogger("homesplit.router")
MAX_BODY_BYTES = 16 * 2**20
IDLE_S = 75.0
"""A connection that brings no whole request head for so long is closed."""
CLOSE_S = 2.0
"""How long open answers may go on once the router is told to stop."""
PARENT_LOOK_S = 1.0
FIRST_TRIES = 5
FIRST_HEALTH_S = 60.0


@contextlib.asynccontextmanager
async def serving(
    config: RouterConfig, keeper: Keeper | None = None, after: str | None = None
) -> AsyncGenerator[str]:
    """A running router, as its URL; everything is closed at the end. Raises ConfigError.

    `after` is what became of the router before this one, for watchers to hear.
    """
    _check_config(config)
    keys = read_keys(Path(config.keys_file))
    api_key = None if config.api_key_file is None else read_api_key(Path(config.api_key_file))
    model_dir = Path(config.model_dir)
    tokenizer, template = load_tokenizer(model_dir), load_template(model_dir)
    metrics = Metrics(config.model_name, config.ttft_target_s, config.tpot_target_s)
    fleet = Fleet(config, keys, metrics)
    if after is not None:
        fleet.stand(None, ROUTER_ENDED, after)
    reader = Reader(fleet, tokenizer)
    health = Health(reader)
    first = asyncio.create_task(_first_health(fleet, health), name="first health")
    app = web.Application(
        middlewares=[gate(fleet, api_key, keeper)], client_max_size=MAX_BODY_BYTES
    )
    app.on_response_prepare.extend([echo_request_id, about_to_answer])
    app.add_routes([*Doors(reader, template).routes(), *Desk(fleet, health).routes()])
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # a client that leaves ends its handler, and so its request
        auto_decompress=False,
        access_log=None,
        logger=door_log(),
        keepalive_timeout=IDLE_S,
        shutdown_timeout=CLOSE_S,
    )
    try:
        await runner.setup()
        yield await listen(runner, config)
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await health.close()
        fleet.end_flights()
        await runner.cleanup()
        reader.close()
        await fleet.close()


def _check_config(config: RouterConfig) -> None:
    refuse_open_door(config)
    boxes = tuple(address.box for address in config.workers)
    if not boxes or len(set(boxes)) != len(boxes):
        raise ConfigError("the router's settings need one or more workers, each with its own name")
    keyless = [address.box for address in config.workers if not is_key(address.public_key)]
    if keyless:
        raise ConfigError(
            f"the router's settings give no key of {keyless[0]!r} (40 characters of Z85): "
            "anybody could answer in its place"
        )
    if not config.detection_s > 0:
        raise ConfigError("detection_s must be above 0")
    try:
        check_setting(config.setting, boxes)
    except ApiError as error:
        raise ConfigError(f"the router's setting is refused: {error.message}") from error


async def _first_health(fleet: Fleet, health: Health) -> None:
    """Learn the known answer as soon as a box can be used."""
    while not fleet.usable():
        await fleet.until_usable(FIRST_HEALTH_S)
    verdict = await health.verdict()
    for _ in range(FIRST_TRIES):  # a box that was just taken in may not answer yet
        if verdict.good:
            break
        await asyncio.sleep(FRESH_S)
        verdict = await health.verdict()
    told = verdict.status if verdict.why is None else f"{verdict.status}, {verdict.why}"
    log.info("first known answer: %s", told)


async def _run(config: RouterConfig, keeper: Keeper | None, after: str | None) -> None:
    stop = asyncio.Event()
    parent = None if config.parent_pid is None else Parent(config.parent_pid)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(config, keeper, after) as url:
        log.info("listening on %s", url)
        write_ready(Path(config.ready_file), RouterEndpoints(pid=os.getpid(), url=url))
        await _until_stopped(stop, parent)


async def _until_stopped(stop: asyncio.Event, parent: Parent | None) -> None:
    """Return when told to stop, or when the parent that was named is gone."""
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PARENT_LOOK_S)
        if parent is not None and not parent.lives:
            log.warning("the process that started this router is gone")
            return


def main(
    path: str | Path,
    parent_pid: int | None = None,
    *,
    farewell: Sequence[int] | None = None,
    after: str | None = None,
) -> int:
    """Run the router of one settings file until it is told to stop; the exit code.

    It also ends once the process `parent_pid` is gone. `farewell` are the descriptors by which a
    supervisor is given the sockets of open answers, `after` is what became of the last router.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = living_with(load(Path(path), RouterConfig), parent_pid)
        allow_open_files()
        asyncio.run(_run(config, Keeper(*farewell) if farewell else None, after))
    except ConfigError as error:
        log.error("%s", error)
        return 1
    return 0

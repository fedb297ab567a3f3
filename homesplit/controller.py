"""The only mutable object of the app: every action of a screen is a method here.

Screens read `state` and call these; they hold no logic of their own. Stage modules are
imported when they are first used, so that the first picture comes at once.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.choices import Choices, toggled
from homesplit.core.deployment import DeployedBox, Deployment
from homesplit.core.machine import Address, FoundBox
from homesplit.core.state import link_between
from homesplit.errors import EngineError, HomesplitError, UsageError
from homesplit.stage_runner import StageRunner
from homesplit.stages.context import Context
from homesplit.view import plan as plan_view
from homesplit.view import road

LOOPBACK = "both workers are this machine, over loopback: there is no network to measure"
DEMO_RATE_REQUESTS_PER_S = 0.6
"""What two cores can still answer, so that the strips show single requests."""
TURN_REST_S = 0.35
"""The advice is worked out anew once the knobs have rested this long."""


@dataclass(slots=True)
class Said:
    """One question to the model and its answer so far."""

    question: str
    answer: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens: int = 0
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """Where the engine is reached from here."""

    url: str
    api_key: str | None


def _stage(name: str) -> Any:
    """A stage's module; raises HomesplitError where this build has none."""
    try:
        return importlib.import_module(f"homesplit.stages.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"homesplit.stages.{name}":
            raise
        raise HomesplitError(f"this build has no stage {name}") from error


class Controller(StageRunner):
    """The commands of the app."""

    served: Served | None = None
    demo: bool = False
    _turning: asyncio.TimerHandle | None = None
    _load_stop: asyncio.Event | None = None

    def begin(self) -> None:
        """What the app does by itself once it is shown."""
        self.show_known()
        self.look_about()
        self.find_deployment()
        self.read_notebook()

    def show_known(self) -> None:
        """Boxes and links that were measured before."""
        store = importlib.import_module("homesplit.io.probe_store")
        for profile in store.list_boxes(self.paths):
            self.emit(events.BoxProbed(profile=profile))
        for link in store.list_links(self.paths):
            self.emit(events.LinkProbed(link=link))

    def begin_demo(self) -> None:
        """Start two workers and a router on this machine, follow them, offer a small load."""
        self.read_notebook()

        async def work(ctx: Context) -> None:
            async with _stage("demo").demo_engine(ctx) as engine:
                await self._show_demo(engine)
                self.start_load_once_served()
                await self.follow(ctx, engine.url, None)

        self.start("serve", work)

    async def _show_demo(self, engine: Any) -> None:
        """This machine twice, and the deployment over loopback."""
        for name in engine.boxes:
            self.emit(events.BoxFound(box=demo_box(name)))
        status = await _stage("serve").read_status(engine.url, None)
        targets = self.load_workload(self.state.choices, own_targets=True).targets
        self.choose(
            replace(
                self.state.choices,
                boxes=tuple(engine.boxes),
                targets=targets,
                load_rate_requests_per_s=DEMO_RATE_REQUESTS_PER_S,
            )
        )
        self.emit(events.DeploymentSeen(deployment=demo_deployment(engine, status.setting)))
        self.emit(events.StageEnded(stage="demo", sentence="Two workers serve on this machine."))

    def start_load_once_served(self) -> None:
        """Begin the load as soon as the engine's address is known."""
        asyncio.get_running_loop().call_later(0.5, self.start_load)

    # ------------------------------------------------------------------------- choices

    def choose(self, choices: Choices) -> None:
        """Take these choices."""
        if choices != self.state.choices:
            self.emit(events.ChoiceMade(choices=choices))

    def toggle_box(self, name: str) -> None:
        """Choose a box or let it go."""
        self.choose(toggled(self.state.choices, name))

    def turn_load_rate(self, factor: float) -> None:
        """Change the offered rate of the load, between one a minute and a hundred a second."""
        rate = self.state.choices.load_rate_requests_per_s * factor
        bounded = min(max(rate, 1 / 60), 100.0)
        self.choose(replace(self.state.choices, load_rate_requests_per_s=bounded))
        if self.running("bench"):
            self._restart_load()

    def turn(self, knob: str, step: int) -> None:
        """Turn one knob of the question; the advice follows once it rests."""
        profiles = importlib.import_module("homesplit.io.profiles")
        models, workloads = (profiles.names(kind, self.paths) for kind in ("models", "workloads"))
        self.choose(plan_view.turned(self.state.choices, knob, step, models, workloads))
        if self._turning is not None:
            self._turning.cancel()
        self._turning = asyncio.get_running_loop().call_later(TURN_REST_S, self.make_plan)

    # ------------------------------------------------------------------------ machines

    def look_about(self) -> None:
        """Show what is known already and watch for machines for as long as the app is open."""

        async def work(ctx: Context) -> None:
            await _stage("discover").watch(ctx)

        self.start("discover", work)

    def add_box(self, text: str) -> None:
        """Add a machine by hand; probing it says whether it answers."""
        user, at, host = text.strip().rpartition("@")
        self.emit(
            events.BoxFound(
                box=FoundBox(
                    name=host,
                    addresses=(Address(address=host),),
                    found_by=("by hand",),
                    user=user if at else None,
                )
            )
        )

    def needs_probe(self) -> bool:
        """Whether something about the chosen boxes is not measured yet."""
        chosen = self.state.choices.boxes
        if self.demo:
            return False
        if any(name not in self.state.profiles for name in chosen):
            return True
        return len(chosen) == 2 and link_between(self.state, *chosen) is None

    def probe(self) -> None:
        """Measure the chosen boxes and the link between them."""
        names = self.state.choices.boxes
        if self.demo:
            self.fail("probe", UsageError(LOOPBACK, do_next="Two real boxes can be measured."))
            return

        async def work(ctx: Context) -> None:
            await _stage("probe").probe(ctx, names)

        self.start("probe", work)

    # ---------------------------------------------------------------------------- plan

    def make_plan(self) -> None:
        """Work out the advice in a thread: the simulator takes its time."""
        choices = self.state.choices
        if not choices.boxes:
            self.fail("plan", UsageError("no boxes are chosen", do_next="Choose them on 1."))
            return

        async def work(ctx: Context) -> None:
            module = _stage("plan")
            self.emit(events.StageStarted(stage="plan", sentence="working out the advice"))
            await self._answer_newest(module)
            self.emit(events.StageEnded(stage="plan", sentence="The advice is worked out."))

        # What runs already takes up the newest question by itself.
        self.start("plan", work)

    async def _answer_newest(self, module: Any) -> None:
        """Answer what is asked until it is still being asked: first the advice, then its flips."""
        quiet = Context(ask=self.ask, paths=self.paths)
        answered: Any = None
        while answered != (question := _question(module, self.state.choices)):
            for flips in (False, True):
                asked = replace(question, flips=flips)
                plan = await asyncio.to_thread(module.make_plan, quiet, asked)
                if question != _question(module, self.state.choices):
                    break
                self.emit(events.PlanMade(plan=plan))
            answered = question

    def _setting(self) -> ModeSetting:
        """The mode to deploy with: the chosen one, else the plan's, else one box."""
        choices, plan = self.state.choices, self.state.plan
        if choices.setting is not None:
            return choices.setting
        if plan is None or plan.recommendation.mode is None:
            return ModeSetting(decode_box=choices.boxes[0] if choices.boxes else None)
        advice = plan.recommendation
        boxes = choices.boxes
        return ModeSetting(
            mode=advice.mode,  # pyright: ignore[reportArgumentType]
            prefill="whole" if advice.prefill == "whole" else "chunked",
            chunk_tokens=advice.chunk_tokens or 256,
            prefill_box=advice.prefill_box or (boxes[0] if boxes else None),
            decode_box=advice.decode_box or (boxes[-1] if boxes else None),
        )

    # -------------------------------------------------------------------------- deploy

    def plan_deployment(self) -> None:
        """List what would change on each box."""
        boxes, model, setting = self.state.choices.boxes, self.state.choices.model, self._setting()

        async def work(ctx: Context) -> None:
            plan = await _stage("deploy").plan_deployment(ctx, boxes, model, setting)
            self.emit(events.DeployPlanned(plan=plan))

        self.start("deploy", work)

    def deploy(self) -> None:
        """Make the changes, start the engine, follow it."""
        boxes, model, setting = self.state.choices.boxes, self.state.choices.model, self._setting()

        async def work(ctx: Context) -> None:
            deployment = await _stage("deploy").up(ctx, boxes, model, setting)
            self.emit(events.DeploymentSeen(deployment=deployment))
            self.connect()

        self.start("deploy", work)

    def find_deployment(self) -> None:
        """Take up a deployment that was left running."""

        async def work(ctx: Context) -> None:
            deployment = await _stage("deploy").status(ctx)
            if deployment is not None:
                self.emit(events.DeploymentSeen(deployment=deployment))
                if road.is_serving(self.state):
                    self.connect()

        self.start("status", work)

    def down(self) -> None:
        """Stop the engine on the boxes."""

        async def work(ctx: Context) -> None:
            self.cancel("serve")
            await _stage("deploy").down(ctx)
            self.emit(events.DeploymentSeen(deployment=None))

        self.start("down", work)

    def remove(self) -> None:
        """Take everything off the chosen boxes, or off those that serve when none is chosen."""
        boxes = self.removable_boxes()

        async def work(ctx: Context) -> None:
            self.cancel("serve")
            for box in boxes:
                await _stage("deploy").remove(ctx, box)
            self.emit(events.DeploymentSeen(deployment=None))

        self.start("remove", work)

    def removable_boxes(self) -> tuple[str, ...]:
        """The chosen boxes; after a new start, those of the deployment that was found."""
        return self.state.choices.boxes or self.deployed_boxes()

    # --------------------------------------------------------------------------- serve

    def connect(self) -> None:
        """Forward the API of the deployment to this machine and follow its events."""
        deployment = self.state.deployment
        if deployment is None:
            return

        async def work(ctx: Context) -> None:
            async with _stage("deploy").forward(ctx, deployment) as reached:
                known = self.state.deployment or deployment
                self.emit(events.DeploymentSeen(deployment=replace(known, url=reached.url)))
                await self.follow(ctx, *reached)

        self.start("serve", work)

    async def follow(self, ctx: Context, url: str, api_key: str | None) -> None:
        """Take `url` as the engine of this session and follow its events until cancelled."""
        self.served = Served(url, api_key)
        try:
            await _stage("serve").follow(ctx, url, api_key)
        finally:
            self.served = None

    def deployed_boxes(self) -> tuple[str, ...]:
        """The names of the boxes that the deployment runs on."""
        deployment = self.state.deployment
        return tuple(box.box for box in deployment.boxes) if deployment is not None else ()

    def next_mode(self) -> None:
        """Switch to the next arrangement while the engine serves."""
        setting = self.state.engine.setting
        served = self.served
        if setting is None or served is None:
            self.fail("mode", EngineError("nothing is running", do_next="Deploy first (3)."))
            return
        wanted = following(setting, self.deployed_boxes())

        async def work(ctx: Context) -> None:
            await _stage("serve").set_mode(ctx, served.url, served.api_key, wanted)

        self.start("mode", work)

    # ---------------------------------------------------------------------------- load

    def toggle_load(self) -> None:
        """Start the load, or stop it."""
        if self.running("bench"):
            self._stop_load()
        else:
            self.start_load()

    def _stop_load(self) -> None:
        if self._load_stop is None or self._load_stop.is_set():
            self.cancel("bench")
        else:
            self._load_stop.set()

    def _restart_load(self) -> None:
        self._stop_load()
        self.after("bench", self.start_load)

    def start_load(self) -> None:
        """Offer the chosen workload at the chosen rate until it is stopped."""
        served = self.served
        if served is None:
            self.fail("bench", EngineError("nothing is running", do_next="Deploy first (3)."))
            return
        choices = self.state.choices
        self._load_stop = asyncio.Event()
        stop = self._load_stop

        async def work(ctx: Context) -> None:
            try:
                await self._offer(ctx, served, choices, stop)
            finally:
                self.emit(events.LoadStopped())

        self.start("bench", work)

    async def _offer(
        self, ctx: Context, served: Served, choices: Choices, stop: asyncio.Event
    ) -> None:
        """Run after run of the workload until stopped; none is written into the notebook."""
        bench = _stage("bench")
        workload = self.load_workload(choices)
        target = bench.Target(url=served.url, api_key=served.api_key)
        seed = 1
        while not stop.is_set():
            await bench.bench(
                ctx, target, workload, seconds=600.0, seed=seed, stop=stop, keep=False
            )
            seed += 1

    def load_workload(self, choices: Choices, *, own_targets: bool = False) -> Any:
        """The load generator's workload at the chosen rate, with the chosen targets."""
        profiles = importlib.import_module("homesplit.io.profiles")
        name = choices.load_workload or choices.workload or "demo"
        workload = profiles.load_workload(name, self.paths)
        arrivals = replace(
            workload.arrivals, kind="open", rate_requests_per_s=choices.load_rate_requests_per_s
        )
        targets = workload.targets if own_targets else choices.targets
        return replace(workload, arrivals=arrivals, targets=targets)

    def newest_running(self) -> str | None:
        """The id of the request that joined last and has not ended."""
        ended = {done.request_id for done in self.state.engine.requests}
        for seen in reversed(self.state.engine.steps):
            for request in reversed(seen.event.decode):
                if request not in ended:
                    return request
        return None

    def cancel_request(self, request_id: str) -> None:
        """Cancel one request in the engine."""
        served = self.served
        if served is None:
            return

        async def work(ctx: Context) -> None:
            client = importlib.import_module("homesplit.io.engine_client")
            async with client.EngineClient(served.url, served.api_key) as engine:
                await engine.cancel(request_id)

        self.start("cancel", work)

    async def chat(self, said: list[Said]) -> AsyncIterator[Said]:
        """Send the last question with what was said before; yields as the answer grows."""
        served = self.served
        if served is None:
            raise EngineError("nothing is running to talk to", do_next="Deploy first (3).")
        client = importlib.import_module("homesplit.io.chat_client")
        messages = [
            message
            for one in said[:-1]
            for message in (("user", one.question), ("assistant", one.answer))
        ]
        messages.append(("user", said[-1].question))
        model = self.state.deployment.model if self.state.deployment else "default"
        now, began_s, first_s = said[-1], time.monotonic(), None
        async for piece in client.stream(served.url, served.api_key, model, messages):
            moment = time.monotonic()
            if first_s is None:
                first_s = moment
                now.ttft_s = moment - began_s
            now.answer += piece
            now.tokens += 1
            if now.tokens > 1:
                now.tpot_s = (moment - first_s) / (now.tokens - 1)
            yield now

    # ------------------------------------------------------------ comparison, notebook

    def compare(self) -> None:
        """The same requests through each mode on these boxes."""
        served, choices = self.served, self.state.choices
        boxes = (
            tuple(box.box for box in self.state.deployment.boxes) if self.state.deployment else ()
        )
        if served is None:
            self.fail("compare", EngineError("nothing is running", do_next="Deploy first (3)."))
            return
        if self._load_stop is not None:
            self._load_stop.set()

        async def work(ctx: Context) -> None:
            told = "Waiting for the last answers of the load."
            self.emit(events.StageStarted(stage="compare", sentence=told))
            await self.ended("bench")
            await run_compare(ctx, served, boxes, self.load_workload(choices))

        self.start("compare", work)

    def read_notebook(self) -> None:
        """Show the entries of the notebook."""

        async def work(ctx: Context) -> None:
            for entry in await asyncio.to_thread(_stage("notebook").list_entries, ctx):
                told = events.EntryWritten(
                    id=entry.id, kind=entry.kind, at=entry.at, sentence=entry.sentence
                )
                if told not in self.state.entries:
                    self.emit(told)

        self.start("notebook", work)

    async def entry_text(self, entry_id: str) -> str:
        """One entry at length; empty (and the failure told) when it can't be read."""
        try:
            module = _stage("notebook")
            entry, raw = await asyncio.to_thread(module.show_entry, self.context(), entry_id)
        except HomesplitError as error:
            self.fail("notebook", error)
            return ""
        return entry_words(entry, raw)

    def add_note(self, text: str) -> None:
        """Write a note of one's own."""

        async def work(ctx: Context) -> None:
            await asyncio.to_thread(_stage("notebook").add_note, ctx, text)

        # Notes have a task of their own: one must not be lost because the entries are being read.
        self.after("note", lambda: self.start("note", work))

    def export_notebook(self, text: str) -> None:
        """Write the notebook to a file whose ending says the form."""
        path = Path(text).expanduser()

        async def work(ctx: Context) -> None:
            written = await asyncio.to_thread(_stage("export").export, ctx, path)
            self.emit(events.StageEnded(stage="notebook", sentence=f"Wrote {written}."))

        self.after("export", lambda: self.start("export", work))

    # ---------------------------------------------------------------------------- quit

    def would_be_lost(self) -> str:
        """What quitting now would cut short, in words; empty when nothing would be lost."""
        lost: list[str] = []
        if self.running("deploy"):
            lost.append("A deployment is under way; what is copied stays and is used next time.")
        if self.running("compare"):
            lost.append("A comparison is running; it would end without a verdict.")
        if self.running("probe"):
            lost.append("A probe is measuring; its figures would be lost.")
        if lost and not self.demo and road.is_serving(self.state):
            lost.append("The engine on the boxes goes on running.")
        return "\n".join(lost)


def demo_box(name: str) -> FoundBox:
    """This machine as one of the demo's two workers."""
    return FoundBox(
        name=name,
        addresses=(Address(address="127.0.0.1", interface="lo"),),
        found_by=("demo",),
        this_machine=True,
        trusted=True,
    )


def demo_deployment(engine: Any, setting: ModeSetting) -> Deployment:
    """The demo's pair as a deployment; it ends with the app."""
    boxes = tuple(
        DeployedBox(box=name, address="127.0.0.1", state="running", pid=engine.pids.get(name))
        for name in engine.boxes
    )
    return Deployment(
        id="demo",
        boxes=boxes,
        router_box=boxes[-1].box,
        model="smollm2-135m",
        setting=setting,
        router_port=int(engine.url.rsplit(":", 1)[-1].strip("/")),
        loopback=True,
        url=engine.url,
        router_state="running",
    )


def _question(module: Any, choices: Choices) -> Any:
    """The plan stage's question from what is chosen."""
    own = choices.workload is None
    return module.PlanQuestion(
        boxes=choices.boxes,
        link=None,
        model=choices.model,
        workload=choices.workload,
        prompt_tokens=choices.prompt_tokens if own else None,
        output_tokens=choices.output_tokens if own else None,
        users=choices.users if own else None,
        rate_requests_per_s=choices.rate_requests_per_s if own else None,
        targets=choices.targets,
    )


def following(setting: ModeSetting, boxes: tuple[str, ...]) -> ModeSetting:
    """The arrangement after `setting` in the order that the lesson tells them."""
    first, last = (boxes[0], boxes[-1]) if boxes else (None, None)
    order = (
        ModeSetting(mode="colocated", prefill="whole", decode_box=last, prefill_box=first),
        ModeSetting(mode="colocated", prefill="chunked", decode_box=last, prefill_box=first),
        ModeSetting(mode="replica", prefill="chunked", decode_box=last, prefill_box=first),
        ModeSetting(mode="split", prefill="chunked", decode_box=last, prefill_box=first),
        ModeSetting(mode="auto", prefill="chunked", decode_box=last, prefill_box=first),
    )
    usable = order if len(boxes) > 1 else order[:2]
    place = next(
        (
            number
            for number, one in enumerate(usable)
            if one.mode == setting.mode
            and (setting.mode != "colocated" or one.prefill == setting.prefill)
        ),
        -1,
    )
    chosen = usable[(place + 1) % len(usable)]
    return replace(chosen, chunk_tokens=setting.chunk_tokens)


async def run_compare(ctx: Context, served: Served, boxes: tuple[str, ...], workload: Any) -> None:
    """Call the compare stage with every mode that these boxes can run."""
    bench, compare = _stage("bench"), _stage("compare")
    target = bench.Target(url=served.url, api_key=served.api_key)
    modes = ("colocated:whole", "colocated:chunked")
    if len(boxes) > 1:
        modes = (*modes, "replica", "split")
    await compare.compare(ctx, target, modes, workload, repeats=1)


def entry_words(entry: Any, raw: dict[str, tuple[Any, ...]]) -> str:
    """An entry as text to read: sentence, when, and what it holds."""
    import msgspec

    body = msgspec.json.format(msgspec.json.encode(entry), indent=2).decode()
    counts = ", ".join(f"{len(rows)} {name}" for name, rows in raw.items())
    held = f"\nraw records kept: {counts}" if counts else ""
    return f"{entry.sentence}\n\n{entry.at}  {entry.kind}{held}\n\n{body}"

"""The road of stages: what is done, what runs, what comes next, and what enter would do."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from homesplit.core.events import Progress
from homesplit.core.state import RunState, StageState, link_between
from homesplit.view import numbers
from homesplit.view.spans import Line, Lines, Span, bar, clean, crop, line, width_of, wrap

SCREENS = ("machines", "plan", "deploy", "monitor", "compare", "notebook")
TITLES = {name: name.capitalize() for name in SCREENS}
_STAGES_OF = {
    "machines": ("probe", "discover"),
    "plan": ("plan", "model"),
    "deploy": ("deploy", "demo"),
    "monitor": ("serve", "bench", "targets"),
    "compare": ("compare",),
    "notebook": ("notebook", "repeat"),
}
_ENDLESS = ("discover", "serve")
"""Stages that go on for as long as the app is open, and so are no sign of work."""
_WORDS = {"bench": "load", "targets": "targets", "replay": "recording", "serve": "engine"}
"""Stages whose name is not what people call them."""
STATUS_MARKS = {"done": "✓", "running": "●", "failed": "✗", "next": "▸", "idle": " "}
_STATUS_ROLES = {"done": "good", "running": "warn", "failed": "bad", "next": "key", "idle": "dim"}


class Stop(NamedTuple):
    """One stop on the road: its number, screen and status."""

    number: int
    screen: str
    status: str


def _done(state: RunState, screen: str) -> bool:
    match screen:
        case "machines":
            return len(state.choices.boxes) == 2 and all(
                box in state.profiles for box in state.choices.boxes
            )
        case "plan":
            return state.plan is not None
        case "deploy":
            return is_serving(state)
        case "monitor":
            return state.engine.total_requests > 0
        case "compare":
            return state.verdict is not None
        case _:
            return bool(state.entries)


def is_serving(state: RunState) -> bool:
    """Whether a deployment runs on at least one box."""
    deployment = state.deployment
    return deployment is not None and any(box.state == "running" for box in deployment.boxes)


def stops(state: RunState) -> tuple[Stop, ...]:
    """Every stage with its status; the first undone one after the last done one is next."""
    found: list[Stop] = []
    reached = max((n for n, name in enumerate(SCREENS[:-1]) if _done(state, name)), default=-1)
    next_given = False
    for number, screen in enumerate(SCREENS, start=1):
        stages = [state.stage(name) for name in _STAGES_OF[screen] if name not in _ENDLESS]
        if _running(state, screen, stages):
            status = "running"
        elif _done(state, screen):
            status = "done"
        elif stages and stages[0].status == "failed":
            status = "failed"
        elif not next_given and number > reached + 1:
            status, next_given = "next", True
        else:
            status = "idle"
        found.append(Stop(number, screen, status))
    return tuple(found)


def _running(state: RunState, screen: str, stages: list[StageState]) -> bool:
    if screen == "monitor" and state.load.running:
        return True
    return any(stage.status == "running" for stage in stages)


def road(state: RunState, current: str, width: int) -> Line:
    """The bar on top of every screen, shortened where there is little room."""
    for short in (False, True):
        parts: list[Span] = [Span(" homesplit ", "!strong"), Span(" ")]
        for stop in stops(state):
            parts.extend(_stop_spans(stop, current, short))
        found = tuple(parts)
        if width_of(found) <= width:
            return found
    return crop(found, width)


def _stop_spans(stop: Stop, current: str, short: bool) -> list[Span]:
    mark = STATUS_MARKS[stop.status]
    title = TITLES[stop.screen]
    here = stop.screen == current
    text = f" {stop.number} {title} " if not short else f"{stop.number} {title}"
    role = "!key" if here else ("strong" if stop.status in ("next", "running") else "dim")
    spans = [Span(text, role), Span(mark, _STATUS_ROLES[stop.status])]
    if stop.number < len(SCREENS):
        spans.append(Span(" " if short else " ─", "faint"))
    return spans


def work(state: RunState, width: int, screen: str = "") -> Line:
    """The one thing that is being done now, this screen's own first: how far, the time left."""
    own = _STAGES_OF.get(screen, ())
    for name, stage in sorted(state.stages.items(), key=lambda item: item[0] not in own):
        if stage.status != "running" or name in _ENDLESS:
            continue
        going_on = _comparing(state, stage) if name == "compare" else _going_on(stage)
        if going_on is not None and name == "bench" and not _is_measured(state):
            # A load that was started goes on until it is stopped, run after run.
            going_on = replace(going_on, total=None, left_s=None)
        return crop(_work_line(name, stage, going_on, width), width)
    return ()


def _is_measured(state: RunState) -> bool:
    """Whether the load belongs to a measurement, and ends with it."""
    return any(state.stage(name).status == "running" for name in ("compare", "repeat"))


def _comparing(state: RunState, stage: StageState) -> Progress | None:
    """How far all modes together are, while the load of one of them is offered."""
    own, load = _going_on(stage), _going_on(state.stage("bench"))
    if own is not None or load is None or not load.total or not state.load.running:
        return own
    if not stage.sentence.startswith("Round"):
        # What is offered still is the load from before, whose last answers are waited for.
        return None
    boxes = state.deployment.boxes if state.deployment is not None else ()
    modes, run = (2 if len(boxes) == 1 else 4), len(state.compared)
    waiting = max(modes - run - 1, 0)
    return replace(
        load,
        stage="compare",
        done=min(run, modes - 1) * load.total + load.done,
        total=modes * load.total,
        left_s=(load.left_s or 0.0) + waiting * load.total,
        sentence=stage.sentence,
    )


def _going_on(stage: StageState) -> Progress | None:
    """The step to tell of: a counted one that is not complete, else the last uncounted one."""
    counted = [p for p in stage.progress if p.total and p.done < p.total]
    uncounted = [p for p in stage.progress if not p.total]
    told = counted or uncounted or list(stage.progress)
    return told[-1] if told else None


def _work_line(name: str, stage: StageState, latest: Progress | None, width: int) -> Line:
    """What goes on; where it is too long for the line the time left stays whole."""
    title = _WORDS.get(name, name)
    parts: list[Span] = [Span(" ● ", "warn"), Span(f"{title} ", "strong")]
    if latest is None:
        return (*parts, Span(clean(stage.sentence)))
    if latest.total:
        share = latest.done / latest.total
        parts.extend(bar(share, 16, "key"))
        parts.append(Span(f" {share * 100:.0f} % ", "strong"))
    where = f"{latest.box}: " if latest.box else ""
    parts.append(Span(clean(f"{where}{latest.sentence or latest.step}")))
    if latest.left_s is None:
        return tuple(parts)
    left = Span(f"  {numbers.left(latest.left_s)} left", "dim")
    return (*crop(tuple(parts), width - width_of((left,))), left)


def unheard(state: RunState, width: int) -> Line:
    """That the router tells nothing, why, and when it is tried again; empty while it does."""
    deployment = state.deployment
    told = [p for p in state.stage("serve").progress if p.step == "events" and p.sentence]
    if deployment is None or not told:
        return ()
    latest = told[-1]
    why = latest.sentence.rstrip(".")
    again = f", tried again in {numbers.left(latest.left_s)}" if latest.left_s else ""
    return crop(
        line(
            Span(" ! ", "warn"),
            Span(clean(f"the engine on {deployment.router_box} is not heard"), "strong"),
            Span(clean(f"{again}: {why}"), "dim"),
        ),
        width,
    )


_TROUBLE_ROWS = 4
_TROUBLE_KEYS = line(
    Span("  e", "key"), Span(" detail  ", "dim"), Span("esc", "key"), Span(" hides it", "dim")
)


def trouble(state: RunState, width: int) -> Lines:
    """The newest failure: what, where, and what to do next; in a few lines where it is long."""
    if not state.failures:
        return ()
    failure = state.failures[-1]
    where = f"{failure.where}: " if failure.where else ""
    end = "" if failure.what[-1:] in (".", "?", "!", ":") else "."
    what, do_next = clean(f"{where}{failure.what}{end}"), clean(failure.do_next or "")
    room = width - width_of(_TROUBLE_KEYS)
    whole = line(Span(" ✗ ", "bad"), Span(f"{what} ", "bad"), do_next)
    if width_of(whole) <= room:
        return ((*whole, *_TROUBLE_KEYS),)
    whats = width - 3 if do_next else room - 3
    told = list(wrap(what, whats, "bad", limit=_TROUBLE_ROWS - 2))
    told.extend(wrap(do_next, room - 3, limit=_TROUBLE_ROWS - len(told)))
    first = [Span(" ✗ ", "bad"), *([Span("   ")] * (len(told) - 1))]
    rows = [(head, *row) for head, row in zip(first, told, strict=True)]
    return (*rows[:-1], crop((*crop(rows[-1], room), *_TROUBLE_KEYS), width))


def next_step(state: RunState, screen: str) -> str:
    """What enter does on this screen now, in words."""
    match screen:
        case "machines":
            return _next_on_machines(state)
        case "plan":
            return "prepare the deployment" if state.plan is not None else "work out the advice"
        case "deploy":
            return _next_on_deploy(state)
        case "monitor":
            return _next_on_monitor(state)
        case "compare":
            if state.stage("compare").status == "running":
                return ""
            return "run the comparison" if is_serving(state) else "go to Deploy: nothing is running"
        case _:
            return "open the entry" if state.entries else ""


def _next_on_machines(state: RunState) -> str:
    chosen = state.choices.boxes
    if state.stage("probe").status == "running":
        return "watch the probe"
    if not chosen:
        return "choose this machine (space chooses, two are needed for a split)"
    if state.deployment is not None and state.deployment.loopback:
        return "watch them serve"
    missing = [box for box in chosen if box not in state.profiles]
    if missing or (len(chosen) == 2 and link_between(state, *chosen) is None):
        return f"measure {' and '.join(chosen)}" + (" and the link" if len(chosen) == 2 else "")
    return "go on to the plan"


def _next_on_deploy(state: RunState) -> str:
    if state.stage("deploy").status == "running":
        return ""
    if is_serving(state):
        return "go on to Monitor"
    if state.deploy_plan is None:
        return "list what would change on each box"
    return "do it"


def is_starting(state: RunState) -> bool:
    """Whether workers come up by themselves, so that there is nothing to deploy."""
    return any(state.stage(name).status == "running" for name in ("demo", "model"))


def _next_on_monitor(state: RunState) -> str:
    if not is_serving(state):
        if is_starting(state):
            return ""
        return "go to Deploy: nothing is running"
    return "open the chosen request" if state.engine.records else "start the load"

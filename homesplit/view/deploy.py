"""The Deploy screen: what will change on each box, then how far each box is."""

from __future__ import annotations

from homesplit.core.deployment import Change, DeployedBox, Deployment, DeployPlan
from homesplit.core.events import Progress
from homesplit.core.state import LogLine, RunState
from homesplit.view import numbers
from homesplit.view.brought import lying_there
from homesplit.view.spans import EMPTY, Line, Lines, Span, bar, beside, clean, crop, fit, line, wrap

NOTHING_PLANNED = (
    "Nothing is deployed. Enter lists every change on each box first; "
    "nothing is written before you say yes."
)
_STATE_MARKS = {
    "running": ("●", "good"),
    "starting": ("◌", "warn"),
    "stopped": ("■", "dim"),
    "unreachable": ("✗", "bad"),
    "absent": ("–", "dim"),
}

LEAST_BAR = 4
_BESIDE = {"environment": "model"}
"""Steps that go on while another one has begun; every other step is over by then."""


def body(state: RunState, width: int) -> Lines:
    """The deployment as it stands: running boxes, progress, or the list of changes."""
    boxes = _boxes(state)
    head = () if _is_begun(state) else wrap(NOTHING_PLANNED, width, "dim")
    if not boxes:
        return head
    side = len(boxes) if width >= 76 else 1
    card = (width - 2 * (side - 1)) // side
    blocks = [_box(state, box, card) for box in boxes]
    gap = (EMPTY,) if head else ()
    if side == 1:
        return (*head, *gap, *(row for block in blocks for row in (*block, EMPTY)))
    return (*head, *gap, *beside([(block, card) for block in blocks]))


def _is_begun(state: RunState) -> bool:
    """Whether there is more to show than what lies on the boxes."""
    return bool(state.deploy_plan or state.deployment or state.stage("deploy").progress)


def _boxes(state: RunState) -> tuple[str, ...]:
    if state.deploy_plan is not None:
        return state.deploy_plan.boxes
    if state.deployment is not None:
        return tuple(box.box for box in state.deployment.boxes)
    told = dict.fromkeys(p.box for p in state.stage("deploy").progress if p.box)
    return tuple(told) or tuple(one.box for one in state.brought if one.folder or one.why)


def _box(state: RunState, box: str, width: int) -> Lines:
    rows: list[Line] = [_heading(state.deployment, box, width), EMPTY]
    progress = [p for p in state.stage("deploy").progress if p.box == box]
    if progress:
        done = state.stage("deploy").status == "done"
        rows.extend(
            _step(
                step,
                width,
                over=done or any(later.step != _BESIDE.get(step.step) for later in after),
            )
            for step, after in ((step, progress[n + 1 :]) for n, step in enumerate(progress))
        )
    elif state.deploy_plan is not None:
        rows.extend(_changes(state.deploy_plan, box, width))
    deployed = _deployed(state.deployment, box)
    if deployed is not None:
        rows.extend((EMPTY, *_running(deployed, width)))
    brought = next((one for one in state.brought if one.box == box), None)
    if brought is not None and not _is_at_work(state, deployed):
        rows.extend((*((EMPTY,) if rows[-1] else ()), *lying_there(brought, width)))
    return tuple(rows)


def _is_at_work(state: RunState, deployed: DeployedBox | None) -> bool:
    """Whether what lies on a box is in use, or is being changed."""
    running = deployed is not None and deployed.state == "running"
    return running or state.stage("deploy").status == "running"


def _deployed(deployment: Deployment | None, box: str) -> DeployedBox | None:
    if deployment is None:
        return None
    return next((one for one in deployment.boxes if one.box == box), None)


def _heading(deployment: Deployment | None, box: str, width: int) -> Line:
    deployed = _deployed(deployment, box)
    parts: list[Span] = [Span(clean(box), "strong")]
    if deployed is not None:
        mark, role = _STATE_MARKS[deployed.state]
        parts.extend((Span(f"  {mark} ", role), Span(deployed.state, role)))
        if deployment is not None and deployment.router_box == box:
            parts.append(Span("  router here", "dim"))
    return crop(tuple(parts), width)


def _changes(plan: DeployPlan, box: str, width: int) -> Lines:
    changes = [change for change in plan.changes if change.box == box]
    if not changes:
        return (line(Span("Nothing changes here.", "dim")),)
    root = next((one.what for one in changes if one.kind == "folder"), None)
    rows = [_change(change, root, width) for change in changes]
    needed = sum(change.bytes or 0 for change in changes if change.needed)
    rows.append(line(Span(f"{numbers.size(needed)} to write in all", "strong")))
    return tuple(rows)


def _within(what: str, root: str | None) -> str:
    """A path under the box's folder without the part that all of them share."""
    return what.removeprefix(f"{root}/") if root else what


def _change(change: Change, root: str | None, width: int) -> Line:
    mark = Span("+ ", "key") if change.needed else Span("✓ ", "good")
    size = numbers.size(change.bytes) if change.bytes is not None else ""
    name = fit(line(mark, Span(change.kind, "dim")), 14)
    what = line(Span(clean(_within(change.what, root)), "" if change.needed else "dim"))
    note = "" if change.needed else " there already"
    room = max(width - 14 - 10, 10)
    return crop(
        (*name, *fit((*what, Span(note, "dim")), room), *fit(line(size), 10, right=True)), width
    )


def _step(step: Progress, width: int, *, over: bool) -> Line:
    """One step; `over` ends one that has no total to reach."""
    finished = over if step.total is None else step.done >= step.total
    mark = Span("✓ ", "good") if finished else Span("● ", "warn")
    name = fit(line(mark, Span(clean(step.step))), 16)
    if step.total is None:
        return crop((*name, Span(clean(step.sentence), "dim")), width)
    share = step.done / step.total if step.total else 1.0
    left = f", {numbers.left(step.left_s)} left" if step.left_s and not finished else ""
    told = f" {_amount(step)}{left}"
    if len(told) + LEAST_BAR > width - 16:
        told = f" {_share(step)}{left}"
    cells = max(min(width - 16 - len(told), 16), 1)
    return crop((*name, *bar(share, cells, "key"), Span(told, "dim")), width)


def _amount(step: Progress) -> str:
    if step.unit in ("bytes", "B"):
        return f"{numbers.size(step.done)} of {numbers.size(step.total)}"
    return _share(step)


def _share(step: Progress) -> str:
    return f"{(step.done / step.total if step.total else 1) * 100:.0f} %"


def _running(box: DeployedBox, width: int) -> Lines:
    rows = [line(Span(clean(box.address), "dim"))]
    if box.fingerprint:
        rows.append(line(Span(f"fingerprint {box.fingerprint[:16]}", "dim")))
    if box.why:
        rows.extend(wrap(box.why, width, "warn", limit=3))
    return tuple(crop(row, width) for row in rows)


def summary(state: RunState, width: int) -> Lines:
    """Mode, model and where the API answers."""
    deployment, plan = state.deployment, state.deploy_plan
    if deployment is not None:
        parts = [
            Span(deployment.setting.mode, "strong"),
            Span(f"  {clean(deployment.model)}", ""),
            Span(f"  API on {deployment.url}" if deployment.url else "  API not forwarded", "dim"),
        ]
        return (crop(tuple(parts), width),)
    if plan is None:
        return ()
    head = line(
        Span("will deploy ", "dim"),
        Span(clean(plan.model), "strong"),
        Span(" as ", "dim"),
        Span(plan.setting.mode, "strong"),
        Span(f" on {' + '.join(plan.boxes)}", "dim"),
    )
    if state.stage("deploy").status == "running" and state.stage("deploy").progress:
        # They are to be read before it is begun.
        return (crop(head, width),)
    warned = tuple(row for warning in plan.warnings for row in _warned(warning, width))
    return (crop(head, width), *warned)


def _warned(text: str, width: int) -> Lines:
    """A warning behind its mark, as far to the right where it is broken."""
    rows = wrap(text, width - 2, "warn", limit=2)
    return tuple((Span("  " if n else "! ", "warn"), *row) for n, row in enumerate(rows))


def log(lines: tuple[LogLine, ...], height: int, width: int) -> Lines:
    """The newest lines of the log that fit."""
    if not lines:
        return (line(Span("The log is empty.", "dim")),)
    return tuple(_log_line(one, width) for one in lines[-max(height, 1) :])


def _log_line(one: LogLine, width: int) -> Line:
    where = f"{one.box}: " if one.box else ""
    role = "bad" if one.bad else ""
    mark = "✗ " if one.bad else "  "
    return crop(
        line(
            Span(f"{one.stage[:9]:<10}", "dim"),
            Span(mark, role),
            Span(clean(where), "strong"),
            Span(clean(one.text), role),
        ),
        width,
    )

"""A deployment and its plan as lines of text."""

from __future__ import annotations

from homesplit.core.deployment import Deployment, DeployPlan
from homesplit.view.numbers import size as size_text


def plan_lines(plan: DeployPlan) -> list[str]:
    """What `up` would change, box by box."""
    lines: list[str] = []
    for box in plan.boxes:
        lines.append(f"{box}:")
        for change in plan.changes:
            if change.box == box:
                mark = "+" if change.needed else "="
                size = f", {size_text(change.bytes)}" if change.bytes is not None else ""
                why = f" ({change.why})" if change.why else ""
                lines.append(f"  {mark} {change.kind}: {change.what}{size}{why}")
    needed = [change for change in plan.changes if change.needed]
    staying = sum(change.bytes or 0 for change in needed if change.stays)
    passing = sum(change.bytes or 0 for change in needed if not change.stays)
    lines += [f"note: {warning}" for warning in plan.warnings]
    if needed:
        more = f", {size_text(passing)} more while packages are installed" if passing else ""
        lines.append(
            f"{len(needed)} changes, about {size_text(staying)} on the boxes' disks{more}."
        )
    else:
        lines.append("Nothing to change.")
    return lines


def deployment_lines(deployment: Deployment) -> list[str]:
    """How a deployment stands."""
    setting = deployment.setting
    known = f"{deployment.model} in mode {setting.mode}, {setting.prefill} prefill"
    lines = [known if deployment.model else "What is deployed there can't be told:"]
    if deployment.held_by:
        lines.append(f"  {deployment.held_by}")
    for box in deployment.boxes:
        pid = f" (pid {box.pid})" if box.pid else ""
        at = f" at {box.address}" if box.address else ""
        lines.append(f"  {box.box} worker{at}: {box.state}{pid}{_why(box.why)}")
    if deployment.router_port:
        lines.append(
            f"  {deployment.router_box} router at 127.0.0.1:{deployment.router_port} there: "
            f"{deployment.router_state}{_why(deployment.router_why)}"
        )
    if deployment.api_address:
        host = deployment.api_address
        at = f"[{host}]" if ":" in host else host
        key = f" in {deployment.api_key_file}" if deployment.api_key_file else ""
        lines.append(f"  API also at http://{at}:{deployment.router_port}/v1, with the key{key}")
    return lines


def _why(reason: str | None) -> str:
    return f", {reason}" if reason else ""

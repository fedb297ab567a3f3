"""The lab's command line: `python -m tests.lab up|env|status|exec|check|fault|down`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.lab import delay, init
from tests.lab.check import check
from tests.lab.describe import environment, status_line
from tests.lab.errors import LabError
from tests.lab.faults import FAULTS, FaultRequest, inject
from tests.lab.init import BOX_PATH
from tests.lab.inside import replace_process
from tests.lab.lifecycle import down, up
from tests.lab.plan import ODD, UpOptions
from tests.lab.rates import PRESETS
from tests.lab.store import Lab

_DESCRIPTION = """\
Two boxes at home, on one Linux machine: each with its own network, files, user, SSH server and
mDNS announcements, on one switch with a desk. Nothing reaches outside."""

_LAB_HELP = "which lab; several may be up at once (default: home, or $HOMELAB)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 failed, 2 wrong usage)."""
    args = _parser().parse_args(argv)
    try:
        if os.geteuid() != 0:
            raise LabError("needs root: sudo python -m tests.lab …")
        return _run(args)
    except (LabError, OSError, subprocess.SubprocessError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    lab = Lab(args.lab)
    match args.command:
        case "_box":
            init.main(lab.load(), args.box)
        case "_delay":
            delay.main(lab)
        case "up":
            _up(lab, args)
        case "down":
            with lab.locked():
                down(lab)
            print(f"lab '{lab.name}' is down")
        case "env":
            print(json.dumps(environment(lab.load()), indent=1))
        case "status":
            for node in lab.load().nodes.values():
                print(status_line(lab, node))
        case "exec":
            _exec(lab, args)
        case "fault":
            _fault(lab, args)
        case _:
            return check(lab.load(), args.python, args.seconds, as_json=args.json)
    return 0


def _up(lab: Lab, args: argparse.Namespace) -> None:
    options = UpOptions(
        boxes=args.boxes,
        link=args.link,
        bandwidth=args.bw,
        latency=args.latency,
        jitter=args.jitter,
        loss=args.loss,
        cpu=args.cpu,
        cpu_period_us=args.cpu_period,
        memory=args.mem,
        user=args.user,
        odd=args.odd,
        mdns=args.mdns,
        subnet=args.subnet,
        congestion_control=args.cc,
        share=args.share,
        hide=args.hide,
        name_hosts=args.hosts,
        first_contact=args.first_contact,
        pam=args.pam,
        python=os.path.abspath(args.python) if args.python else sys.executable,
        replace=args.replace,
        keep_failed=args.keep_failed,
    )
    with lab.locked():
        up(lab, options)
    machines = ", ".join(f"{node.name} {node.address}" for node in lab.nodes.values())
    print(f"lab '{lab.name}' is up in {lab.state.up_s} s: {machines}")


def _exec(lab: Lab, args: argparse.Namespace) -> None:
    command: list[str] = args.words
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise LabError("exec BOX -- COMMAND")
    replace_process(lab.load(), args.box, command, root=args.root, host_files=args.host_fs)


def _fault(lab: Lab, args: argparse.Namespace) -> None:
    request = FaultRequest(
        box=args.box,
        what=args.what,
        value=args.value,
        for_s=args.seconds,
        match=args.match,
        signal_name=args.signal,
    )
    with lab.locked():
        killed = inject(lab.load(), request)
    if args.what == "kill-engine":
        print(json.dumps({"killed": killed}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=_DESCRIPTION)
    parser.add_argument("--lab", default=os.environ.get("HOMELAB", "home"), help=_LAB_HELP)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    # Without a default, or it would undo a --lab that stands before the command.
    named.add_argument("--lab", default=argparse.SUPPRESS, help=_LAB_HELP)
    _up_parser(commands.add_parser("up", parents=[named], help="make the lab and start it"))
    commands.add_parser("down", parents=[named], help="remove everything the lab made")
    commands.add_parser("env", parents=[named], help="addresses, keys and ways in, as JSON")
    commands.add_parser("status", parents=[named], help="one line for each machine")
    inside = commands.add_parser("exec", parents=[named], help="run a command on a machine")
    inside.add_argument("--root", action="store_true", help="as the machine's root")
    inside.add_argument(
        "--host-fs", action="store_true", help="its network and limits, this computer's files"
    )
    inside.add_argument("box", help="a box's name, or desk")
    inside.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    _fault_parser(commands.add_parser("fault", parents=[named], help="break something"))
    checks = commands.add_parser("check", parents=[named], help="verify everything end to end")
    checks.add_argument("--python", help="an interpreter with asyncssh, zeroconf and pyzmq")
    checks.add_argument("--seconds", type=int, default=4, help="length of each measurement")
    checks.add_argument("--json", action="store_true", help="one JSON document")
    commands.add_parser("_box").add_argument("box")
    commands.add_parser("_delay")
    return parser


def _up_parser(parser: argparse.ArgumentParser) -> None:
    def per_machine(option: str, value: str, text: str) -> None:
        parser.add_argument(option, action="append", default=[], metavar=value, help=text)

    announcer = "avahi" if shutil.which("avahi-daemon", path=BOX_PATH) else "builtin"
    defaults = UpOptions()
    parser.add_argument("--boxes", default=defaults.boxes, help="how many, or names: atlas,borea")
    per_machine("--link", "[BOX=]LINK", f"{', '.join(PRESETS)} or a rate: 500mbit")
    per_machine("--bw", "[BOX=]RATE", "rate alone, over a preset's")
    per_machine("--latency", "[BOX=]MS", "added round trip between two machines")
    per_machine("--jitter", "[BOX=]MS", "each crossing waits up to this much more")
    per_machine("--loss", "[BOX=]PERCENT", "packets lost, each direction")
    per_machine("--cpu", "BOX=N[@CPUS]", "1, 0.5, 0.5@1, 2@0-1")
    parser.add_argument(
        "--cpu-period",
        type=int,
        default=defaults.cpu_period_us,
        metavar="US",
        help="microseconds over which --cpu is counted (default %(default)s)",
    )
    per_machine("--mem", "BOX=GIB", "memory limit, shown in /proc/meminfo too")
    per_machine("--user", "[BOX=]NAME", "login name (default owner)")
    parser.add_argument(
        "--odd", nargs="?", const="all", help=f"odd machines too: all, or some of {','.join(ODD)}"
    )
    parser.add_argument("--mdns", choices=["avahi", "builtin"], default=announcer)
    parser.add_argument("--subnet", default=defaults.subnet, help="a /24 (default %(default)s)")
    parser.add_argument(
        "--cc",
        default=defaults.congestion_control,
        help="TCP congestion control (default %(default)s)",
    )
    per_machine("--share", "PATH[:ro]", "show a path of this computer in every box")
    per_machine("--hide", "PATH", "hide a folder of this computer from the boxes")
    parser.add_argument("--hosts", action="store_true", help="name all in every /etc/hosts")
    parser.add_argument(
        "--first-contact", action="store_true", help="leave the desk's known_hosts out"
    )
    parser.add_argument("--pam", action="store_true", help="UsePAM yes")
    parser.add_argument("--python", help="interpreter that `check` uses on the desk")
    parser.add_argument("--replace", action="store_true", help="take one that is up down first")
    parser.add_argument("--keep-failed", action="store_true", help=argparse.SUPPRESS)


def _fault_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("box")
    parser.add_argument("what", choices=FAULTS, metavar="WHAT", help=", ".join(FAULTS))
    parser.add_argument("value", nargs="?", help="of loss (%%), latency (ms), rate (or normal)")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=float,
        metavar="SECONDS",
        help="undo after so long; of reboot: time off",
    )
    parser.add_argument("--match", help="kill-engine: only command lines this regex finds")
    parser.add_argument("--signal", default="KILL", help="kill-engine: KILL, TERM, STOP, …")

"""`check`: verifies a lab that is up against what was asked of it, end to end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

from tests.lab import measure
from tests.lab.describe import environment
from tests.lab.errors import LabError
from tests.lab.files import get
from tests.lab.inside import output, run_inside
from tests.lab.processes import TOOL_PATH, run_tool
from tests.lab.rates import goodput_bits_per_s
from tests.lab.records import DESK
from tests.lab.shaping import path_delay_s, path_loss
from tests.lab.store import CHECKOUT, Lab

_RATE_TOLERANCE = 0.10
_CPU_TOLERANCE = 0.15
_FAST_BITS_PER_S = 5e9
_MOST_PROCESSES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at; `ok` is None for what could not be judged here."""

    ok: bool | None
    what: str
    detail: str = ""
    bits_per_s: float | None = None


class _Report:
    """Collects findings and shows each as it comes."""

    def __init__(self, *, quiet: bool) -> None:
        self.findings: list[Finding] = []
        self._quiet = quiet

    def say(self, ok: bool | None, what: str, detail: str = "", bits: float | None = None) -> None:
        finding = Finding(ok=ok, what=what, detail=detail, bits_per_s=bits)
        self.findings.append(finding)
        if not self._quiet:
            verdict = "skip" if ok is None else "PASS" if ok else "FAIL"
            print(f"{verdict}  {what}  {detail}", flush=True)

    def attempt(self, what: str, look: Callable[[], None]) -> None:
        """One look; a tool that fails is a failed finding, not the end of the report."""
        try:
            look()
        except LabError as error:
            self.say(False, what, str(error))

    @property
    def failed(self) -> int:
        return sum(finding.ok is False for finding in self.findings)


def check(lab: Lab, python: str | None, seconds: int, *, as_json: bool) -> int:
    """Look at everything; returns 0 when nothing is wrong, else 1.

    `python` has asyncssh, zeroconf and pyzmq; what it lacks is passed over and said so.
    """
    interpreter = os.path.abspath(python) if python else lab.state.settings.python
    report = _Report(quiet=as_json)
    looks = _Looks(lab, report, interpreter, seconds)
    for what, look in looks.all():
        report.attempt(what, look)
    if as_json:
        findings = [asdict(finding) for finding in report.findings]
        print(json.dumps({"ok": not report.failed, "checks": findings}, indent=1))
    else:
        passed = sum(finding.ok is True for finding in report.findings)
        print(f"{passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


class _Looks:
    """Each method looks at one side of a lab and says what it found."""

    def __init__(self, lab: Lab, report: _Report, python: str, seconds: int) -> None:
        self._lab = lab
        self._say = report.say
        self._python = python
        self._seconds = seconds
        self._boxes = [node.name for node in lab.nodes.values() if node.kind == "box"]
        self._pair = [*self._boxes, DESK][:2]

    def all(self) -> list[tuple[str, Callable[[], None]]]:
        """Every look with its name, in the order of the report."""
        return [
            ("identity", self.identities),
            ("ssh", self.openssh),
            ("asyncssh", self.asyncssh),
            ("mDNS", self.mdns),
            (
                "load",
                lambda: self._say(True, "load of this computer", get("/proc/loadavg").strip()),
            ),
            ("round trip", self.round_trip),
            ("iperf3", self.iperf),
            ("pyzmq", self.zmq),
            ("compute", self.compute),
            ("memory", self.memory),
        ]

    def identities(self) -> None:
        """Names, homes, few processes, no checkout; numbers and host keys differ."""
        ask = (
            "hostname; cat /etc/hostname; echo $HOME; cat /etc/machine-id; "
            f"ls -d /proc/[0-9]* | wc -l; ls {CHECKOUT} 2>/dev/null | wc -l"
        )
        env, numbers = environment(self._lab), set[str]()
        for box in self._boxes:
            name, file, home, number, processes, visible = output(
                self._lab, box, ["sh", "-c", ask]
            ).splitlines()
            own = name == file == box and int(processes) < _MOST_PROCESSES and visible == "0"
            self._say(own, f"identity {box}", f"{name} HOME={home} {processes} processes")
            numbers |= {number, env["boxes"][box]["host_key"]}
        self._say(len(numbers) == 2 * len(self._boxes), "machine ids and host keys differ")

    def openssh(self) -> None:
        """The OpenSSH client logs in to each box with its host key known."""
        strict = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        config = str(self._lab.keys / "ssh_config")
        for box in self._boxes:
            command = ["ssh", "-F", config, *strict, box, "hostname"]
            done = run_inside(self._lab, DESK, command, timeout_s=20)
            self._say(done.stdout.strip() == box, f"ssh {box}", done.stderr.strip())

    def asyncssh(self) -> None:
        """asyncssh logs in, and is refused where it should be."""
        if not self._has("asyncssh"):
            return
        command = [self._python, str(measure.SCRIPTS / "ssh_login.py")]
        told = output(self._lab, DESK, command, text=json.dumps(environment(self._lab)))
        for box, answer in cast("dict[str, dict[str, Any]]", json.loads(told)).items():
            node = self._lab.node(box)
            if node.kind == "refuse":
                refused = answer.get("error") == "PermissionDenied"
                self._say(refused, f"asyncssh {box} refuses", str(answer.get("error")))
            else:
                right = answer["ok"] and answer["answer"][:3] == [box, box, node.home]
                self._say(right, f"asyncssh {box}", str(answer.get("answer", answer.get("error"))))

    def mdns(self) -> None:
        """zeroconf on the desk sees each box, the printer and the odd names."""
        if not self._has("zeroconf"):
            return
        nodes = self._lab.nodes.values()
        wanted = [node.name for node in nodes if node.kind in ("box", "refuse")]
        told = measure.seen_by_mdns(self._lab, self._python, wanted)
        services: list[dict[str, Any]] = told["services"]
        ssh = {each["name"].split(".")[0]: each for each in services if "_ssh." in each["type"]}
        for name in wanted:
            addresses = ssh[name]["addresses"] if name in ssh else []
            good = self._lab.node(name).address in addresses and ssh[name]["port"] == 22
            self._say(good, f"mDNS {name}", f"{addresses}, all seen in {told['found_s']} s")
        for node in nodes:
            if node.kind == "printer":
                seen = any(each["type"].startswith("_ipp") for each in services)
                self._say(seen, "mDNS printer")
            if node.kind == "mdns":
                odd = len(set(ssh) - set(wanted))
                self._say(odd >= 5, "mDNS odd records", f"{odd} odd names reach the browser")

    def round_trip(self) -> None:
        """A round trip takes what was asked, and little more."""
        first, second = self._pair
        if not self._tool("ping"):
            return
        fixed_s, extra_s = path_delay_s(self._lab, first, second)
        asked_ms = (fixed_s + extra_s / 2) * 2000
        got_ms = measure.round_trip_ms(self._lab, first, second)
        good = asked_ms - 0.5 <= got_ms <= asked_ms * 1.15 + 2.0
        detail = f"{got_ms:.2f} ms, asked {asked_ms:.2f} ms"
        self._say(good, f"round trip {first}-{second}", detail)

    def iperf(self) -> None:
        """The link carries what was asked, both ways."""
        if self._tool("iperf3"):
            first, second = self._pair
            self._one_way(first, second)
            self._one_way(second, first)

    def _one_way(self, sender: str, receiver: str) -> None:
        lab = self._lab
        rates = [lab.node(name).rate_bits_per_s for name in (sender, receiver)]
        asked = min((goodput_bits_per_s(rate) for rate in rates if rate), default=None)
        got = measure.iperf_bits_per_s(lab, sender, receiver, seconds=self._seconds)
        what, told = f"iperf3 {sender}>{receiver}", f"{got / 1e9:.3f} Gbit/s"
        loss = path_loss(lab, sender, receiver)
        if asked is None or loss:
            reason = f"loss {loss * 100:.2f} %" if loss else "not shaped"
            self._say(None, what, f"{told}, {reason}", got)
            return
        good: bool | None = abs(got / asked - 1) <= _RATE_TOLERANCE
        if not good and asked > _FAST_BITS_PER_S and got < asked:
            # One stream may be all that a core can do; even four may be all that this computer can.
            got = measure.iperf_bits_per_s(lab, sender, receiver, seconds=self._seconds, streams=4)
            good = abs(got / asked - 1) <= _RATE_TOLERANCE or None
            told = f"{got / 1e9:.3f} Gbit/s with 4 streams"
            told += "" if good else ": this computer's cores are the limit"
        self._say(good, what, f"{told}, asked {asked / 1e9:.3f} ({got / asked - 1:+.1%})", got)

    def zmq(self) -> None:
        """ZeroMQ gets through; its rate is shown, not judged."""
        if self._has("zmq"):
            first, second = self._pair
            got = measure.zmq_bits_per_s(self._lab, first, second, self._python)
            self._say(got > 0, f"pyzmq {first}>{second}", f"{got / 1e9:.3f} Gbit/s", got)

    def compute(self) -> None:
        """A box with less CPU counts less far than the fastest, by as much as was asked."""
        busy = os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 4
        counts = {box: measure.cpu_counts(self._lab, box) for box in self._boxes}
        limits = {box: self._lab.node(box).cpu for box in self._boxes}
        shares = {box: min(1.0, limit.share) if limit else 1.0 for box, limit in limits.items()}
        for box, limit in limits.items():
            if limit:
                got = counts[box] / max(counts.values())
                asked = shares[box] / max(shares.values())
                good: bool | None = abs(got - asked) <= _CPU_TOLERANCE
                told = f"{got:.2f} of the fastest, asked {asked:.2f}"
                if not good and busy:
                    good, told = None, f"{told}: other work on this computer is in the way"
                self._say(good, f"compute {box}", told)

    def memory(self) -> None:
        """A box with a memory limit believes to have just that."""
        for box in self._boxes:
            asked = self._lab.node(box).memory_gib
            if asked:
                got = measure.memory_gib(self._lab, box)
                self._say(abs(got - asked) < 0.01, f"memory {box}", f"{got:.2f} GiB seen")

    def _has(self, module: str) -> bool:
        done = run_tool([self._python, "-c", f"import {module}"], check=False)
        if done.returncode:
            self._say(None, module, f"not in {self._python}")
        return done.returncode == 0

    def _tool(self, name: str) -> bool:
        there = shutil.which(name, path=TOOL_PATH) is not None
        if not there:
            self._say(None, name, "not installed")
        return there

"""Engine processes on a box: started to outlive the login, known by pid and start time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Literal

from homesplit.errors import DeployError
from homesplit.io.box import Box
from homesplit.io.box_facts import USER_MANAGER
from homesplit.io.remote_root import must
from homesplit.io.said import count

Role = Literal["worker", "router"]
Life = Literal["running", "crashed", "rebooted", "none"]
_ENDS: tuple[Life, ...] = ("running", "crashed", "rebooted")
ROLES: tuple[Role, ...] = ("worker", "router")

_READY_S = 600.0
_ROUND_S = 15
"""A look at what is started lasts so long, or a few times that on a box with much to do."""
_ROUND_LIMIT_S = 120.0
_PID_S = 12
"""Within this time a started process has noted its pid, or it never started."""
_STOP_S = 12
_GUARD_S = 30
"""A started process that is not kept, and hears so long nothing of the desk, ends."""

WHO = r"""
token() {
  if [ -r "/proc/$1/stat" ]; then
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    set -- ${stat##*) }
    [ "$1" = Z ] && return 1
    shift 19
    printf '%s %s' "$(cat /proc/sys/kernel/random/boot_id)" "$1"
  else
    lstart=$(ps -o lstart= -p "$1" 2>/dev/null) && [ -n "$lstart" ] && printf 'lstart %s' "$lstart"
  fi
}
alive() {
  [ -f "$run/$1.pid" ] || return 1
  { read -r pid; read -r was; } <"$run/$1.pid"
  now=$(token "$pid") && [ -n "$now" ] && [ "$now" = "$was" ]
}
"""

_LAUNCH = (
    r"""#!/bin/sh
# Starts one engine process of homesplit and notes its pid and start time.
role=$1
umask 077
cd "$run" || exit 1
"""
    + WHO
    + r"""
printf '%s\n%s\n' "$$" "$(token $$)" >"$role.pid.new" && mv -f "$role.pid.new" "$role.pid"
guard() {
  n=0; seen=
  while [ ! -f "$role.kept" ] && alive "$role" && [ "$pid" = $$ ]; do
    said=$(cat desk 2>/dev/null)
    if [ "$said" = "$seen" ]; then n=$((n + 1)); else n=0; seen=$said; fi
    if [ $n -ge GUARD_ROUNDS ]; then
      trap '' TERM
      echo "ended again: the desk was lost before all was started" >>"$role.log"
      kill -s TERM -- "-$$" 2>/dev/null || kill -TERM $$ 2>/dev/null
      sleep 5; alive "$role" && kill -KILL $$ 2>/dev/null
      rm -f "$role.pid" "$role.ready" "$role.keys"
      return
    fi
    sleep 2
  done
}
(guard </dev/null >/dev/null 2>&1 &)
exec "$python" -m homesplit_engine "$role" --supervised --config "$run/$role.json" \
  </dev/null >>"$run/$role.log" 2>&1
"""
)

_START = r"""
cd "$run" || exit 1
rm -f "$role.ready" "$role.pid" "$role.kept"
if [ "$(wc -c <"$role.log" 2>/dev/null || echo 0)" -gt 5000000 ]; then
  mv -f "$role.log" "$role.log.1"
fi
echo "--- started $(date)" >>"$role.log"
if [ "$unit" = yes ]; then
  # One that still ends would bar the new one of its name.
  systemctl --user kill --signal=KILL "homesplit-$role.service" >/dev/null 2>&1
  systemctl --user stop "homesplit-$role.service" >/dev/null 2>&1
  systemd-run --user --quiet --collect --unit="homesplit-$role" \
    /bin/sh "$run/launch" "$role" 2>>"$role.log" && exit 0
fi
"$python" -I -c '
import os, sys
told, tell = os.pipe()
if os.fork():
    os.close(tell)
    os.read(told, 1)
    os._exit(0)
os.setsid()
os.execv("/bin/sh", ["/bin/sh", *sys.argv[1:]])
' "$run/launch" "$role" </dev/null >>"$role.log" 2>&1
"""

_WAIT = r"""
n=0
while [ $n -lt $ROUNDS ]; do
  if [ -s "$run/$role.ready" ] && alive "$role"; then cat "$run/$role.ready"; exit 0; fi
  if [ -f "$run/$role.pid" ] && ! alive "$role"; then
    tail -n 25 "$run/$role.log" 2>/dev/null; exit 9
  fi
  if [ ! -f "$run/$role.pid" ] && [ $n -ge $PATIENCE ]; then
    tail -n 1 "$run/$role.log" 2>/dev/null; exit 9
  fi
  n=$((n + 1)); sleep 0.25
done
exit 8
"""

_STATE = r"""
for role in worker router; do
  if alive "$role"; then echo "$role running $pid"
  elif [ -f "$run/$role.pid" ]; then
    boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
    case "$was" in "$boot "*|lstart*) ended=crashed ;; *) ended=rebooted ;; esac
    echo "$role $ended $pid"
    grep -v '^ *$' "$run/$role.log" 2>/dev/null | tail -n 1 | sed "s/^/$role said /"
  else echo "$role none"; fi
  [ -f "$run/$role.ready" ] && printf '%s ready %s\n' "$role" "$(tr -d '\n' <"$run/$role.ready")"
done
exit 0
"""

_STOP = r"""
none_alive() { for role in $ROLES; do if alive "$role"; then return 1; fi; done; }
for role in $ROLES; do
  if alive "$role"; then kill -s TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null; fi
done
n=0
while [ $n -lt $ROUNDS ]; do
  if none_alive; then break; fi
  n=$((n + 1)); sleep 0.25
done
left=0
for role in $ROLES; do
  if alive "$role"; then kill -s KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid"; sleep 0.25; fi
  if alive "$role"; then left=1; else rm -f "$run/$role.pid" "$run/$role.ready"; fi
done
exit $left
"""


_CLEAR = r"""
for file in * .[!.]*; do
  case "$file" in *.log|*.log.1) ;; *) rm -rf "./$file" || exit 1 ;; esac
done
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where on the box the parts lie that a process is started from."""

    root: str
    env: str
    engine: str
    unit: bool = False

    @property
    def run(self) -> str:
        """The folder of settings, keys, logs and pid files."""
        return f"{self.root}/run"

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return f"{self.root}/env/{self.env}/bin/python"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One engine process as the box tells it."""

    state: Life = "none"
    pid: int | None = None
    said: str | None = None
    """The log's last line, of one that has ended."""
    ready: str | None = None
    """The ready file's JSON."""


async def write_launcher(box: Box, place: EnginePlace) -> None:
    """Write the script that every start goes through."""
    cache = f"{place.root}/cache"
    settings = {
        "run": place.run,
        "python": place.python,
        "PYTHONPATH": f"{place.root}/engine/{place.engine}",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": cache,
        "HF_HOME": f"{cache}/huggingface",
        "HF_HUB_OFFLINE": "1",
        # Else torch makes one in /tmp, which would outlive the deployment.
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor",
    }
    lines = [f"{key}={quote(value)}; export {key}" for key, value in settings.items()]
    head, rest = _LAUNCH.replace("GUARD_ROUNDS", str(_GUARD_S // 2)).split("\n", 1)
    script = "\n".join([head, *lines, rest])
    await box.write(f"{place.run}/launch", script.encode(), mode=0o700)


async def start(box: Box, place: EnginePlace, role: Role) -> None:
    """Start one process; it lives on when the connection ends."""
    unit = "yes" if place.unit else "no"
    head = f"{_head(place.run)}python={quote(place.python)}; role={role}; unit={unit}\n"
    must(await box.run(head + USER_MANAGER + _START, timeout_s=60.0), box, f"start the {role}")


async def wait_ready(box: Box, place: EnginePlace, role: Role) -> str:
    """The ready file's JSON once it is there; raises DeployError with the log's last words."""
    rounds = f"ROUNDS={_ROUND_S * 4}; PATIENCE={round(_PID_S * 4)}"
    script = f"{_head(place.run)}role={role}; {rounds}\n{WHO}{_WAIT}"
    for _ in range(round(_READY_S / _ROUND_S)):
        output = await box.run(script, timeout_s=_ROUND_LIMIT_S)
        if output.ok:
            return output.stdout
        if output.code == 9:
            raise DeployError(
                f"the {role} ended at once: {last_words(output.stdout)}",
                where=box.name,
                do_next=f"Its log is {place.run}/{role}.log on that box.",
            )
    raise DeployError(
        f"the {role} was not ready within {_READY_S:.0f} s.",
        where=box.name,
        do_next=f"Its log is {place.run}/{role}.log on that box.",
    )


async def still_here(box: Box, root: str) -> None:
    """Tell the processes being started that this desk still looks after them."""
    await box.run(f'{_head(f"{root}/run")}cd "$run" && echo {secrets.token_hex(8)} >desk')


async def keep(box: Box, root: str) -> None:
    """All is started: the processes live on without us."""
    script = _head(f"{root}/run") + 'cd "$run" && : >worker.kept && : >router.kept'
    must(await box.run(script), box, "mark the engine as started")


async def states(box: Box, root: str) -> dict[Role, ProcessState]:
    """Both processes as they are now."""
    output = await box.run(f"{_head(f'{root}/run')}{WHO}{_STATE}")
    return parse_states(output.stdout)


def parse_states(text: str) -> dict[Role, ProcessState]:
    """The states in the script's output."""
    found: dict[Role, ProcessState] = {}
    for role in ROLES:
        words: dict[str, str] = {}
        for line in text.splitlines():
            name, _, rest = line.partition(" ")
            if name == role:
                key, _, value = rest.partition(" ")
                words[key] = value
        state = _life(words)
        found[role] = ProcessState(
            state=state,
            pid=count(words.get(state, "")),
            said=words.get("said"),
            ready=words.get("ready"),
        )
    return found


async def stop(box: Box, root: str, roles: Sequence[Role] = ()) -> None:
    """End these processes, else all that is ours; by force when they don't end.

    Raises DeployError when one lives on.
    """
    which = " ".join(roles) or "router worker maker"
    script = f"{_head(f'{root}/run')}ROUNDS={_STOP_S * 4}; ROLES='{which}'\n{WHO}{_STOP}"
    output = await box.run(script, timeout_s=_ROUND_LIMIT_S)
    if not output.ok:
        raise DeployError(
            "an engine process can't be ended.",
            where=box.name,
            do_next=f"Its pid stands in {root}/run/*.pid on that box.",
        )


async def clear_run(box: Box, root: str) -> None:
    """Delete settings, keys and the owner's name; the logs stay for whoever asks why."""
    script = f"cd {quote(f'{root}/run')} 2>/dev/null || exit 0\n{_CLEAR}"
    must(await box.run(script), box, "empty its run folder")


def last_words(log: str) -> str:
    """The line of a log that tells most: the last one, without a traceback's indentation."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "its log is empty"


def _head(run: str) -> str:
    return f"umask 077; run={quote(run)}\n"


def _life(words: dict[str, str]) -> Life:
    for end in _ENDS:
        if end in words:
            return end
    return "none"

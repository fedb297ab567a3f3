"""The one folder on a box: made, claimed by a desk, given back, removed without a trace."""

from __future__ import annotations

from shlex import quote

import msgspec
from msgspec import Struct

from homesplit.errors import DeployError
from homesplit.io.box import Box
from homesplit.io.box_facts import ROOT
from homesplit.io.running import Output

_DEADLINE_S = 60.0
DELETE_S = 1800.0
"""An environment has tens of thousands of files, and a busy memory card deletes few a second."""
_HELD_CODE = 7

_ENTER = f'set -u; umask 077; cd "$HOME" || exit 1; root="$HOME/{ROOT}"\n'

_CLAIM = r"""
made=""
path="$HOME"
for part in .local share homesplit; do
  path="$path/$part"
  [ -d "$path" ] || { mkdir "$path" || exit 1; made="$made$path
"; }
done
mkdir -p "$root/run" || exit 1
[ -f "$root/made-parents" ] || printf '%s' "$made" >"$root/made-parents"
chmod 700 "$root" "$root/run"
new=$(cat)
if (set -C; printf '%s' "$new" >"$root/run/owner.json") 2>/dev/null; then exit 0; fi
if [ "$TAKE" = yes ] || grep -qF "$DESK" "$root/run/owner.json"; then
  printf '%s' "$new" >"$root/run/owner.json"; exit $?
fi
cat "$root/run/owner.json"; exit 7
"""

_REMOVE = r"""
[ -d "$root" ] || exit 0
made=$(cat "$root/made-parents" 2>/dev/null)
# The note of the parents goes last: an interrupted removal can still be finished.
find "$root" -mindepth 1 -maxdepth 1 ! -name made-parents -exec rm -rf {} + 2>/dev/null
# What was ended just now may still write for a moment.
n=0
until rm -rf "$root" 2>/dev/null; do
  [ $n -lt 20 ] || { rm -rf "$root"; exit 1; }
  n=$((n + 1)); chmod -R u+rwX "$root" 2>/dev/null; sleep 0.25
done
for parent in "$HOME/.local/share/homesplit" "$HOME/.local/share" "$HOME/.local"; do
  case "
$made
" in *"
$parent
"*) rmdir "$parent" 2>/dev/null ;; esac
done
exit 0
"""


class Owner(Struct, frozen=True, kw_only=True):
    """Who holds a box: a desk by its random name, and how a person knows it."""

    desk: str
    who: str
    deployment: str
    since: str


def read_owner(text: str | None) -> Owner | None:
    """The owner file's content; None when there is none or it is broken."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Owner)
    except msgspec.MsgspecError:
        return None


def held_by_other(owner: Owner, box: str) -> DeployError:
    """The error that tells who holds the box."""
    return DeployError(
        f"it is {holds(owner)}.",
        where=box,
        do_next=f"Look on with `homesplit status {box}`, ask them to run `homesplit down`, or take "
        "it over with --take-over.",
    )


def holds(owner: Owner) -> str:
    """Who holds a box, in words."""
    return f"held by {owner.who} since {owner.since} (deployment {owner.deployment})"


async def owner_of(box: Box, root: str) -> Owner | None:
    """Whose name is on the box now."""
    raw = await box.read(f"{root}/run/owner.json")
    return read_owner(raw.decode(errors="replace")) if raw else None


async def claim(box: Box, owner: Owner, *, take_over: bool) -> None:
    """Make the folder and put our name on it; raises DeployError when another desk holds it."""
    script = f"{_ENTER}TAKE={'yes' if take_over else 'no'}; DESK={quote(owner.desk)}\n{_CLAIM}"
    output = await box.run(script, input=msgspec.json.encode(owner), timeout_s=_DEADLINE_S)
    if output.code == _HELD_CODE:
        raise held_by_other(read_owner(output.stdout) or _unknown_owner(), box.name)
    must(output, box, "make its folder in the home of that user")


async def remove_root(box: Box) -> None:
    """Delete the folder and the parents that were made for it."""
    output = await box.run(_ENTER + _REMOVE, timeout_s=DELETE_S)
    must(output, box, f"remove ~/{ROOT}")


def must(output: Output, box: Box, what: str) -> None:
    """Raise DeployError with the last words of a script that failed."""
    if output.ok:
        return
    lines = output.stderr.splitlines() or [f"exit status {output.code}"]
    full = any("No space left" in line for line in lines)
    raise DeployError(
        f"can't {what}: {lines[-1]}",
        where=box.name,
        do_next="Free some space there, then repeat the command: it goes on where it stopped."
        if full
        else "See what is said above; repeating the command goes on where it stopped.",
    )


def _unknown_owner() -> Owner:
    return Owner(desk="?", who="another desk", deployment="?", since="an unknown time")

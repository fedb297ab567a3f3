"""What lies in the one folder on a box: one `sh` script, one parser; changes nothing."""

from __future__ import annotations

from homesplit.core.brought import Brought, Piece, PieceKind
from homesplit.io.box import Box
from homesplit.io.box_facts import ROOT, WHOLE
from homesplit.io.remote_process import WHO
from homesplit.io.said import count

_DEADLINE_S = 60.0

_KINDS: dict[str, PieceKind] = {
    "env": "environment",
    "engine": "engine",
    "models": "weights",
    "wheelhouse": "packages",
    "uv-cache": "cache",
    "cache": "cache",
    "python": "Python",
    "bin": "uv",
    "run": "settings and logs",
}
"""What each folder below the one on the box holds."""

_LOOK = r"""
size() { du -sk "$1" 2>/dev/null | awk '{print $1}'; }
[ -d "$root" ] || exit 0
printf 'root=%s\ntotal=%s\n' "$root" "$(size "$root")"
alive maker && echo installing=yes
for kind in env engine models; do
  for folder in "$root/$kind"/*; do
    [ -d "$folder" ] || continue
    state=half; whole "$folder" && state=whole
    printf 'piece=%s|%s|%s|%s\n' "$kind" "$state" "$(size "$folder")" "${folder##*/}"
  done
done
for kind in wheelhouse uv-cache cache python bin run; do
  [ -d "$root/$kind" ] && printf 'piece=%s|whole|%s|\n' "$kind" "$(size "$root/$kind")"
done
exit 0
"""

SCRIPT = f'export LC_ALL=C; root="$HOME/{ROOT}"; run="$root/run"\n{WHO}{WHOLE}{_LOOK}'


async def read_contents(box: Box) -> Brought:
    """Ask a box; raises UnreachableError."""
    output = await box.run(SCRIPT, timeout_s=_DEADLINE_S)
    return parse_contents(output.stdout, box.name)


def parse_contents(text: str, box: str) -> Brought:
    """What the script printed; nothing at all is a box without the folder."""
    lines = [line.partition("=") for line in text.splitlines()]
    one = {key: value for key, _, value in lines}
    pieces = (_piece(value) for key, _, value in lines if key == "piece")
    return Brought(
        box=box,
        folder=one.get("root"),
        bytes=_bytes(one.get("total", "")),
        pieces=tuple(piece for piece in pieces if piece),
        installing=one.get("installing") == "yes",
    )


def _piece(text: str) -> Piece | None:
    kind, state, size, name = [*text.split("|", 3), "", "", ""][:4]
    if kind not in _KINDS:
        return None
    return Piece(kind=_KINDS[kind], name=name, bytes=_bytes(size), whole=state == "whole")


def _bytes(text: str) -> int | None:
    size = count(text)
    return None if size is None else size * 1024

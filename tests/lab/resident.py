"""What a process holds in memory, by kind: so that growth has a name (Linux)."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Resident(msgspec.Struct, frozen=True, kw_only=True):
    """Resident bytes of one process."""

    made_code: int
    """Machine code that was made at run time: oneDNN's kernels, one for each shape met."""
    data: int
    """Heaps, stacks and everything else that no file stands behind: the KV pool is in it."""
    files: int
    """Pages of programs, libraries and mapped weights."""

    @property
    def whole(self) -> int:
        """All of it."""
        return self.made_code + self.data + self.files


def resident(pid: int, proc: Path = Path("/proc")) -> Resident:
    """What a process holds now, read from its `smaps`; raises OSError when it is gone."""
    made_code = data = files = 0
    permissions, path, inode = "", "", "0"
    for line in (proc / str(pid) / "smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            permissions, inode, path = words[1], words[4], " ".join(words[5:])
        elif words[0] == "Rss:":
            size = int(words[1]) * 1024
            if inode != "0":
                files += size
            elif "x" in permissions and not path.startswith("[v"):
                made_code += size
            else:
                data += size
    return Resident(made_code=made_code, data=data, files=files)

"""Where a lab's files are, its lock, and its state on disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from tests.lab.errors import LabError
from tests.lab.files import put
from tests.lab.processes import start_time
from tests.lab.records import LabState, Node, from_json, to_json

CHECKOUT = Path(__file__).resolve().parents[2]
"""The repository; boxes see none of it."""

ENTRY = Path(__file__).resolve().with_name("__main__.py")
"""The lab's program, for starting parts of it from anywhere."""

STATE_ROOT = Path(
    os.environ.get("HOMELAB_STATE", os.path.join(tempfile.gettempdir(), "homesplit-lab"))
)


class Lab:
    """One lab by name: its folder and, once loaded, its state."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,11}", name):
            raise LabError("a lab's name is 1 to 12 of a-z and 0-9, a letter first")
        self.name = name
        self.folder = STATE_ROOT / name
        self.state = LabState(lab=name)
        self._file = self.folder / "state.json"
        self._names = STATE_ROOT / f".{name}.made"

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Keep a second command off the same lab."""
        path = STATE_ROOT / f".{self.name}.lock"
        while True:
            STATE_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
            with path.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Whoever held it may have removed the lab, and the lock's file with it.
                if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                    continue
                try:
                    yield
                finally:
                    if not self.traces:
                        path.unlink()
                return

    @property
    def traces(self) -> bool:
        """Whether files of this lab are left from before."""
        return self._file.exists() or self._names.exists()

    def load(self) -> Lab:
        """Read the state of a lab that is up."""
        if not self.load_leftovers():
            raise LabError(
                f"no lab '{self.name}' is up; start one: python -m tests.lab --lab {self.name} up"
            )
        return self

    def load_leftovers(self) -> bool:
        """Read what state there is; says whether it was whole.

        A lost state file leaves the names of what was made, which is enough to remove it.
        """
        try:
            self.state = from_json(cast("dict[str, Any]", json.loads(self._file.read_text())))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.state = LabState(lab=self.name)
            with contextlib.suppress(OSError, ValueError):
                names = cast("dict[str, list[str]]", json.loads(self._names.read_text()))
                self.state.namespaces = names.get("namespaces", [])
                self.state.etc_folders = names.get("etc_folders", [])
            return False
        return True

    def save(self) -> None:
        """Write the state, whole or not at all."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(to_json(self.state), indent=1))
        new.replace(self._file)

    def note_names(self) -> None:
        """Keep apart the names of what will be made, so that a crash can be cleaned up."""
        names = {"namespaces": self.state.namespaces, "etc_folders": self.state.etc_folders}
        put(self._names, json.dumps(names))

    def forget(self) -> None:
        """Forget a lab that has been removed."""
        self._names.unlink(missing_ok=True)
        self.state = LabState(lab=self.name)

    @property
    def nodes(self) -> dict[str, Node]:
        """All machines by name, the desk included."""
        return self.state.nodes

    def node(self, name: str) -> Node:
        """One machine; raises LabError with the names there are."""
        if name not in self.nodes:
            raise LabError(f"no machine {name!r} in lab '{self.name}': {', '.join(self.nodes)}")
        return self.nodes[name]

    def machines(self) -> list[Node]:
        """Those that people can log in to."""
        return [node for node in self.nodes.values() if node.full]

    def node_folder(self, name: str) -> Path:
        """A machine's own files on this computer."""
        return self.folder / name

    @property
    def keys(self) -> Path:
        """The owner's key pair, known_hosts and ssh_config."""
        return self.folder / "keys"

    def alive(self, name: str) -> bool:
        """Whether a machine's init still runs."""
        node = self.nodes[name]
        return node.pid is not None and start_time(node.pid) == node.started

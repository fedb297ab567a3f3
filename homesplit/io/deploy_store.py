"""What this desk remembers of its deployment: one file, and the secrets beside it (mode 0600)."""

from __future__ import annotations

import getpass
import secrets
import shutil
import socket
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from homesplit_engine.config import ConfigError, Keys
from homesplit_engine.keys import make_keys, read_keys, write_keys
from msgspec import Struct

from homesplit.core.deployment import Deployment
from homesplit.errors import DeployError
from homesplit.io.atomic import write_atomically

_SCHEMA = 1


class BoxMemory(Struct, frozen=True, kw_only=True):
    """Where the parts of a deployment lie on one box."""

    name: str
    root: str
    address: str
    """The address that the worker listens on."""
    control_port: int
    kv_port: int
    env: str
    engine: str
    model: str
    unit: bool = False


class Memory(Struct, frozen=True, kw_only=True):
    """The deployment as it was last seen, and what starting it again takes."""

    deployment: Deployment
    boxes: tuple[BoxMemory, ...]
    schema: int = _SCHEMA

    def box(self, name: str) -> BoxMemory | None:
        """One box's part."""
        return next((b for b in self.boxes if b.name == name), None)


class DeployStore:
    """The folder of the desk's deployment memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def lock(self) -> Path:
        """Held while a command changes boxes."""
        return self.folder / ".lock"

    def stamp(self) -> tuple[int, int, int] | None:
        """Another one each time that the record is written anew; None when there is none."""
        try:
            found = (self.folder / "current.json").stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def load(self) -> Memory | None:
        """The remembered deployment, None when there is none; raises DeployError when broken."""
        path = self.folder / "current.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Memory)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise DeployError(
                f"The record of the deployment can't be read: {error}",
                where=str(path),
                do_next="Delete that file; `homesplit remove BOX` still clears a box.",
            ) from error

    def save(self, memory: Memory) -> None:
        """Remember."""
        write_atomically(
            self.folder / "current.json", msgspec.json.format(msgspec.json.encode(memory))
        )

    def forget(self) -> None:
        """Drop the deployment and its secrets."""
        (self.folder / "current.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "secrets", ignore_errors=True)

    def brought_to(self) -> tuple[str, ...]:
        """Boxes on which something of ours may lie: brought there and not removed since."""
        memory = self.load()
        deployed = [part.name for part in memory.boxes] if memory else []
        return tuple(dict.fromkeys([*self._noted(), *deployed]))

    def note_brought(self, boxes: Sequence[str]) -> None:
        """Remember, before anything is brought there, that something may lie on these boxes."""
        self._note(dict.fromkeys([*self._noted(), *boxes]))

    def note_removed(self, box: str) -> None:
        """Nothing is left on that box."""
        self._note(name for name in self._noted() if name != box)

    def _noted(self) -> tuple[str, ...]:
        try:
            return msgspec.json.decode(self._boxes_file.read_bytes(), type=tuple[str, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError) as error:
            raise DeployError(
                f"The list of boxes that something was brought to can't be read: {error}",
                where=str(self._boxes_file),
                do_next="Delete that file; `homesplit status BOX` tells what lies on a box.",
            ) from error

    def _note(self, boxes: Iterable[str]) -> None:
        write_atomically(self._boxes_file, msgspec.json.encode(tuple(boxes)))

    @property
    def _boxes_file(self) -> Path:
        return self.folder / "boxes.json"

    @property
    def api_key_file(self) -> Path:
        """The desk's copy of the API key."""
        return self.folder / "secrets" / "api.key"

    def make_secrets(self, boxes: tuple[str, ...]) -> None:
        """Fresh CURVE keys for the router and each box, and a fresh API key."""
        folder = self.folder / "secrets"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        for name, keys in make_keys(boxes).items():
            write_keys(self._key_file(name), keys)
        write_atomically(self.api_key_file, f"hs-{secrets.token_urlsafe(32)}\n".encode())

    def keys(self, name: str) -> Keys | None:
        """The keys of `router` or a box, None when they are gone."""
        try:
            return read_keys(self._key_file(name))
        except ConfigError:
            return None

    def api_key(self) -> str | None:
        """The API key, None when it is gone."""
        try:
            return self.api_key_file.read_text().strip() or None
        except OSError:
            return None

    def _key_file(self, name: str) -> Path:
        # A box's name may hold anything that a host name may; hex keeps it out of the path.
        return self.folder / "secrets" / f"{name.encode().hex()}.keys"

    def desk_id(self) -> str:
        """This desk's random name, made once."""
        path = self.folder / "desk-id"
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            text = ""
        if not text:
            text = uuid.uuid4().hex
            write_atomically(path, text.encode())
        return text


def desk_name() -> str:
    """How a person knows this desk: `user@host`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"

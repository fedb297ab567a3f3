"""The engine as it travels to a box: a zip of its package, known by its content's hash."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import homesplit_engine

_FIXED_DATE = (2000, 1, 1, 0, 0, 0)
_SUFFIXES = (".py", ".txt", ".toml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """`hash` names the content; `data` is the zip; `requirements` what the box installs for it."""

    hash: str
    data: bytes
    requirements: str
    unpacked_bytes: int
    """What the files take once they are out of the zip."""


def make_bundle() -> Bundle:
    """Pack `homesplit_engine` as it is installed here; the same files give the same bytes."""
    package = Path(homesplit_engine.__file__).parent
    files = sorted(p for p in package.rglob("*") if p.is_file() and p.suffix in _SUFFIXES)
    packed = io.BytesIO()
    digest, unpacked = hashlib.sha256(), 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            name = f"homesplit_engine/{path.relative_to(package).as_posix()}"
            content = path.read_bytes()
            unpacked += len(content)
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            archive.writestr(
                zipfile.ZipInfo(name, _FIXED_DATE), content, compress_type=zipfile.ZIP_DEFLATED
            )
    requirements = (package / "requirements.txt").read_text()
    return Bundle(
        hash=digest.hexdigest()[:16],
        data=packed.getvalue(),
        requirements=requirements,
        unpacked_bytes=unpacked,
    )

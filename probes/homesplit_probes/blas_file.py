"""Takes the shared libraries out of a wheel so that one of them can be loaded."""

from __future__ import annotations

import os
import zipfile
from typing import Optional

_LARGEST_BYTES = 128 << 20


def unpack(wheel: str, folder: str) -> Optional[str]:
    """Write the wheel's shared libraries into `folder`; the path of its BLAS, None without one."""
    found = None
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name = os.path.basename(info.filename)
            inside = ".libs/" in info.filename or "/lib/" in info.filename
            if not inside or ".so" not in name or info.file_size > _LARGEST_BYTES:
                continue
            target = os.path.join(folder, name)
            with open(target, "wb") as file:
                file.write(archive.read(info))
            if "openblas" in name:
                found = target
    return found

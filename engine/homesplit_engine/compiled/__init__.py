"""Kernels compiled for the box's own processor by numba, on plain float32 arrays.

What is compiled is kept beside the code, under a name that changes with the code and numba.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
from numba.core import config

_HERE = Path(__file__).parent


def _kept_in() -> Path:
    """The folder of what was compiled from exactly this code."""
    code = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for path in sorted(_HERE.glob("*.py")):
        code.update(path.read_bytes())
    return _HERE / "__pycache__" / f"compiled-{code.hexdigest()}"


def _keep() -> Path | None:
    """Tells numba where; it only looks at the file of a function, not at what that calls."""
    folder = _kept_in()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    settings: Any = config
    settings.CACHE_DIR = str(folder)
    return folder


KEPT_IN = _keep()
"""Where what was compiled is kept; None where it can't be, so that each start compiles anew."""

OPTIONS: Any = {
    # Sums in any order, so that they go in vectors; infinities and what is no number stay allowed.
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "nogil": True,
    "cache": KEPT_IN is not None,
}
"""Of every compiled function."""

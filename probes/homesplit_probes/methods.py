"""Which numeric library does the arithmetic here: torch, numpy, a BLAS library, or none."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from typing import Any, Optional, Tuple

SGEMM_SYMBOLS = ("cblas_sgemm", "scipy_cblas_sgemm", "scipy_cblas_sgemm64_", "cblas_sgemm64_")
_BLAS_NAMES = ("openblas", "blis", "cblas", "blas")


def torch_module() -> Optional[Any]:
    """torch, when it is installed and loads."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    return torch


def numpy_module() -> Optional[Any]:
    """numpy, when it is installed and loads."""
    try:
        import numpy
    except (ImportError, OSError):
        return None
    return numpy


def blas_sgemm(path: Optional[str] = None) -> Optional[Tuple[Any, str]]:
    """A `cblas_sgemm` and the name of its library: the given file, else one of the system's."""
    names = [path] if path else [ctypes.util.find_library(n) for n in _BLAS_NAMES]
    names.append("/System/Library/Frameworks/Accelerate.framework/Accelerate")
    for name in names:
        if not name:
            continue
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for symbol in SGEMM_SYMBOLS:
            function = getattr(library, symbol, None)
            if function is not None:
                return function, os.path.basename(name)
    return None


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1

"""Which numeric library does the arithmetic here: torch, numpy, a BLAS library, or none."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import os
from typing import Any, List, Optional, Tuple

SGEMM_SYMBOLS = ("cblas_sgemm", "scipy_cblas_sgemm", "scipy_cblas_sgemm64_", "cblas_sgemm64_")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What numeric libraries read once, when they are loaded."""
_GROUPS, _OWN = "/sys/fs/cgroup", "/proc/self/cgroup"
_BLAS_NAMES = ("openblas", "blis", "cblas", "blas")
_TUNED = ("openblas", "mkl", "blis", "atlas", "armpl", "nvpl", "accelerate")
PLAIN = "plain BLAS"
"""In the method of a figure that a BLAS without kernels for this processor gave."""


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


def is_plain(library: str, lent: Optional[str] = None, maps: str = "/proc/self/maps") -> bool:
    """Whether the BLAS that is loaded is the reference one, many times slower than any tuned one.

    Debian's numpy and libblas3 bring that unless another is installed beside them. The file `lent`
    is loaded as well and counts for nothing.
    """
    loaded = [line.split()[-1] for line in _text(maps).splitlines() if "/" in line]
    loaded = [path for path in loaded if lent is None or path != os.path.realpath(lent)]
    # With the folder's name: Debian's libblas.so.3 lies in one for each maker.
    named = ["/".join(path.lower().split("/")[-2:]) for path in [library, *loaded]]
    return bool(library or loaded) and not any(w in name for name in named for w in _TUNED)


def bound_threads() -> None:
    """Before a numeric library is loaded: no more threads than a quota lets run at once."""
    if usable_cores() < _cores():
        for name in THREADS:
            os.environ.setdefault(name, str(usable_cores()))


def usable_cores() -> int:
    """Cores that this process may run on, fewer where a quota leaves less (rounded up)."""
    quotas = _quotas()
    return min([_cores(), *[max(1, math.ceil(quota)) for quota in quotas]])


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _quotas() -> List[float]:
    """Cores' worth that the own control group and those around it allow, of either kind."""
    found = [_text(folder + "/cpu.max") for folder in _folders("")]
    for folder in _folders("cpu"):
        words = [_text(folder + "/cpu.cfs_%s_us" % word) for word in ("quota", "period")]
        found.append(" ".join(words))
    pairs = [text.split() for text in found]
    return [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[0].isdigit() and pair[1].isdigit() and int(pair[1])
    ]


def _folders(controller: str) -> List[str]:
    """The own group's folder and those around it; the older kind has a tree for each controller."""
    lines = [line.split(":", 2) for line in _text(_OWN).splitlines()]
    own = next((x[2] for x in lines if len(x) == 3 and controller in x[1].split(",")), "")
    root = _GROUPS + "/" * bool(controller) + controller
    # A container sees its own group where others have the tree's root.
    parts = [] if ".." in own.split("/") else [part for part in own.split("/") if part]
    return ["/".join([root, *parts[:count]]) for count in range(len(parts), -1, -1)]


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""

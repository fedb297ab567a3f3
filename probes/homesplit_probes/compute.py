"""Dense matrix-multiply rate by dtype, at a size that takes the box a noticeable time."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from homesplit_probes.budget import OVER, Budget
from homesplit_probes.methods import (
    PLAIN,
    blas_sgemm,
    is_plain,
    numpy_module,
    torch_module,
    usable_cores,
)
from homesplit_probes.report import Figure, figure, unknown

DTYPES: Tuple[str, ...] = ("fp32", "fp16", "bf16", "int8")
_LARGEST = {"cpu": 4096, "device": 8192}
_NOTICEABLE_S = 0.04
_REPEATS = 15
_LEAST_S = 0.05
_NO_LIBRARY = (
    "neither torch nor numpy nor a BLAS library is on this box; deployment brings torch, "
    "then probe again"
)

Say = Callable[[str], None]


def device_name() -> str:
    """Where the engine would run: `cuda`, `mps` or `cpu`; it uses no GPU of AMD or Intel."""
    torch = torch_module()
    if torch is None:
        return "cpu"
    if torch.cuda.is_available() and not getattr(torch.version, "hip", None):
        return "cuda"
    mps = getattr(torch.backends, "mps", None)
    return "mps" if mps is not None and mps.is_available() else "cpu"


def gpu_name(device: str) -> Optional[str]:
    """The NVIDIA GPU that the engine gets, as its driver calls it; None without one."""
    torch = torch_module()
    if device != "cuda" or torch is None:
        return None
    try:
        return str(torch.cuda.get_device_name(0))
    except (RuntimeError, AssertionError):
        return None


def measure_compute(budget: Budget, blas: Optional[str], say: Say) -> Dict[str, Figure]:
    """Operations per second (2 n^3 / t) by dtype within the budget; median over repeats."""
    torch = torch_module()
    if torch is not None:
        return _by_torch(torch, budget, say)
    figures: List[Figure] = []
    found = blas_sgemm(blas)
    if found is not None:
        say("multiplying matrices with " + found[1])
        figures.append(_doubted(_by_blas(found[0], found[1], budget.left() / 3), found[1]))
    numpy = numpy_module()
    if numpy is not None:
        say("multiplying matrices with numpy")
        # What the desk lent is none of numpy's.
        figures.append(_doubted(_by_numpy(numpy, budget.left() / 3), "", lent=blas))
    if not figures:
        return dict((dtype, unknown(_NO_LIBRARY)) for dtype in DTYPES)
    why = (
        "neither numpy nor a BLAS library multiplies it fast; deployment brings torch, then probe "
        "again"
    )
    return _only_fp32(max(figures, key=lambda figure: figure["value"]), why)


def _doubted(fp32: Figure, library: str, lent: Optional[str] = None) -> Figure:
    """A figure that a slow library gave says so: it is the least that the box can do."""
    if is_plain(library, lent):
        fp32["method"] += ", a " + PLAIN
        fp32["warnings"].append(
            "a plain BLAS is far slower than what deployment brings: the box can do several times "
            "as much"
        )
    return fp32


def _only_fp32(fp32: Figure, why: str) -> Dict[str, Figure]:
    figures = dict((dtype, unknown(why)) for dtype in DTYPES)
    figures["fp32"] = fp32
    return figures


def _sized(
    make: Callable[[int], Callable[[], None]], largest: int, deadline: float
) -> Tuple[int, Callable[[], None]]:
    """Grow n until one multiply takes a noticeable time, as far as the deadline allows."""
    n = 256
    while True:
        begin = time.perf_counter()
        multiply = make(n)
        multiply()
        prepared = time.perf_counter() - begin
        begin = time.perf_counter()
        multiply()
        took = time.perf_counter() - begin
        # The next size takes eight times as long; three of them must still fit.
        late = time.perf_counter() + 8 * (prepared + 3 * took) > deadline
        if took >= _NOTICEABLE_S or n * 2 > largest or late:
            return n, multiply
        n *= 2


def _timed(multiply: Callable[[], None], n: int, deadline: float) -> List[float]:
    """At least one rate, as many as the deadline allows."""
    rates: List[float] = []
    multiply()
    while not rates or (len(rates) < _REPEATS and time.perf_counter() < deadline):
        begin = time.perf_counter()
        multiply()
        rates.append(2.0 * n**3 / (time.perf_counter() - begin))
    return rates


def _by_torch(torch: Any, budget: Budget, say: Say) -> Dict[str, Figure]:
    device = device_name()
    figures: Dict[str, Figure] = {}
    for place_in_line, dtype in enumerate(DTYPES):
        share = budget.left() / (len(DTYPES) - place_in_line)
        if share < _LEAST_S:
            figures[dtype] = unknown(OVER)
            continue
        say("multiplying %s matrices on %s" % (dtype, device))
        try:
            figures[dtype] = _torch_rate(torch, device, dtype, share)
        except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
            text = (str(error).strip().splitlines() or ["no reason given"])[0]
            figures[dtype] = unknown("torch can't do it here: " + text)
    return figures


def _torch_rate(torch: Any, place: str, dtype: str, seconds: float) -> Figure:
    deadline = time.perf_counter() + seconds
    wait = _torch_wait(torch, place)
    largest = _LARGEST["cpu" if place == "cpu" else "device"]

    def make(n: int) -> Callable[[], None]:
        left, right, multiply = _torch_operands(torch, place, dtype, n)

        def once() -> None:
            multiply(left, right)
            wait()

        return once

    n, once = _sized(make, largest if dtype != "int8" or place != "cpu" else 2048, deadline)
    rates = _timed(once, n, deadline)
    threads = ", %d threads" % torch.get_num_threads() if place == "cpu" else ""
    method = "torch %s matmul %s, n=%d on %s%s" % (torch.__version__, dtype, n, place, threads)
    return figure(rates, "FLOP/s", method)


def _torch_operands(torch: Any, place: str, dtype: str, n: int) -> Any:
    if dtype == "int8":
        return _torch_int8(torch, place, n)
    kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    left = torch.randn(n, n, dtype=torch.float32, device=place).to(kind)
    right = torch.randn(n, n, dtype=torch.float32, device=place).to(kind)
    return left, right, torch.mm


def _torch_int8(torch: Any, place: str, n: int) -> Any:
    """int8 weights as the engine uses them: dynamically quantised linear layers on a CPU."""
    if place != "cpu":
        left = torch.ones(n, n, dtype=torch.int8, device=place)
        return left, torch.ones(n, n, dtype=torch.int8, device=place), torch._int_mm
    weight = torch.quantize_per_tensor(torch.randn(n, n), 0.01, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    return torch.randn(n, n), packed, torch.ops.quantized.linear_dynamic


def _torch_wait(torch: Any, place: str) -> Callable[[], None]:
    if place == "cuda":
        return lambda: torch.cuda.synchronize()
    if place == "mps":
        return lambda: torch.mps.synchronize()
    return lambda: None


def _by_numpy(numpy: Any, seconds: float) -> Figure:
    deadline = time.perf_counter() + seconds

    def make(n: int) -> Callable[[], None]:
        left = numpy.ones((n, n), dtype=numpy.float32)
        out = numpy.empty((n, n), dtype=numpy.float32)

        def once() -> None:
            numpy.matmul(left, left, out=out)

        return once

    n, once = _sized(make, _LARGEST["cpu"], deadline)
    method = "numpy %s matmul fp32, n=%d, %d cores" % (numpy.__version__, n, usable_cores())
    return figure(_timed(once, n, deadline), "FLOP/s", method)


def _by_blas(sgemm: Any, name: str, seconds: float) -> Figure:
    """cblas_sgemm(row major, no transpose) of two n x n matrices of ones."""
    deadline = time.perf_counter() + seconds
    sgemm.restype = None
    real = ctypes.c_float
    # Builds with 64-bit indices carry that in their symbols' names.
    whole = ctypes.c_int64 if sgemm.__name__.endswith("64_") else ctypes.c_int

    def make(n: int) -> Callable[[], None]:
        matrix = real * (n * n)
        left, right, out = matrix(), matrix(), matrix()
        for operand in (left, right):
            _fill_with_ones(operand, n * n)
        size = whole(n)
        order, plain = ctypes.c_int(101), ctypes.c_int(111)
        args = (order, plain, plain, size, size, size, real(1.0), left, size)

        def once() -> None:
            sgemm(*args, right, size, real(0.0), out, size)

        return once

    n, once = _sized(make, _LARGEST["cpu"], deadline)
    return figure(
        _timed(once, n, deadline),
        "FLOP/s",
        "%s cblas_sgemm fp32, n=%d, %d cores" % (name, n, usable_cores()),
    )


def _fill_with_ones(operand: Any, count: int) -> None:
    """Zeros or denormals would flatter or slow some kernels."""
    block = (ctypes.c_float * 1024)(*([1.0] * 1024))
    for at in range(0, count, 1024):
        size = min(1024, count - at) * 4
        ctypes.memmove(ctypes.addressof(operand) + at * 4, block, size)

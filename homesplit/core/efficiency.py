"""What share of a maker's figure a real engine reaches, and how far single cases lie from it.

Source of the figures from profiles: 279 public single-machine measurements (llama.cpp, vLLM
and others, 2024 to 2026, from Raspberry Pi to A100), looked at as one distribution. They
give the medians and the spread of the whole; no row has a constant of its own.

`INT8_REACHED` and `ROCM` are medians of the few machines that they name, and no more is known of
them: with each machine left out of its median, its prompts are predicted 11 % off in the median
and 24 % at most (tests/core/test_cost.py); what they err by on those very machines (8 %) tells
nothing of others.
"""

from __future__ import annotations

from msgspec import Struct


class Efficiency(Struct, frozen=True, kw_only=True):
    """Shares of the stated or measured figures that the engine reaches.

    `*_low` and `*_high` multiply the mid value of seconds to give the 90 % interval.
    """

    bandwidth: float
    """Of memory bandwidth, while weights and KV are read."""
    arithmetic: float
    """Of the matrix-multiply rate, over a prompt's matrices."""
    attention: float
    """Of the rate reached over matrices, over attention's own arithmetic."""
    layer_s: float
    """Launch overhead of one layer of one step, seconds."""
    overlap: float
    """Of reading weights and arithmetic the share of the lesser that hides behind the other: all of
    it on a GPU, none where they add up."""
    prefill_low: float
    prefill_high: float
    decode_low: float
    decode_high: float


INTENSITY_REACHED = 85.0
"""Operations per byte of memory bandwidth that engines sustain over a prompt. Makers' tensor
figures above this are not fed: cards with 70 to 100 FLOP per byte reach 0.8 to 0.95 of their
figure, those with 200 about 0.4, those with 400 about 0.25."""

FED_BY_CACHE = 130.0
"""The same on NVIDIA machines whose memory is unified and slow beside their tensor cores (GB10,
Jetson): 29 public measurements of prompts on GB10 have a median of 132."""

ARITHMETIC_CEILING = 0.68
"""Of the stated rate where memory is no limit (Apple GPUs: median 0.6, RTX 30: up to 0.95)."""

ROUTED = 0.72
"""Of that, what matrices of chosen experts reach: each is multiplied with few of a prompt's tokens.
Median of 51 public measurements of mixtures (Apple, GB10) beside those of dense models."""

QUANTISED_BITS = 12.0
"""Weights of fewer bits count as quantised."""

INT8_REACHED = 0.25
"""Of the int8 rate that a GPU's maker states, what prompts with weights of up to 8 bits reach:
llama.cpp multiplies them in int8 since June 2024. Public measurements of a model of 8 billion at 4
bits by its pull requests: 0.23 (RTX 3090, 8416), 0.25 (RTX 4090, 7676), 0.28 (RTX 5090, 24127), 0.2
(RTX 6000 Ada, 8,096 tokens, 19053), 0.27 (P40, 8416). An A100 reaches 0.11, so that the profiles of
server cards with HBM state none. Mixtures of experts gain nothing by it (19053)."""

ROCM = 0.62
"""Of what the same figures give on NVIDIA, what AMD's GPUs reach over a prompt. Median of models
of 7 to 13 billion on RX 7900 XTX (0.61), 6800 XT (0.63), 6800 (0.48) and 6700 XT (0.76), by
llama.cpp's pull requests 26284, 2059, 8416 and 5835."""

_BANDWIDTH_BY_BITS = ((12.0, 0.80), (7.0, 0.86), (0.0, 0.68))
"""(at least so many bits a weight, share of bandwidth): launch overhead is counted apart."""


def from_maker_figures(
    *,
    flops_per_s: float,
    bytes_per_s: float,
    weight_bits: float,
    device: str,
    unified: bool,
    routed: bool = False,
    int8_per_s: float = 0.0,
) -> Efficiency:
    """For a box known by what its maker states; `routed` for a mixture of experts.

    `int8_per_s` is the rate of a GPU's own arithmetic in int8, 0 where its maker states none.
    """
    intensity = FED_BY_CACHE if unified and device == "cuda" else INTENSITY_REACHED
    share = next(share for bits, share in _BANDWIDTH_BY_BITS if weight_bits >= bits)
    ridge = flops_per_s / bytes_per_s
    cpu = device == "cpu"
    experts = ROUTED if routed else 1.0
    maker = ROCM if device == "rocm" else 1.0
    arithmetic = experts * maker * min(ARITHMETIC_CEILING, intensity / ridge)
    narrow = device == "cuda" and not unified and weight_bits < QUANTISED_BITS
    by_int8 = INT8_REACHED * int8_per_s / flops_per_s if narrow and not routed else 0.0
    reached = max(arithmetic, by_int8)
    return Efficiency(
        bandwidth=share,
        arithmetic=reached,
        # Attention has no experts, and its numbers are of 16 bits.
        attention=0.35 / experts * arithmetic / reached,
        layer_s=10e-6 if cpu else 40e-6,
        overlap=0.0 if cpu else 1.0,
        # Where it is not known whether a GPU has quick int8 arithmetic, it may have.
        prefill_low=0.4 if narrow and not by_int8 else 0.45,
        prefill_high=2.6,
        decode_low=0.65,
        decode_high=2.2,
    )


def from_probes(*, device: str, plain: bool = False) -> Efficiency:
    """For a box whose bandwidth and matrix-multiply rate were measured.

    On a processor the shares are those of the engine's own steps on one core each of two kinds
    (tests/core/test_cost.py). `plain`: the multiply rate is that of a slow library, and so the
    least that the box can do.
    """
    cpu = device == "cpu"
    return Efficiency(
        bandwidth=0.85,
        arithmetic=0.85 if cpu else 0.75,
        attention=0.9 if cpu else 0.35,
        layer_s=100e-6 if cpu else 150e-6,
        overlap=0.6 if cpu else 1.0,
        prefill_low=0.02 if plain else 0.65,
        prefill_high=1.6,
        decode_low=0.1 if plain else 0.6,
        decode_high=1.6,
    )

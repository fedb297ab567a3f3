"""The options that describe a mode, shared by `up` and `mode`."""

from __future__ import annotations

import argparse

from homesplit_engine.records import KV_WIRES, ModeSetting

MODES = ("colocated", "colocated-whole", "colocated-chunked", "replica", "split", "auto")
_CHUNK_TOKENS = 256


def add_mode_options(parser: argparse.ArgumentParser) -> None:
    """`--prefill`, `--chunk-tokens`, `--prefill-box`, `--decode-box`, `--kv-wire`."""
    parser.add_argument("--prefill", choices=("whole", "chunked"), help="how prompts are read")
    parser.add_argument("--chunk-tokens", type=int, default=_CHUNK_TOKENS, metavar="N")
    parser.add_argument("--prefill-box", metavar="BOX", help="split: who reads prompts")
    parser.add_argument(
        "--decode-box", metavar="BOX", help="split: who writes answers; colocated: who serves"
    )
    parser.add_argument(
        "--kv-wire",
        choices=KV_WIRES,
        default="same",
        help="split: what KV is sent as; fp16 and int8 are smaller and may change the text",
    )


def setting_from(mode: str, args: argparse.Namespace) -> ModeSetting:
    """The setting that the options describe; `colocated-whole` is short for two of them."""
    name, _, style = mode.partition("-")
    return ModeSetting(
        mode=name,  # type: ignore[arg-type]
        prefill=args.prefill or style or "chunked",  # type: ignore[arg-type]
        chunk_tokens=args.chunk_tokens,
        prefill_box=args.prefill_box,
        decode_box=args.decode_box,
        kv_wire=args.kv_wire,
    )

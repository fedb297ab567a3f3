"""`homesplit info`: where homesplit keeps its files, and its versions."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from homesplit import __version__
from homesplit.cli.output import add_json, print_json
from homesplit.io.box_facts import ROOT
from homesplit.io.paths import user_paths

_PARTS = ("asyncssh", "pyzmq", "textual", "plotext", "zeroconf", "uv", "torch", "transformers")


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("info", help="where files lie, and versions")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print places and versions."""
    info = gather()
    if args.json:
        print_json(info)
        return 0
    for group, rows in info.items():
        print(f"{group}:")
        for name, value in rows.items():
            print(f"  {name:<16} {value if value is not None else 'not installed'}")
    return 0


def gather() -> dict[str, dict[str, str | None]]:
    """Places and versions by group."""
    paths = user_paths()
    places: dict[str, str | None] = {
        "config": str(paths.config),
        "known_hosts": str(paths.known_hosts),
        "profiles": str(paths.user_profiles),
        "cache": str(paths.cache),
        "models": str(paths.models),
        "packages": str(paths.cache / "wheelhouse"),
        "data": str(paths.data),
        "probes": str(paths.probes),
        "notebook": str(paths.notebook),
        "deployments": str(paths.deployments),
        "on_a_box": f"~/{ROOT}",
        "logs_on_a_box": f"~/{ROOT}/run/*.log",
    }
    versions: dict[str, str | None] = {"homesplit": __version__}
    versions["python"] = platform.python_version()
    versions |= {name: _version(name) for name in _PARTS}
    return {"places": places, "versions": versions}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

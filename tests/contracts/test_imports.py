"""Who may import whom, proved by asking a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE_ENGINE_MODULES = (
    "homesplit_engine.records",
    "homesplit_engine.words",
    "homesplit_engine.config",
    "homesplit_engine.wire.messages",
    "homesplit_engine.pages",
    "homesplit_engine.request",
    "homesplit_engine.scheduler",
    "homesplit_engine.policy",
)
HEAVY = {"torch", "transformers", "numpy", "pandas"}


def loaded_after(statement: str) -> set[str]:
    """Top-level names in `sys.modules` after a statement in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", PURE_ENGINE_MODULES)
def test_the_engines_pure_modules_load_nothing_heavy(module: str) -> None:
    assert not loaded_after(f"import {module}") & (HEAVY | {"zmq", "aiohttp", "homesplit"})


def test_the_command_line_starts_without_the_terminal_app_or_the_engine() -> None:
    loaded = loaded_after("from homesplit.cli.main import build_parser; build_parser()")
    assert not loaded & (HEAVY | {"textual"})


def test_the_terminal_app_starts_without_the_engine() -> None:
    assert not loaded_after("import homesplit.tui.app") & HEAVY


_WITHOUT_POSIX = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("termios", "fcntl", "pwd", "grp", "resource", "tty", "pty"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

# What others bring finds for itself what Windows has; only our own modules are asked.
import asyncssh, platformdirs, psutil, textual.app, zeroconf.asyncio
for name in [n for n in sys.modules if n in ("termios", "fcntl", "pwd", "grp", "resource")]:
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
import homesplit
for found in pkgutil.walk_packages(homesplit.__path__, "homesplit."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""


def test_a_desk_without_posix_modules_imports_all_of_the_app() -> None:
    loaded = loaded_after(_WITHOUT_POSIX)
    assert "homesplit" in loaded
    assert not loaded & {"termios", "fcntl", "resource"}


def test_the_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_wheel_holds_four_packages_and_all_their_data(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(built).namelist()
    tops = {name.split("/")[0] for name in names if not name.startswith("homesplit-")}
    assert tops == {"homesplit", "homesplit_engine", "homesplit_probes", "homesplit_profiles"}
    assert any(name.endswith(".tcss") for name in names)
    assert any(name.startswith("homesplit_profiles/hardware/") for name in names)

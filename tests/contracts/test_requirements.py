"""What a box installs holds everything that the engine imports there."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "engine/homesplit_engine"
PACKAGES = {"zmq": "pyzmq", "pynvml": "nvidia-ml-py", "prometheus_client": "prometheus-client"}
"""Where a package is not called as its module is."""
OPTIONAL = {"gguf", "accelerate"}
"""Only asked for by kinds of models that are refused in words without them."""


def imported() -> set[str]:
    """Top-level modules of others that any module of the engine imports."""
    found: set[str] = set()
    for path in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"homesplit_engine", "__future__"}


def test_the_packages_of_a_box_are_those_that_the_engine_imports() -> None:
    lines = (ENGINE / "requirements.txt").read_text().splitlines()
    named = {re.split(r"[=<>\[ ]", line)[0] for line in lines if line and line[0] != "#"}
    lacking = {PACKAGES.get(name, name) for name in imported() - OPTIONAL} - named
    assert not lacking

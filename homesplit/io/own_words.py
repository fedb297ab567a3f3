"""Which names are also words of homesplit's own texts, keys and profiles: they tell nobody's."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from pathlib import Path

import homesplit_engine
import homesplit_probes

import homesplit
from homesplit.io.profiles import built_in

_PACKAGES = (homesplit, homesplit_engine, homesplit_probes)


def own_words(names: Iterable[str]) -> frozenset[str]:
    """Those of the names that stand as a whole word in what homesplit writes, in lower case."""
    asked = {name.casefold() for name in names}
    profiles = {path.casefold() for path in built_in("hardware")}
    return frozenset(asked & profiles | {name for name in asked if _stands_anywhere(name)})


def _stands_anywhere(name: str) -> bool:
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    # Reading a file's sentences takes long: only of one that has the word at all.
    return any(word.search(_file(path)) and word.search(_written(path)) for path in _sources())


@functools.cache
def _sources() -> tuple[Path, ...]:
    folders = [Path(str(package.__file__)).parent for package in _PACKAGES]
    return tuple(path for folder in folders for path in sorted(folder.rglob("*.py")))


@functools.cache
def _file(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def _written(path: Path) -> str:
    """What a source file may write: its strings, and the fields of its records."""
    tree = ast.parse(_file(path))
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words.append(node.target.id)
        elif isinstance(node, ast.Constant) and id(node) not in notes:
            words.append(node.value if isinstance(node.value, str) else "")
    return "\n".join(words)

"""What the product never does, read from its own source: unpickle, evaluate, ask a shell here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("homesplit", "engine", "probes", "profiles")
MODULES = {
    *("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
    "multiprocessing",  # sends pickles between processes
}
BUILT_IN = {"eval", "exec", "compile", "__import__"}
CALLED = {"create_subprocess_shell", "send_pyobj", "recv_pyobj"}
OF_MODULES = {("os", "system"), ("os", "popen"), ("torch", "load")}
FLAGS = {"shell": True, "allow_pickle": True, "trust_remote_code": True}


def unsafe(source: str) -> Iterator[str]:
    """Each unsafe thing in a source text, with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                found = [name.name for name in node.names if name.name.split(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)):
                found = [module] * (module.split(".")[0] in MODULES)
            case ast.Call(func=ast.Name(id=name)):
                found = [name] * (name in BUILT_IN) + _flags(node)
            case ast.Call(func=ast.Attribute(attr=name, value=value)):
                owner = value.id if isinstance(value, ast.Name) else ""
                found = [name] * (name in CALLED or (owner, name) in OF_MODULES) + _flags(node)
            case _:
                continue
        yield from (f"line {node.lineno}: {one}" for one in found)


def _flags(call: ast.Call) -> list[str]:
    return [
        str(word.arg)
        for word in call.keywords
        if word.arg in FLAGS
        and not (isinstance(word.value, ast.Constant) and word.value.value is not FLAGS[word.arg])
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_pickle_no_evaluation_and_no_shell_on_this_machine(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {str(f.relative_to(ROOT)): list(unsafe(f.read_text("utf-8"))) for f in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from multiprocessing import Queue",
        "eval(text)",
        "torch.load(path)",
        "os.system(name)",
        "subprocess.run(words, shell=True)",
        "subprocess.run(words, shell=maybe)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_each_of_them_would_be_seen(line: str) -> None:
    assert len(list(unsafe(line))) == 1


def test_their_harmless_cousins_are_not() -> None:
    harmless = "re.compile(text); platform.system(); model.eval(); f(shell=False); json.load(file)"
    assert list(unsafe(harmless)) == []

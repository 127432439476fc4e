"""What comes with a file never runs: the package loads no pickle, and torch.load only ever reads weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import airvlm

FILES = sorted(Path(airvlm.__file__).parent.rglob("*.py"))
LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def problems(source: str) -> list[str]:
    """Lines of a module that would run what a file says."""
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [f"line {node.lineno}: imports {name}" for name in names if name.split(".")[0] in LOADERS]
    for call in _calls(tree):
        name = _dotted(call.func)
        options = {keyword.arg: keyword.value for keyword in call.keywords}
        safe = isinstance(options.get("weights_only"), ast.Constant) and options["weights_only"].value is True
        if name == "torch.load" and not safe:
            found.append(f"line {call.lineno}: torch.load without weights_only=True")
        allowed = options.get("allow_pickle")
        if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
            found.append(f"line {call.lineno}: allow_pickle")
        if name in {"eval", "exec"}:
            found.append(f"line {call.lineno}: {name}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(FILES[0].parent)))
def test_no_module_runs_what_a_file_says(file: Path) -> None:
    assert problems(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import load",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_walk_finds_what_it_looks_for(source: str) -> None:
    assert problems(source)

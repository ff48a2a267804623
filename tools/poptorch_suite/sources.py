"""What the suite's source says of its tests: the names that they use, and what they say is refused.

Read by syntax trees; nothing of the suite is imported.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.poptorch_suite import outcomes as results

_Function = ast.FunctionDef


@dataclass(frozen=True)
class TestSource:
    """A test function: its name as in an outcome, without parameters.

    ``attributes``: what comes after a dot in it and in the functions of its file that it uses; of
    a module, the whole (``poptorch.Options``), and of another module than PopTorch no more.
    ``raises``: the lines of its ``pytest.raises``.
    """

    test: str
    attributes: frozenset[str]
    raises: tuple[int, ...]


def read(tests: Path, files: Iterable[str]) -> list[TestSource]:
    """All test functions of some files of the suite, in order."""
    return [test for file in files for test in _tests(file, (tests / file).read_text())]


def by_function(
    done: Mapping[str, results.Outcome], known: Sequence[results.Reason]
) -> dict[str, Counter[str]]:
    """The kinds of outcome of each test function, over its parameters.

    Failures that are excused count as "internals".
    """
    counts: dict[str, Counter[str]] = {}
    for test, outcome in done.items():
        kind = outcome.kind
        if kind in ("failed", "cut"):
            kind = "internals" if results.excused(outcome, known) else "failed"
        counts.setdefault(test.split("[")[0], Counter())[kind] += 1
    return counts


def _tests(file: str, text: str) -> list[TestSource]:
    tree = ast.parse(text)
    modules = _modules(tree)
    own = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function | ast.ClassDef)}
    found = []
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{file}::{node.name}" if isinstance(node, ast.ClassDef) else file
        for function in inside:
            if isinstance(function, _Function) and function.name.startswith("test_"):
                used = _used(function, own)
                attributes = frozenset(name for part in used for name in _attributes(part, modules))
                raises = tuple(line for part in used for line in _raises(part))
                found.append(TestSource(f"{prefix}::{function.name}", attributes, raises))
    return found


def _used(function: _Function, own: Mapping[str, ast.stmt]) -> list[ast.stmt]:
    """The function, and what of its file it calls, directly or not."""
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = [function]
    while waiting:
        part = waiting.pop()
        if part in found:
            continue
        found.append(part)
        names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
        waiting += [own[name] for name in sorted(names & own.keys())]
    return found


def _modules(tree: ast.Module) -> frozenset[str]:
    """The names that stand for modules in a file."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    return frozenset(
        (alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names
    )


def _attributes(part: ast.stmt, modules: frozenset[str]) -> set[str]:
    found = set()
    for node in ast.walk(part):
        if not isinstance(node, ast.Attribute):
            continue
        whole = ast.unparse(node)
        root = whole.split(".")[0]
        if root in modules:
            found.add(whole)
        if root == "poptorch" or root not in modules:
            found.add(node.attr)
    return found


def _raises(part: ast.stmt) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises"
    ]

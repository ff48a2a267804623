"""The names of PopTorch's surface, read off its sources by their syntax trees.

``python -m tools.poptorch_names CHECKOUT > tools/poptorch_names.txt``, where CHECKOUT has
graphcore/poptorch: what `poptorch` itself has, and the public methods of the classes that scripts
meet. Only names are taken. docs/compatibility.md and its test hold them against ours.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# file of python/ -> classes whose methods are public, by what scripts call them
CLASSES = {
    "_poplar_executor.py": {"PoplarExecutor": "PoplarExecutor"},
    "__init__.py": {
        "DataLoader": "DataLoader",
        "AsynchronousDataAccessor": "AsynchronousDataAccessor",
        "ICustomArgParser": "ICustomArgParser",
    },
    "options.py": {
        "Options": "Options",
        "_TrainingOptions": "Options.Training",
        "_PrecisionOptions": "Options.Precision",
        "_TensorLocationOptions": "Options.TensorLocations",
        "_DistributedOptions": "Options.Distributed",
        "TensorLocationSettings": "TensorLocationSettings",
        "Stage": "Stage",
        "Phase": "Phase",
        "SerialPhasedExecution": "SerialPhasedExecution",
        "ParallelPhasedExecution": "ParallelPhasedExecution",
    },
    "optim.py": {"VariableAttributes": "optim.VariableAttributes", "Optimizer": "optim.Optimizer"},
    "profiling.py": {"Channel": "profiling.Channel"},
}
MODULES = {"ops.py": "", "optim.py": "optim.", "enums.py": "enums.", "profiling.py": "profiling."}


def names(checkout: Path) -> list[str]:
    """Every public name, dotted, below ``poptorch``."""
    python = checkout / "python"
    public = set(_of_package(ast.parse((python / "__init__.py").read_text())))
    for file, prefix in MODULES.items():
        tree = ast.parse((python / file).read_text())
        public |= {prefix + name for name in _defined(tree)}
    for file, classes in CLASSES.items():
        tree = ast.parse((python / file).read_text())
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                public |= {f"{classes[node.name]}.{name}" for name in _defined(node)}
    return sorted(public)


def _of_package(tree: ast.Module) -> Iterator[str]:
    """What is defined in the package, and what it takes from its own modules by name."""
    yield from _defined(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from (
                alias.asname or alias.name
                for alias in node.names
                if not (alias.asname or alias.name).startswith("_") and alias.name != "*"
            )


def _defined(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    yield from (node.name for node in tree.body if isinstance(node, kinds) and node.name[0] != "_")


if __name__ == "__main__":
    print(*names(Path(sys.argv[1])), sep="\n")

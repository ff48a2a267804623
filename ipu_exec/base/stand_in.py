"""The vendor's module names answered by ours (`_STANDS_FOR`).

``lightning_graphcore`` is `ipu_exec.lightning`, which also restores Lightning's IPU names once
the script imports Lightning. ``ipu-run`` asks for it in a script's process. Processes that the
script starts, by whatever means, find the names in the directory ``for_children``, by PYTHONPATH
and ``sys.path``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

from ipu_exec.base import custom_libraries, on_import

# set by ipu-run: in processes of the script, too, poptorch is ipu_exec
STAND_IN_VARIABLE = "IPUSCOPE_STAND_IN"
_FOR_CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "for_children")
_STANDS_FOR = {
    "poptorch": "ipu_exec",
    "popart": "ipu_exec.popart",
    "pva": "ipuscope.profiler.pva",
    "libpvti": "ipuscope.profiler.pvti",
    "pva.pva_core": "ipuscope.profiler.pva.pva_core",
    "popdist": "ipu_exec.popdist",
    "popdist.poptorch": "ipu_exec.popdist.poptorch",
    "horovod": "ipu_exec.horovod",
    "horovod.torch": "ipu_exec.horovod.torch",
}


def stand_in() -> None:
    """Provide our packages under the vendor's names, here and in processes that this starts.

    Each module is registered under both, so that its classes exist only once.
    """
    os.environ[STAND_IN_VARIABLE] = "1"
    _for_children()
    custom_libraries.leave_out()
    for theirs, ours in _STANDS_FOR.items():
        if importlib.util.find_spec(ours) is None:
            continue
        importlib.import_module(ours)
        for name, module in list(sys.modules.items()):
            if name == ours or name.startswith(f"{ours}."):
                sys.modules[theirs + name[len(ours) :]] = module
    # PopTorch imports it where it is installed; it only matters to those who use torch_geometric.
    if importlib.util.find_spec("poptorch_geometric") is not None:
        on_import.after("torch_geometric", _with_poptorch_geometric)
    _stand_in_for_lightning()


def _for_children() -> None:
    """Put the directory on the paths: PYTHONPATH for new interpreters, ``sys.path`` for the rest.

    The script's directory stays before it; multiprocessing's children get ``sys.path``.
    """
    if _FOR_CHILDREN not in sys.path:
        sys.path.insert(1, _FOR_CHILDREN)
    before = os.environ.get("PYTHONPATH", "")
    if _FOR_CHILDREN not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [before]), _FOR_CHILDREN])


def stand_in_for(name: str) -> None:
    """`stand_in`, for a module of ``for_children`` that is being imported by that name."""
    stub = sys.modules[name]
    stand_in()
    if sys.modules[name] is stub:  # answered when it is imported
        del sys.modules[name]
        importlib.import_module(name)


def _with_poptorch_geometric() -> None:
    with contextlib.suppress(ImportError):  # as PopTorch does
        importlib.import_module("poptorch_geometric")


_LIGHTNINGS = ("lightning.pytorch", "pytorch_lightning")  # two copies of one library
_GRAPHCORE = "lightning_graphcore"
_GRAPHCORE_MODULES = ("accelerator", "precision", "strategy", "utils")
_OLD_NAMES = "ipu_exec.lightning.old_names"


def _stand_in_for_lightning() -> None:
    """Only when the script imports it, because it takes seconds and few scripts do."""
    modules = {f"{_GRAPHCORE}.{name}": False for name in _GRAPHCORE_MODULES}
    if not on_import.answer({_GRAPHCORE: True, **modules}, _graphcore):
        return  # done before
    for package in _LIGHTNINGS:
        on_import.after(package, lambda package=package: _restore(package))  # type: ignore[misc]


def _graphcore(module: str) -> Mapping[str, Any]:
    names: Mapping[str, Any] = importlib.import_module(_OLD_NAMES).graphcore(module)
    return names


def _restore(package: str) -> None:
    importlib.import_module(_OLD_NAMES).restore(package)

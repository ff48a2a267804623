"""The vendor's module names answered by ours (`_STANDS_FOR`).

``lightning_graphcore`` is `ipu_exec.lightning`, which also restores Lightning's IPU names once
the script imports Lightning. ``ipu-run`` asks for it in a script's process. Processes that the
script starts, by whatever means, find the names in the directory ``for_children``, by PYTHONPATH
and ``sys.path``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ipu_exec.base import on_import

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
    leave_out()
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
    return importlib.import_module(_OLD_NAMES).graphcore(module)


def _restore(package: str) -> None:
    importlib.import_module(_OLD_NAMES).restore(package)


# -- Libraries of custom operators for PopART are left out by name; `ipu_exec.custom` has some ---


_MOST_SOURCES = 50  # looked into, around a library
_THEIR_LOADER = "examples_utils.load_lib_utils.load_lib_utils"  # of graphcore/examples


def leave_out() -> None:
    """From now on, what loads such a library warns and goes on; all others load as ever."""
    for owner, name in ((ctypes.cdll, "LoadLibrary"), (torch.ops, "load_library")):
        load = getattr(owner, name)
        if not isinstance(load, _Loader):
            setattr(owner, name, _Loader(load))
    on_import.after(_THEIR_LOADER, _replace_their_loader)


class _Loader:
    """A function that loads a library, but for one of custom operators."""

    def __init__(self, load: Callable[[str], Any]) -> None:
        self._load = load

    def __call__(self, path: Any) -> Any:
        try:
            return self._load(path)
        except OSError as error:
            if "libpop" not in str(error) and not _of_popart(str(path)):
                raise
            return _warn(path)


def _replace_their_loader() -> None:
    """It compiles sources whose headers only the vendor's SDK has."""

    def load_lib(filepath: str, timeout: int = 0) -> None:
        if not Path(filepath).exists():
            raise FileNotFoundError(f"File does not exist: {filepath}")
        _warn(filepath)

    sys.modules[_THEIR_LOADER].load_lib = load_lib  # type: ignore[attr-defined]


def _warn(path: object) -> None:
    print(
        f"ipu-run: warning: {path} is code of custom operators for IPUs, and is left out. RemapCE,"
        " ExpMovAvg and CopyTensor work without it; define what another one computes with"
        " ipu_exec.register_custom_op(name, domain, compute)",
        file=sys.stderr,
    )


def _of_popart(library: str) -> bool:
    """Whether sources near a library (in a folder, unlike the system's) are PopART's."""
    return "/" in library and any(
        "popart/" in source for source in islice(_sources(library), _MOST_SOURCES)
    )


def _sources(library: str) -> Iterator[str]:
    for folder, pattern in ((".", "*.cpp"), (".", "*/*.cpp"), ("..", "*.cpp")):
        for source in sorted(Path(library).parent.joinpath(folder).glob(pattern)):
            yield source.read_text(errors="replace")

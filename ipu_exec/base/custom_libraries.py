"""Libraries of custom operators for PopART are left out by name; `ipu_exec.custom` has some."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ipu_exec.base import on_import

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
        " ExpMovAvg and CopyTensor work without; what another one computes,"
        " ipu_exec.register_custom_op(name, domain, compute) says",
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

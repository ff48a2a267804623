"""Origins of a recorded call: the user's line, the module and the (gradient's) forward operator."""

from __future__ import annotations

import bisect
import contextlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import ipuscope

MOST_CALLERS = 16
_STANDARD = str(Path(contextlib.__file__).parent)
_OWN_CODE = tuple(
    str(folder)
    for folder in (
        Path(torch.__file__).parent,
        Path(__file__).parents[2],
        Path(ipuscope.__file__).parent,
    )
)


class SourceLine(NamedTuple):
    """A line of the user's code; ("", 0) if unknown.

    ``callers``: the innermost `MOST_CALLERS` lines that lead to it, "file:line" each, outermost
    first, separated by newlines.
    """

    file: str = ""
    line: int = 0
    callers: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@lru_cache(maxsize=4096)
def is_own_code(file: str) -> bool:
    """Whether a file belongs to torch or to this package, and not to the user."""
    return file.startswith(_OWN_CODE) or file.startswith("<")


def source_line() -> SourceLine:
    """The innermost line of the user's own code, and its callers."""
    frame: FrameType | None = sys._getframe(1)
    lines: list[tuple[str, int]] = []
    while frame is not None and len(lines) <= MOST_CALLERS:
        file = frame.f_code.co_filename
        if not is_own_code(file) and (not lines or _may_call(file)):
            lines.append((file, frame.f_lineno))
        frame = frame.f_back
    if not lines:
        return SourceLine()
    callers = "\n".join(f"{file}:{line}" for file, line in lines[:0:-1])
    return SourceLine(*lines[0], sys.intern(callers))


@lru_cache(maxsize=4096)
def _may_call(file: str) -> bool:
    """Whether a file is neither Python's own nor a command, such as ``ipu-run``."""
    return file.endswith(".py") and (not file.startswith(_STANDARD) or "site-packages" in file)


@contextlib.contextmanager
def following_modules(model: torch.nn.Module, scopes: list[str]) -> Iterator[None]:
    """Inside, ``scopes`` is the path of the module being called, outermost first."""
    names = {id(module): name for name, module in model.named_modules()}
    paths: list[str] = []
    outside = list(scopes)

    def enter(module: torch.nn.Module, args: Any) -> None:
        path = names.get(id(module), module.__class__.__name__)
        parent = paths[-1] if paths else ""
        paths.append(path)
        scopes.append(path.removeprefix(parent + ".") if parent else path)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        paths.pop()
        scopes.pop()

    hooks = torch.nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave),
    ]
    scopes.clear()
    try:
        yield
    finally:
        scopes[:] = outside
        for handle in handles:
            handle.remove()


class AutogradNodes:
    """The forward operator that created each autograd node, by the nodes' sequence numbers."""

    def __init__(self) -> None:
        self._ops: dict[int, int] = {}  # by sequence number
        self._sequence: list[int] = []  # the numbers in order

    def newest_is_of(self, op: int) -> None:
        """Attribute the newest node to this forward op, unless it belongs to another."""
        sequence = torch._C._autograd._get_sequence_nr() - 1
        if sequence >= 0 and sequence not in self._ops:
            self._ops[sequence] = op
            bisect.insort(self._sequence, sequence)

    def forward_op(self, node: Any) -> int:
        """The forward operator of an autograd node, or -1: the last one up to its number."""
        before = bisect.bisect_right(self._sequence, node._sequence_nr())
        return self._ops[self._sequence[before - 1]] if before else -1

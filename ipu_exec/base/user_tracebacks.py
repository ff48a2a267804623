"""Tracebacks of the user's code, without our frames; ``IPUSCOPE_TRACEBACK=full`` shows all."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

import torch

import ipuscope
from ipu_exec.errors import Error
from ipuscope.profiler import ProfileError

VARIABLE = "IPUSCOPE_TRACEBACK"
_P = ParamSpec("_P")
_R = TypeVar("_R")
_OURS = tuple(
    os.fspath(folder) + os.sep
    for folder in (Path(__file__).parents[1], Path(ipuscope.__file__).parent)
)
_TORCH = os.fspath(Path(torch.__file__).parent) + os.sep
_INSTALLED = os.fspath(Path(torch.__file__).parent.parent) + os.sep


def without_our_frames(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let errors from ``function`` show the caller's frames, and those of the user's model."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide(error)
            raise

    return call


def hide(error: BaseException | None) -> None:
    """Remove our frames from an error's and its causes' tracebacks, unless it is a bug of ours."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and os.environ.get(VARIABLE) != "full":
        seen.add(id(error))
        error.__traceback__ = _shown(error)
        error = error.__cause__ or error.__context__


def users_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor an installed package's; None where all are."""
    others = (*_OURS, _INSTALLED, "<frozen")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(others):
        frame = frame.f_back
    return frame


def warn(message: str) -> None:
    """Warn at the user's line."""
    frame = users_frame()
    if frame is None:
        warnings.warn(message, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


warn_once = functools.cache(warn)  # of the same message


def _shown(error: BaseException) -> TracebackType | None:
    entries = list(_entries(error.__traceback__))
    meant = isinstance(error, Error | ProfileError)
    hidden = (*_OURS, _TORCH) if meant else _OURS
    if not entries or (not meant and _is_in(entries[-1], _OURS)):
        return error.__traceback__
    return _chain([entry for entry in entries if not _is_in(entry, hidden)])


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_in(entry: TracebackType, folders: tuple[str, ...]) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(folders)


def _chain(entries: list[TracebackType]) -> TracebackType | None:
    """The entries as a traceback of their own."""
    chained = None
    for entry in reversed(entries):
        chained = TracebackType(chained, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return chained

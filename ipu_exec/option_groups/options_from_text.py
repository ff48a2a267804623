"""Options from the lines of a file and from JSON: literals and our own enumerations only."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from ipu_exec import enums
from ipu_exec.annotations import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from ipu_exec.errors import Error, UsageError
from ipu_exec.option_groups.tensor_locations import TensorLocationSettings


class ConfigFileError(UsageError):
    """A line of a file of options cannot be set."""


def call_line(options: Any, line: str, place: str) -> None:
    """Run ``Group.method(arguments)`` on ``options``; arguments are literals and our enums."""
    try:
        call = ast.parse(line, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("it is not a call")
        method = method_of(options, ast.unparse(call.func).removeprefix("options."))
        arguments = [_argument(node) for node in call.args]
        named = {str(keyword.arg): _argument(keyword.value) for keyword in call.keywords}
        method(*arguments, **named)
    except _OF_FILES as error:
        raise ConfigFileError(
            f"{type(error).__name__} at {place}: {error}\n> {line[:200]}"
        ) from None


# What a file's line may raise: one that is nested too deep for Python's parser is one of them.
_OF_FILES = (
    *(SyntaxError, ValueError, AttributeError, TypeError, LookupError, Error),
    *(RecursionError, MemoryError),
)


def method_of(options: Any, path: str) -> Callable[..., Any]:
    """A method of the options by its dotted name: nothing that Python has beside it."""
    method: Any = options
    for name in path.split("."):
        if name.startswith("_") and name != "_Popart":
            raise AttributeError(f"{path} is not an option")
        method = getattr(method, name)
    return method


def _argument(node: ast.expr) -> Any:
    """A literal, a member of an enumeration, or the result of a constructor of PopTorch's."""
    if isinstance(node, ast.Attribute):
        kind, member = ast.unparse(node).removeprefix("poptorch.").split(".")
        if kind == "torch":
            return getattr(torch, member)
        return getattr(enums, kind)[member]
    if isinstance(node, ast.Call):
        return _made(node)
    return ast.literal_eval(node)


def _made(call: ast.Call) -> Any:
    *before, name = ast.unparse(call.func).removeprefix("poptorch.").split(".", 1)
    arguments = [_argument(node) for node in call.args]
    named = {str(keyword.arg): _argument(keyword.value) for keyword in call.keywords}
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        return getattr(_made(call.func.value), call.func.attr)(*arguments, **named)
    kinds = {kind.__name__: kind for kind in _CONSTRUCTORS}
    if before or name not in kinds:
        raise ValueError(f"{ast.unparse(call.func)} is not one of {', '.join(kinds)}")
    return kinds[name](*arguments, **named)


_CONSTRUCTORS = (
    PipelinedExecution,
    ShardedExecution,
    SerialPhasedExecution,
    ParallelPhasedExecution,
    Phase,
    Stage,
    TensorLocationSettings,
)


def member_of(value: Any) -> Any:
    """The member of an enumeration that a string names; other values as they are."""
    kind, _, member = value.partition(".") if isinstance(value, str) else ("", "", "")
    enum = getattr(enums, kind, None) if member else None
    return enum[member] if isinstance(enum, type) and issubclass(enum, Enum) else value

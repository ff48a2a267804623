"""Lines of a plain PyTorch loop that are left around the call of a training model.

The call runs forward, backward and update, so that these lines do nothing, or not what their
author thinks. They are found before the first compile, where `--compile-only` ends.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_WAYS_OUT = {
    "backward": "delete it",
    "zero_grad": "delete it",
    "step": "delete it",
    "clip": "delete it; poptorch.optim.AdamW(..., max_grad_norm=1.0) clips",
    "scaler": "delete it; options.Training.setAutomaticLossScaling(True) scales the loss",
    "autocast": "delete it; model.half() computes in float16",
}
Leftover = tuple[int, str, str]  # its line, its source, what to do


def warn_of_leftovers(frame: FrameType | None, model: torch.nn.Module) -> None:
    """Warn of all such lines in the innermost loop (or else function) that calls ``model``.

    ``frame``: the caller's. Lines count that concern this model, not one trained on the host.
    """
    if frame is None:
        return
    path, line = frame.f_code.co_filename, frame.f_lineno
    try:
        tree = ast.parse("".join(linecache.getlines(path, frame.f_globals)))
    except SyntaxError:  # a notebook's own commands
        return
    around: list[ast.AST] = [tree]
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or -1):
            around.append(node)
    function = max(k for k, node in enumerate(around) if not k or isinstance(node, _FUNCTIONS))
    inside = around[function:]
    scope = [inside[0], *(node for node in inside if isinstance(node, _LOOPS))][-1]
    leftovers = {*_left(scope, frame, model, _results(inside, scope)), *_autocasts(inside)}
    if leftovers:
        lines = [f"  line {at}: {source}: {what}" for at, source, what in sorted(leftovers)]
        words = "its call runs forward, backward and update; what is left of a loop without it:"
        message = "\n".join([f"{type(model).__name__} is a training model: {words}", *lines])
        warnings.warn_explicit(message, UserWarning, path, line)


def _results(around: list[ast.AST], scope: ast.AST) -> set[str]:
    """The names that the result of the call, or what is computed from it, is assigned to."""
    results = {name for node in around if isinstance(node, ast.Assign) for name in _targets(node)}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and results & _names(node.value):
            results.update(_targets(node))
    return results


def _targets(node: ast.Assign) -> set[str]:
    return set().union(*map(_names, node.targets))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _left(
    scope: ast.AST, frame: FrameType, model: torch.nn.Module, results: set[str]
) -> Iterator[Leftover]:
    weights = {id(parameter) for parameter in model.parameters()}
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        of = getattr(node.func, "value", None)  # what its method is called of
        kind = ""
        if name == "backward" and of is not None:
            kind = "backward" * bool(_names(of) & results)
        elif name in ("clip_grad_norm_", "clip_grad_value_"):
            whose = [_value(one, frame) for one in ast.walk(node.args[0])] if node.args else []
            kind = "clip" * any(_has(one, weights) for one in whose)
        elif isinstance(_value(of, frame), torch.amp.GradScaler):
            kind = "scaler"
        elif name in ("zero_grad", "step") and _has(_value(of, frame), weights):
            kind = name
        if kind:
            yield node.lineno, ast.unparse(node), _WAYS_OUT[kind]


def _autocasts(around: list[ast.AST]) -> Iterator[Leftover]:
    """``with torch.autocast(...)`` around the call."""
    items = [item for node in around if isinstance(node, ast.With) for item in node.items]
    for item in items:
        source = ast.unparse(item.context_expr)
        if "autocast" in source:
            yield item.context_expr.lineno, source, _WAYS_OUT["autocast"]


def _value(node: ast.AST | None, frame: FrameType) -> Any:
    """The value of a name, or of an attribute of one, where reading it runs no code; else None."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        return inspect.getattr_static(owner, node.attr, None) if owner is not None else None
    return None


def _has(value: Any, weights: set[int]) -> bool:
    """Whether an optimiser, or a module, has one of these weights."""
    if isinstance(value, torch.optim.Optimizer):
        named = [one for group in value.param_groups for one in group["params"]]
    elif isinstance(value, torch.nn.Module):
        named = list(value.parameters())
    elif hasattr(type(value), "copyWeightsToHost"):  # the training model itself
        named = list(value.model.parameters())
    else:
        return False
    return any(id(one) in weights for one in named)

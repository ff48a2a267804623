"""The context in which a model runs as on an IPU, and torch functions that it replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.errors import Error

NOTHING = contextlib.nullcontext()  # where nothing is to be entered
_depth = 0


class on_ipu:
    """Inside, a model is compiled or run for modelled IPUs; a generator is slower to enter."""

    def __enter__(self) -> None:
        global _depth
        _depth += 1

    def __exit__(self, *error: object) -> None:
        global _depth
        _depth -= 1


def isRunningOnIpu() -> bool:
    """True inside a model that `trainingModel` or `inferenceModel` compiles or runs, else False."""
    return _depth > 0


# What libraries replace while a model compiles or runs: see `ipu_exec._poplar_executor`.
substitutions: list[type[contextlib.AbstractContextManager[object]]] = []


@contextlib.contextmanager
def substituted() -> Iterator[None]:
    """Inside, the replacements of `substitutions` are active."""
    with contextlib.ExitStack() as stack:
        for manager in substitutions:
            stack.enter_context(manager())
        yield


_refusing = False


@contextlib.contextmanager
def refusing(what_only_an_ipu_forbids: bool) -> Iterator[None]:
    """Inside, `refuse` raises, or only warns."""
    global _refusing
    before, _refusing = _refusing, what_only_an_ipu_forbids
    try:
        yield
    finally:
        _refusing = before


def refuse(message: str, location: str = "") -> None:
    """Error for operations that run here but not on an IPU; a warning if those are allowed."""
    if _refusing:
        raise Error(
            f"{message}. Options.lenient() and ipu-run --lenient let it pass", location=location
        )
    warn_once(f"{message}. PopTorch refuses it{f' [{location}]' if location else ''}")


@contextlib.contextmanager
def no_weights() -> Iterator[None]:
    """Inside, modules are created without memory for their weights, on torch's device "meta".

    Such a model compiles, however large, to the profile of the model with weights, but computes
    nothing: compile it (``compile``, or ``ipu-run --compile-only``).
    """
    with torch.device("meta"):
        yield


def check_weights(model: torch.nn.Module) -> None:
    """Error if a weight or buffer has no memory, and so no values to compute with."""
    named = (*model.named_parameters(), *model.named_buffers())
    name = next((name for name, tensor in named if tensor.device.type == "meta"), None)
    if name is not None:
        raise Error(
            f"{name!r} of {type(model).__name__} has no memory: the model was made inside"
            ' no_weights() or on the device "meta", so that it compiles but cannot run. Call'
            " compile(...) alone (or ipu-run --compile-only), or give it weights:"
            " model.to_empty(device='cpu') and load_state_dict"
        )


@contextlib.contextmanager
def replaced(functions: Mapping[str, Callable[..., Any]], *modules: ModuleType) -> Iterator[None]:
    """Inside, these functions replace those of the same names in torch's modules.

    Not by a TorchFunctionMode: none is active in a backward that runs a checkpointed layer again.
    """
    before = {name: getattr(modules[0], name) for name in functions}
    for module in modules:
        vars(module).update(functions)
    try:
        yield
    finally:
        for module in modules:
            vars(module).update(before)


def copying_before_changes(mutates: bool) -> contextlib.AbstractContextManager[Any]:
    """Around forward and backward: copy what the backward needs before an in-place change."""
    graph = torch.autograd.graph
    return graph.allow_mutation_on_saved_tensors() if mutates else NOTHING

"""The user's module while a training model of it exists.

PopTorch wraps a shallow copy and gives the user's module a class [POPTORCH,
python/_poplar_executor.py] that refuses to be wrapped again, has ``destroy()`` for the training
model, and reports when its weights are requested.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch

ALREADY_WRAPPED = (
    "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model"
    " to unwrap before wrapping again."
)
_WEIGHTS = ("_buffers", "_parameters", "forward")


class Trainer(Protocol):
    """What the user's module needs from its training model."""

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy the trained weights to the module; returns whether that was necessary."""

    def destroy(self) -> None:
        """End the training."""


class Wrapped:
    """Mixed into the class of a module that is being trained."""

    _trainer_of_module: weakref.ref[Trainer]  # on the class, one for each module
    _class_of_module: type[torch.nn.Module]

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Returns whether the training model's weights had to be copied."""
        trainer = type(self)._trainer_of_module()
        return trainer is not None and trainer.copyWeightsToHostIfNeeded()

    def destroy(self) -> None:
        """End the training model; the module can then be wrapped again."""
        trainer = type(self)._trainer_of_module()
        if trainer is not None:
            trainer.destroy()
        unwrap(self)

    def __getattribute__(self, name: str) -> Any:
        if name in _WEIGHTS:
            object.__getattribute__(self, "copyWeightsToHostIfNeeded")()
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        attribute = super().__getattr__(name)  # type: ignore[misc]
        if isinstance(attribute, (torch.nn.Module, torch.Tensor)):
            self.copyWeightsToHostIfNeeded()
        return attribute

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and files contain the module as it was before it was wrapped."""
        self.copyWeightsToHostIfNeeded()
        return _unwrapped, (shallow_copy(self),)  # type: ignore[arg-type]


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    return module


def wrap(module: torch.nn.Module, trainer: Trainer) -> None:
    """Give the module such a class; it refers to the training model without keeping it alive."""
    base = type(module)
    attributes = {
        "_trainer_of_module": weakref.ref(trainer),
        "_class_of_module": base,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    module.__class__ = type(base.__name__, (Wrapped, base), attributes)


def unwrap(module: Any) -> None:
    """Restore the module's own class, if it was changed."""
    if isinstance(module, Wrapped):
        module.__class__ = type(module)._class_of_module  # type: ignore[assignment]


def is_wrapped(module: Any) -> bool:
    """Whether a training model of it exists, or did and was not destroyed."""
    return isinstance(module, Wrapped)


def trainer_of(module: Any) -> Any:
    """The training model of a wrapped module; None if there is none (any more)."""
    return type(module)._trainer_of_module() if isinstance(module, Wrapped) else None


def shallow_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy with its own attributes that shares weights and submodules, as in PopTorch."""
    kind = type(module)._class_of_module if isinstance(module, Wrapped) else type(module)
    copied: torch.nn.Module = object.__new__(kind)  # torch.fx's __new__ makes another class
    vars(copied).update(vars(module))
    return copied

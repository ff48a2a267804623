"""A LightningModule's step as the module that is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.base.structures import learn, taken_apart
from ipu_exec.capture.loss import mark_loss
from ipu_exec.capture.recording.unchanged import unchanged
from ipu_exec.errors import UsageError
from ipu_exec.lightning.logged import collected
from ipu_exec.lightning.metrics import on_host_where_needed
from ipu_exec.lightning.numbers import Asked, asked

_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


@dataclass(slots=True)
class _Call:
    """A step's arguments: the batch's leaves, the function that assembles them, and the others."""

    leaves: list[Any]
    together: Callable[[Iterable[Any]], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: tuple[bool, ...]


class StepModule(torch.nn.Module):
    """Runs ``training_step`` (or another) of a LightningModule.

    It has the LightningModule's weights and parts, under the names they have there. Called with the
    tensors of the batch; `arguments` said where they belong. ``path`` has the answers that the last
    run's questions about epoch, step and batch number got. While it is being compiled it leaves the
    LightningModule and its results as they were, and gives what is logged as outputs.
    """

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        vars(self)["_lightning"] = module  # no part of this one, so that names stay its own
        super().__init__()
        for shared in _SHARED:
            vars(self)[shared] = vars(module).get(shared, vars(self)[shared])
        self.name = name
        self._compiling = False
        # apart from the module, whose attributes take long to set
        vars(self)["_call"] = _Call([], list, (), {}, ())

    @property
    def path(self) -> tuple[bool, ...]:
        """The recorded answers to the last run's questions."""
        return self._last_call.path

    @property
    def _last_call(self) -> _Call:
        call: _Call = vars(self)["_call"]
        return call

    @property
    def training(self) -> bool:
        """The LightningModule's mode."""
        return bool(vars(self)["_lightning"].training)

    @training.setter
    def training(self, mode: bool) -> None:
        pass

    def named_modules(
        self,
        memo: set[torch.nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the LightningModule as itself too: its forward adds nothing to operator names."""
        yield from super().named_modules(memo, prefix, remove_duplicate)
        yield prefix, vars(self)["_lightning"]

    @classmethod
    def of(cls, module: torch.nn.Module, name: str) -> StepModule:
        """An instance of a class named like the LightningModule, for messages and profiles."""
        return type(type(module).__name__, (cls,), {})(module, name)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Take a step's arguments, the batch first; returns the batch's tensors."""
        batch, *rest = args
        learn(batch)
        leaves, together = taken_apart(batch)
        vars(self)["_call"] = _Call(leaves, together, tuple(rest), kwargs, self.path)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside, the step runs for its operations and not for its numbers."""
        self._compiling = True
        try:
            yield
        finally:
            self._compiling = False

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run the step on these tensors."""
        if not self._compiling:
            return self._run(tensors)
        module = vars(self)["_lightning"]
        with (
            unchanged(module),
            collected(module.trainer) as logs,
            on_host_where_needed(module) as sent,
        ):
            returned = self._run(tensors)
            values = [log.tensor for log in logs if log.tensor is not None]
        return self._outputs(returned, (*values, *sent))

    def _run(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        module, call = vars(self)["_lightning"], self._last_call
        remaining = iter(tensors)
        leaves = [
            next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves
        ]
        batch = call.together(leaves)
        with asked(module.trainer) as answers:
            numbers = [_asked(value, answers) for value in call.args]
            named = {name: _asked(value, answers) for name, value in call.kwargs.items()}
            returned = getattr(module, self.name)(batch, *numbers, **named)
        call.path = tuple(answers)
        return returned

    def _outputs(self, returned: Any, values: tuple[torch.Tensor, ...]) -> Any:
        """The outputs to the host: logged values, the step's result, and the loss last."""
        if self.name != "training_step":
            return values, tree_leaves(returned)
        loss = loss_of(returned)
        if loss is None:
            raise UsageError(
                f"{type(self).__name__}.training_step returned no loss: an IPU's program has the"
                " weight update of every micro-batch in it, and cannot leave one out. Return the"
                " loss times 0 to leave a batch out"
            )
        others = [leaf for leaf in tree_leaves(returned) if leaf is not loss]
        return values, others, mark_loss(loss)


def loss_of(returned: Any) -> torch.Tensor | None:
    """The loss among what a training_step returned, as Lightning looks for it."""
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    return loss if isinstance(loss, torch.Tensor) else None


def _asked(value: Any, answers: list[bool]) -> Any:
    return Asked.of(value, answers) if type(value) is int else value

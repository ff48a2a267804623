"""A LightningModule's step as the module that is compiled."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.base.structures import learn, taken_apart
from ipu_exec.capture.loss import mark_loss
from ipu_exec.capture.recording.unchanged import unchanged
from ipu_exec.errors import ContentError, Error, UsageError
from ipu_exec.lightning.logged import collected

# -- Whole numbers that record the comparisons made with them --- A compiled program is one path
# through the model. If the step branches on ``batch_idx``, ``self.current_epoch`` or
# ``self.global_step``, the recorded answers identify the path.
#


class Asked(int):
    """A number in a step, or computed from one, that records comparisons and tests for 0."""

    answers: list[bool]

    @classmethod
    def of(cls, value: int, answers: list[bool]) -> Self:
        """``value``, recording its answers in ``answers``."""
        instance = cls(value)
        instance.answers = answers
        return instance

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __bool__(self) -> bool:
        self.answers.append(int(self) != 0)
        return self.answers[-1]

    def __reduce__(self) -> Any:
        return int, (int(self),)  # copied or saved, it is a plain number


def _comparison(name: str) -> Any:
    plain = getattr(int, name)

    def compare(self: Asked, other: Any) -> Any:
        answer = plain(self, other)
        if answer is not NotImplemented:
            self.answers.append(answer)
        return answer

    return compare


def _arithmetic(name: str) -> Any:
    plain = getattr(int, name)

    def compute(self: Asked, *others: Any) -> Any:
        outcome = plain(self, *others)
        return Asked.of(outcome, self.answers) if type(outcome) is int else outcome

    return compute


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Asked, f"__{_name}__", _comparison(f"__{_name}__"))
for _name in ("add", "sub", "mul", "mod", "floordiv", "and", "or", "xor"):
    setattr(Asked, f"__{_name}__", _arithmetic(f"__{_name}__"))
    setattr(Asked, f"__r{_name}__", _arithmetic(f"__r{_name}__"))
Asked.__neg__ = _arithmetic("__neg__")  # type: ignore[method-assign]


@contextlib.contextmanager
def asked(trainer: Any) -> Iterator[list[bool]]:
    """Inside, the trainer's epoch and global step record the comparisons with them."""
    answers: list[bool] = []
    loop = trainer.fit_loop
    epoch = loop.epoch_progress.current
    steps = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    before = epoch.processed, steps.completed
    epoch.processed = Asked.of(epoch.processed, answers)
    steps.completed = Asked.of(steps.completed, answers)
    try:
        yield answers
    finally:
        epoch.processed, steps.completed = before


# -- torchmetrics metrics in a step that is being compiled: on the chip, or left to the host ---
# A metric whose shapes depend on data (an exact curve) cannot be part of a program. The host
# computes it from the step's values, which leave the chip with each micro-batch.


@contextlib.contextmanager
def on_host_where_needed(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Inside, ``module`` runs to be captured; yields what its metrics get on the host.

    The caller restores the metrics' attributes (`ipu_exec.capture.recording.unchanged`).
    """
    sent: list[torch.Tensor] = []
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is not None:
        for part in module.modules():
            if isinstance(part, torchmetrics.Metric):
                _try_on_chip(part, sent)
    yield sent


def _try_on_chip(metric: Any, sent: list[torch.Tensor]) -> None:
    forward, update = metric.forward, metric.update
    running = False  # forward, which updates too

    def attempt(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except ContentError:
            raise
        except Error:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            sent.extend(tensors)
            metric._forward_cache = torch.zeros(())  # a number that is not used
            return metric._forward_cache

    def run_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        running = True
        try:
            return attempt(forward, args, kwargs)
        finally:
            running = False

    def run_update(*args: Any, **kwargs: Any) -> Any:
        return update(*args, **kwargs) if running else attempt(update, args, kwargs)

    vars(metric).update(forward=run_forward, update=run_update)


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
    """Runs ``training_step`` (or another) of a LightningModule, with its weights, parts and names.

    Called with the tensors of the batch; `arguments` tells where they belong. ``path`` has the
    answers to the last run's questions about epoch, step and batch number. While compiling it
    leaves the LightningModule and its results as they were, and outputs logged values.
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
        return vars(self)["_call"]

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

"""Anchored tensors (``Options.anchorTensor``): values that a call returns besides its outputs.

Names are the compiled graph's: ``fc1/addmm:0`` (an operator's result), ``fc1.weight``,
``input.0``; and PopTorch's ``Gradient___fc1.weight`` (of one micro-batch, times the loss scaling)
and ``UpdatedVar___fc1.weight`` (after a weight update), or ``...___model.fc1.weight``.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ipu_exec.base.structures import tensors_in
from ipu_exec.capture.recording.recorder import Recorder
from ipu_exec.enums import OutputMode
from ipu_exec.errors import UsageError
from ipu_exec.graph import Graph
from ipu_exec.numerics.call import CallPlan, Outputs
from ipu_exec.numerics.floating_point import Operands, check, check_weights, look_at
from ipuscope.profiler.enums import Direction, Role

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"


@dataclass(frozen=True, slots=True)
class Anchor:
    """A tensor to keep. ``mode`` None: the outputs' mode."""

    name: str
    mode: OutputMode | None = None
    period: int = 1


def tensor_names(graph: Graph) -> list[str]:
    """Every name of the graph that can be anchored, sorted."""
    names = {s.name for s in graph.storages.values() if _can_be_anchored(s.name, s.role)}
    if graph.training:
        trained = {s.parameter for s in graph.storages.values() if s.parameter >= 0}
        trained |= {
            graph.values[v].storage
            for op in graph.ops
            if op.direction == Direction.UPDATE
            for v in op.writes
        }
        weights = [
            s.name for s in graph.storages.values() if s.id in trained and s.role == Role.WEIGHT
        ]
        names |= {prefix + name for prefix in (GRADIENT, UPDATED) for name in weights}
    return sorted(names)


def _can_be_anchored(name: str, role: str) -> bool:
    """Whether a tensor has its graph name as an anchor: none of a weight update or its states."""
    # a weight's gradient is called Gradient___
    if "/update/" in name or name.endswith("/gradient"):
        return False
    return bool(name) and role in (
        Role.WEIGHT,
        Role.BUFFER,
        Role.INPUT,
        Role.ACTIVATION,
        Role.GRADIENT,
    )


def canonical(name: str, names: set[str]) -> str:
    """The name in the graph. If there is none, UsageError lists the nearest ones."""
    for prefix in (GRADIENT, UPDATED):
        if name.startswith(f"{prefix}model.") and name not in names:
            name = prefix + name[len(prefix) + len("model.") :]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
        raise UsageError(
            f"anchorTensor: the model has no tensor {name!r}; it has"
            f" {', '.join(map(repr, near)) or 'none like it'}. getTensorNames() of the compiled"
            " model gives them all"
        )
    return name


class Watch:
    """Stores anchored tensors during a call. ``anchors`` have canonical names.

    ``exceptions``: Error for a floating-point exception of any tensor. ``others``: not the
    graph's.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        anchors: Mapping[str, Anchor],
        plan: CallPlan,
        training: bool,
        exceptions: bool = False,
        others: Callable[[], Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        self._others = others
        self._model, self._anchors, self._plan, self._training = model, anchors, plan, training
        self._exceptions = exceptions
        self._outputs = {short: Outputs(self._plan_of(anchor)) for short, anchor in anchors.items()}
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._values: dict[str, torch.Tensor] = {}
        self._recorder: _Finder | None = None

    def _plan_of(self, anchor: Anchor) -> CallPlan:
        """An anchor's output mode; a weight is updated once an iteration, alike in all replicas."""
        plan = self._plan
        if anchor.mode is not None and anchor.mode is not OutputMode.Default:
            plan = replace(plan, output_mode=anchor.mode, output_period=anchor.period)
        return (
            replace(plan, accumulation=1, replicas=1) if anchor.name.startswith(UPDATED) else plan
        )

    @contextlib.contextmanager
    def micro_batch(self, inputs: Any, iteration: int, step: int, replica: int) -> Iterator[None]:
        """Inside, operators belong to that micro-batch; `backward` marks its backward."""
        self._values = {f"input.{i}": leaf for i, leaf in enumerate(tensors_in(inputs))}
        state = {**self._parameters, **dict(self._model.named_buffers(remove_duplicate=False))}
        for name in self._names & state.keys():
            self._store(name, state[name])
        if self._others is not None:
            self._values |= self._others()
        hooks = [
            parameter.register_hook(
                lambda gradient, name=name: self._store(GRADIENT + name, gradient)
            )
            for name, parameter in self._parameters.items()
            if GRADIENT + name in self._names and parameter.requires_grad
        ]
        try:
            inside = (
                self._names
                - set(self._values)
                - {n for n in self._names if n.startswith((GRADIENT, UPDATED))}
            )
            if inside or self._exceptions:
                finder = _Finder(self._training, self._names, self._values, self._exceptions)
                self._recorder = finder
                with self._recorder.modules(self._model), self._recorder:
                    yield
            else:
                yield
        finally:
            self._recorder = None
            for hook in hooks:
                hook.remove()
        for short, anchor in self._anchors.items():
            if not anchor.name.startswith(UPDATED):
                if anchor.name not in self._values:
                    raise UsageError(
                        f"anchored tensor {anchor.name!r} was not made in this call: is it used"
                        " there?"
                    )
                self._outputs[short].add(self._values[anchor.name], iteration, step, replica)

    def backward(self) -> None:
        """Mark the beginning of the backward pass."""
        if self._recorder is not None:
            self._recorder.direction = Direction.BACKWARD

    def updated(self, iteration: int) -> None:
        """Mark that the optimiser has run."""
        if self._exceptions:
            check_weights(dict(self._model.named_parameters()))
        for short, anchor in self._anchors.items():
            if anchor.name.startswith(UPDATED):
                weight = self._parameters[anchor.name[len(UPDATED) :]]
                self._outputs[short].add(weight.detach().clone(), iteration, 0, 0)

    def result(self) -> dict[str, torch.Tensor]:
        """Anchored tensors of this call by short name, combined according to the output mode."""
        return {
            short: outputs.result() for short, outputs in self._outputs.items() if outputs.returned
        }

    @property
    def _names(self) -> set[str]:
        return {anchor.name for anchor in self._anchors.values()}

    def _store(self, name: str, tensor: torch.Tensor) -> None:
        self._values[name] = tensor.detach().clone()


class _Finder(Recorder):
    """Names operators as the compiler does on real numbers, and stores results asked for."""

    def __init__(
        self, training: bool, names: set[str], values: dict[str, torch.Tensor], exceptions: bool
    ) -> None:
        super().__init__(training)
        self._wanted, self._results, self._exceptions = names, values, exceptions
        self._operands = Operands(False, False, False)

    def read_content(self, tensor: torch.Tensor) -> Any:
        return torch.ops.aten._local_scalar_dense.default(tensor)

    def run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._exceptions:
            self._operands = look_at(args, kwargs)
        return func(*args, **kwargs)

    def record(self, func: Any, aten: str, args: Any, kwargs: Any, out: Any) -> None:
        super().record(func, aten, args, kwargs, out)
        if self._exceptions:
            check(self.graph.ops[-1], self._operands, out)
        name = self.graph.ops[-1].name
        for index, result in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
            if f"{name}:{index}" in self._wanted and isinstance(result, torch.Tensor):
                self._results[f"{name}:{index}"] = result.detach().clone()

"""Operators that PyTorch does not have: users' own (``custom_op``), and host work (``CPU``).

PopTorch loads a custom operator's code from a shared library for the IPU. Here the user supplies
its computation as a function of tensors and, if it is more than those PyTorch operators, a
lowering.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ipu_exec.base.checks import check_tensor
from ipu_exec.base.context import isRunningOnIpu
from ipu_exec.errors import UsageError
from ipu_exec.lowering import Builder
from ipu_exec.lowering.operators.gather import gather_in_rows
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.lowering.registry import Lowering, lowering
from ipu_exec.machine import HOST_LATENCY_SECONDS, Machine
from ipu_exec.ops import results_of

Compute = Callable[..., Any]
_NAMESPACE = "ipu_custom"
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class _Custom:
    compute: Compute
    operator: Any  # the torch.library operator, where it has a lowering


_CUSTOM: dict[tuple[str, str], _Custom] = {}


def register_custom_op(
    name: str,
    domain: str,
    compute: Compute,
    lowering: Lowering | None = None,
    backward_lowering: Lowering | None = None,
) -> None:
    """Define the computation and the cost of the `custom_op` with that name and domain.

    ``compute(*inputs, **attributes)`` returns one or more tensors, by differentiable PyTorch
    operators. Without ``lowering`` the compiler sees those. With ``lowering(spec, machine) ->
    Plan`` it sees a single ``ipu_custom.<domain>_<name>``: ``spec.args[0]`` has the operands and
    ``spec.args[1]`` the attributes as JSON. ``backward_lowering`` gets inputs and then gradients
    in ``spec.args[0]``; without it training is an error. The last registration of a name wins.
    """
    if not callable(compute):
        raise UsageError(f"register_custom_op: compute is a function of tensors, not {compute!r}")
    operator = (
        _library_operator(name, domain, compute, lowering, backward_lowering)
        if lowering is not None
        else None
    )
    _CUSTOM[domain, name] = _Custom(compute, operator)


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Run a custom operator that was registered with `register_custom_op`.

    ``example_outputs`` have the outputs' shapes and dtypes; ``attributes``: numbers, texts, or
    lists of one of them, by name. Error if the operator is unknown or its outputs do not match.
    """
    check_tensor("custom_op", *inputs, *example_outputs)
    attribute_values = dict(attributes or {})
    _check_attributes(attribute_values)
    entry = _CUSTOM.get((domain, name))
    if entry is None:
        registered = ", ".join(f"{domain}.{name}" for domain, name in sorted(_CUSTOM)) or "none"
        raise UsageError(
            f"custom_op: {domain}.{name} is not registered; registered are {registered}. Shared"
            " libraries for the IPU cannot run here: define what it computes with"
            " ipu_exec.register_custom_op(name, domain, compute)"
        )
    if entry.operator is not None and isRunningOnIpu():
        outputs = list(entry.operator(list(inputs), json.dumps(attribute_values)))
    else:
        outputs = results_of(entry.compute(*inputs, **attribute_values))
    wanted = [(tuple(t.shape), t.dtype) for t in example_outputs]
    specs = [(tuple(t.shape), t.dtype) for t in outputs]
    if wanted != specs:
        raise UsageError(
            f"custom_op {domain}.{name}: example_outputs promise {wanted}, but it returned {specs}"
        )
    return outputs


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise UsageError(f"All attribute keys must be strings, not {name!r}")
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, (int, float, str)) for item in items):
            raise UsageError(
                "Attribute values must be floats, ints, strings or a list/tuple of those, not"
                f" {value!r}"
            )
        if len({type(item) for item in items}) > 1:
            raise UsageError(
                f"The types in a list/tuple attribute must all be the same, unlike in {value!r}"
            )
        for number in items:
            if isinstance(number, float) and abs(number) > _LARGEST:
                bound = "low" if number < 0 else "high"
                raise UsageError(
                    f"{number:g} is too {bound} for a Popart float attribute. It has 32 bits"
                )
        for text in (name, *items):
            if isinstance(text, str) and not text.isascii():
                raise UsageError(f"{text} contains non-ASCII characters.")


def _torch_name(*words: str) -> str:
    return re.sub(r"\W", "_", "_".join(word for word in words if word))


_counts: dict[str, int] = {}


def _unique(name: str) -> str:
    """A new name: a torch.library operator is permanent, even if it is registered again."""
    _counts[name] = _counts.get(name, -1) + 1
    return f"{name}_{_counts[name]}" if _counts[name] else name


def _library_operator(
    name: str, domain: str, compute: Compute, forward: Lowering, backward: Lowering | None
) -> Any:
    """One operator as the compiler sees it, with another as its gradient."""
    short = _unique(_torch_name(domain, name))
    schema = "(Tensor[] inputs, str attributes) -> Tensor[]"

    def run(inputs: Sequence[torch.Tensor], attributes: str) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in results_of(compute(*inputs, **json.loads(attributes)))]

    def gradient(
        inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], attributes: str
    ) -> list[Any]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
            outputs = results_of(compute(*leaves, **json.loads(attributes)))
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            results: Sequence[torch.Tensor] = [torch.zeros_like(leaf) for leaf in wanted]
            if pairs and wanted:
                ends, seeds = [o for o, _ in pairs], [g for _, g in pairs]
                results = torch.autograd.grad(
                    ends, wanted, seeds, allow_unused=True, materialize_grads=True
                )
            remaining = iter(results)
        return [
            next(remaining) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in leaves
        ]

    def shapes(
        inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], attributes: str
    ) -> list[Any]:
        return [torch.empty_like(tensor) for tensor in inputs]

    operator = torch.library.custom_op(
        f"{_NAMESPACE}::{short}", run, mutates_args=(), schema=schema
    )
    operator.register_fake(run)
    derived = torch.library.custom_op(
        f"{_NAMESPACE}::{short}_backward",
        gradient,  # never run: autograd is off inside an operator. It is there to be captured
        mutates_args=(),
        schema="(Tensor[] inputs, Tensor[] gradients, str attributes) -> Tensor[]",
    )
    derived.register_fake(shapes)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.attributes = inputs[1]
        ctx.outputs = [(o.shape, o.dtype) for o in output]
        ctx.save_for_backward(*inputs[0])

    def differentiate(
        ctx: Any, gradients: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor], None]:
        whole = [
            torch.zeros(shape, dtype=dtype) if g is None else g.contiguous()
            for g, (shape, dtype) in zip(gradients, ctx.outputs, strict=True)
        ]
        inputs = list(ctx.saved_tensors)
        captured = any(isinstance(tensor, FakeTensor) for tensor in inputs)
        return list((derived if captured else gradient)(inputs, whole, ctx.attributes)), None

    operator.register_autograd(differentiate, setup_context=save)
    lowering(f"{_NAMESPACE}.{short}")(forward)
    if backward is not None:
        lowering(f"{_NAMESPACE}.{short}_backward")(backward)
    return operator


# -- the host ---


class CPU:
    """Runs ``layer_to_call`` on the host in an inference model: ``self.host = CPU(layer, "name")``.

    The profile has the transfers of arguments and results (latency and rate of the host's link),
    not the host's time. Shapes of results come from one call on zeros when compiling.
    """

    def __init__(self, layer_to_call: Compute, ID: str) -> None:
        if not callable(layer_to_call) or not isinstance(ID, str):
            raise UsageError(f"CPU takes a function and a name, not {layer_to_call!r} and {ID!r}")
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer, self._name = layer_to_call, ID
        self._operator: Any = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The layer's results for these tensors."""
        if not isRunningOnIpu():
            return self._layer(*inputs)
        check_tensor(f"CPU {self._name!r}", *inputs)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            raise UsageError(
                f"CPU {self._name!r}: operators of the host run in inference models only"
            )
        if self._operator is None:
            self._operator = self._register()
        outputs = self._operator(list(inputs))
        return outputs[0] if self._single else outputs

    def _register(self) -> Any:
        short = _unique(_torch_name("host", self._name))

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            returned = self._layer(*inputs)
            self._single = isinstance(returned, torch.Tensor)
            return [tensor.detach().clone() for tensor in results_of(returned)]

        def fake(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with _disable_current_modes():
                shapes = [
                    (t.shape, t.dtype)
                    for t in run([torch.zeros(tuple(t.shape), dtype=t.dtype) for t in inputs])
                ]
            return [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]

        operator = torch.library.custom_op(
            f"{_NAMESPACE}::{short}", run, mutates_args=(), schema="(Tensor[] inputs) -> Tensor[]"
        )
        operator.register_fake(fake)
        lowering(f"{_NAMESPACE}.{short}")(_host_call)
        return operator

    def __deepcopy__(self, memo: dict[int, Any]) -> CPU:
        return CPU(self._layer, self._name)

    def __reduce__(self) -> Any:
        return CPU, (self._layer, self._name)


def _host_call(spec: OpSpec, machine: Machine) -> Plan:
    """Arguments to the host, results back: docs/machine.md#host-and-streaming-memory.

    Cycles: twice the latency, and all bytes at the host's rate.
    """
    build = Builder(spec, machine)
    operands = [build.place(index) for index in range(len(spec.operands))]
    outputs = [out for out in spec.outputs if out is not None]
    nbytes = sum(operand.nbytes for operand in (*operands, *outputs))
    target = machine.target
    cycles = round(
        target.clock_hz * (2 * HOST_LATENCY_SECONDS + nbytes / target.host_bytes_per_second)
    )
    spreads = [build.linear(out.elements, out.dtype) for out in outputs]
    busy = sum((spread.elements for spread in spreads), np.zeros(machine.tiles, np.int64)) > 0
    build.compute("host", "ipuscope::HostCall", np.where(busy, cycles, 0))
    layouts = tuple(build.linear_layouts(spec.outputs))
    return build.plan(layouts, note="the host's own time is not modelled")


def _fast_gather_last_dim(
    data: torch.Tensor, index: torch.Tensor, **attributes: Any
) -> torch.Tensor:
    """Select entries of the last dimension, separately for each row.

    PopTorch's own custom operator ([POPTORCH,
    popart_compiler/source/custom_operations/FastGatherLastDim.cpp]; Hugging Face's DeBERTa uses
    it). Its attributes are names for debugging and an axis, which is the last.
    """
    if data.dim() != index.dim() or data.shape[:-1] != index.shape[:-1]:
        raise UsageError(
            "FastGatherLastDim: the index has the dimensions of the data except for the last,"
            f" unlike {tuple(index.shape)} and {tuple(data.shape)}"
        )
    return torch.gather(data, -1, index.long())


register_custom_op(
    "FastGatherLastDim",
    "poptorch.custom_ops",
    _fast_gather_last_dim,
    gather_in_rows,
    gather_in_rows,
)


def _remapped(tensor: torch.Tensor, **attributes: Any) -> torch.Tensor:
    """The tensor, laid out anew: RemapCE of graphcore/examples, whose attributes are layouts."""
    return tensor.clone()


def _moving_average(
    weight: torch.Tensor, average: torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    """ExpMovAvg of graphcore/examples: PopART's AccumulateOp as a moving average, in place."""
    with torch.no_grad():
        return average.mul_(factor).add_(weight * (1 - factor))


register_custom_op("RemapCE", "ai.graphcore", _remapped)
register_custom_op("CopyTensor", "ai.graphcore", _remapped)
register_custom_op("ExpMovAvg", "com.acme", _moving_average)

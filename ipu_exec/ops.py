"""Operations that PopTorch adds to PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from ipu_exec.base.checks import check_proportion, check_tensor
from ipu_exec.base.context import isRunningOnIpu
from ipu_exec.base.tensor_text import FLOAT_FORMATS, Layout, laid_out
from ipu_exec.capture import overlap
from ipu_exec.capture.loss import mark_loss
from ipu_exec.capture.recording.open_blocks import open_multi_conv
from ipu_exec.enums import MatMulSerializationMode, MultiConvPlanType, OverlapMode
from ipu_exec.errors import UsageError

Body = Callable[..., Any]


def identity_loss(x: torch.Tensor, reduction: str | int) -> torch.Tensor:
    """Mark ``x`` as the loss to differentiate, after reducing it: "sum", "mean" or "none".

    "none" takes a single number. Return the result from the model: training looks for the loss
    among its outputs. PopTorch's old numbers 0 (sum), 1 (mean), 2 (none) work too.
    """
    name = (
        {0: "sum", 1: "mean", 2: "none"}.get(reduction) if isinstance(reduction, int) else reduction
    )
    if name == "sum":
        loss = x.sum()
    elif name == "mean":
        loss = x.mean()
    elif name == "none":
        loss = x
    else:
        raise UsageError(f"identity_loss: reduction is 'sum', 'mean' or 'none', not {reduction!r}")
    return mark_loss(loss)


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Does nothing, as in PopTorch."""
    check_tensor("nop", tensor)
    return tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Store ``tensors`` for the backward pass if a stage recomputes its activations.

    Returns its argument: a tensor, tuple or list. Numbers do not depend on it.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return type(tensors[0])(recomputationCheckpoint(tensor) for tensor in tensors[0])
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise UsageError("recomputationCheckpoint takes one or more tensors")
    for tensor in tensors:
        tensor._ipu_checkpoint = True  # capture looks for it
    return tensors[0] if len(tensors) == 1 else tensors


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Plan the operator that made ``tensor`` within this share (above 0, up to 1) of tile memory.

    For matrix products, convolutions and their gradients, also through views, casts and the
    addition of a bias; no effect on other operators, nor on any numbers.
    """
    check_tensor("set_available_memory", tensor)
    proportion = check_proportion("set_available_memory", available_memory_proportion)
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, which shards make
    if isinstance(local, FakeTensor):
        local._ipu_proportion = proportion  # type: ignore[attr-defined]  # capture looks for it
    return tensor


# -- control flow ---


def for_loop(count: int, body: Body, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run ``body`` ``count`` times, each time on its previous results; ``inputs`` do not change.

    Error in a training model: PopART cannot differentiate loops. The profile has the body's
    operators once per iteration, but their code only once.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise UsageError(f"for_loop: count is a whole number, 0 or more, not {count!r}")
    _check_list("poptorch.for_loop", "inputs", inputs)
    _check_inference("poptorch.for_loop()")
    state = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        state = results_of(body(*state))
        if len(state) != len(inputs):
            raise UsageError(
                f"for_loop: the body takes {len(inputs)} tensors and returns {len(state)}: as many"
                " go on"
            )
    return state


def cond(
    condition: torch.Tensor,
    then_body: Body,
    then_inps: list[torch.Tensor],
    else_body: Body,
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """``then_body`` on copies of its inputs if ``condition`` (one bool) holds, else ``else_body``.

    The profile has both: its cycles are an upper bound. Error in a training model, and if the
    bodies return tensors of different number, shape or dtype.
    """
    check_tensor("cond", condition)
    _check_list("poptorch.cond", "then_inps", then_inps)
    _check_list("poptorch.cond", "else_inps", else_inps)
    _check_inference("poptorch.cond()")
    if not isinstance(condition, FakeTensor):
        body, inputs = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
        return results_of(body(*(tensor.clone() for tensor in inputs)))
    yes = results_of(then_body(*(tensor.clone() for tensor in then_inps)))
    no = results_of(else_body(*(tensor.clone() for tensor in else_inps)))
    kinds = [[(tuple(tensor.shape), tensor.dtype) for tensor in made] for made in (yes, no)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"cond: the bodies return different tensors: then {kinds[0]}, else {kinds[1]}"
        )
    which = condition.reshape(())
    return [torch.where(which, a, b) for a, b in zip(yes, no, strict=True)]


def _check_list(place: str, name: str, inputs: Any) -> None:
    """Error, in PopTorch's words, if ``inputs`` is not a list of tensors."""
    if not isinstance(inputs, list):
        raise UsageError(
            f"{place} expects {name} to be a list of tensors: (Object is not list), but"
            f" {type(inputs)}"
        )
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"{place} expects {name} to be a list of tensors: (Object contained in list at"
                f" index {index} is not torch.tensor), but {type(value)}"
            )


def _check_inference(place: str) -> None:
    if isRunningOnIpu() and torch.is_grad_enabled():
        raise UsageError(
            f"{place} is only supported in inference models: PopART has no gradient of it. For"
            " training, write the loop out in Python, or choose with torch.where"
        )


def results_of(returned: Any) -> list[torch.Tensor]:
    """The tensors that a function returned: several, or one."""
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


# -- slices whose place is data ---


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """``tensor[start : start + size : step]`` along ``dim``; ``start`` is a tensor of one number.

    Error if ``size`` is 0, negative or, as in PopART, not a divisor of the dimension.
    """
    check_tensor("dynamic_slice", tensor, start)
    _check_numbers("dynamic_slice", dim=dim, size=size, step=step)
    _check_slice("dynamic_slice", size)
    if tensor.shape[dim] % size:
        raise UsageError(
            f"dynamic_slice: The size of the slice ({size}) must be a factor of the slicing"
            f" dimension ({tensor.shape[dim]}). Take another size, or pad the tensor"
        )
    return tensor.index_select(
        dim, start.reshape(()) + torch.arange(0, size, step, device=start.device)
    )


def _on_device(tensor: torch.Tensor) -> torch.dtype:
    """Its dtype on the device: 64-bit numbers are narrowed."""
    return {torch.int64: torch.int32, torch.float64: torch.float32}.get(tensor.dtype, tensor.dtype)


def _check_slice(place: str, size: int) -> None:
    if size == 0:
        raise UsageError(
            f"{place}: The start and end of a slice must be different. Take a size above 0"
        )
    if size < 0:
        raise UsageError(
            f"{place}: Taking a slice of a tensor with the end less than the start is not"
            " supported. Take a size above 0"
        )


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """A copy of ``input`` with ``[start : start + size]`` along ``dim`` replaced by ``src``."""
    check_tensor("dynamic_update", input, src, start)
    _check_numbers("dynamic_update", dim=dim, size=size)
    if input.dim() != src.dim():
        raise UsageError(
            f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})"
        )
    if input.dtype != src.dtype:
        raise UsageError(
            f"input and src tensor must have same dtype. ({_on_device(input)} vs {_on_device(src)})"
        )
    _check_slice("dynamic_update", size)
    places = start.reshape(()).long() + torch.arange(size, device=start.device)
    return input.index_copy(dim, places, src)


def _check_numbers(place: str, **values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{place}: {name.capitalize()} must be an integer, not {value!r}")


# -- matrix products and convolutions ---


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``lhs @ rhs`` in ``factor`` parts, one after the other: fewer temporaries are live at a time.

    Of (m x n) by (n x p), InputChannels splits m, ReducingDim n (adding the parts, in float32 if
    ``keep_precision``), OutputChannels p. Error if ``factor`` does not divide the dimension.
    """
    check_tensor("serializedMatMul", lhs, rhs)
    if not isinstance(mode, MatMulSerializationMode):
        raise UsageError(f"serializedMatMul: mode is a MatMulSerializationMode, not {mode!r}")
    if (
        isinstance(factor, bool)
        or not isinstance(factor, int)
        or not isinstance(keep_precision, bool)
    ):
        raise UsageError(
            "serializedMatMul: factor is a whole number and keep_precision True or False"
        )
    if mode is MatMulSerializationMode.Disabled or factor in (0, 1):
        return torch.matmul(lhs, rhs)
    cut, axis = {
        MatMulSerializationMode.InputChannels: (lhs, -2),
        MatMulSerializationMode.ReducingDim: (lhs, -1),
        MatMulSerializationMode.OutputChannels: (rhs, -1),
    }[mode]
    if cut.dim() < 2 or cut.shape[axis] % factor or factor < 0:
        raise UsageError(
            f"serializedMatMul: factor {factor} does not divide the dimension that {mode.name}"
            f" cuts, of shape {tuple(cut.shape)}; take a divisor of it"
        )
    size = cut.shape[axis] // factor
    if mode is MatMulSerializationMode.InputChannels:
        return torch.cat([torch.matmul(part, rhs) for part in lhs.split(size, -2)], -2)
    if mode is MatMulSerializationMode.OutputChannels:
        return torch.cat([torch.matmul(lhs, part) for part in _in_parts(rhs, size, -1)], -1)
    parts = [
        torch.matmul(a, b)
        for a, b in zip(lhs.split(size, -1), _in_parts(rhs, size, -2), strict=True)
    ]
    total = parts[0].float() if keep_precision else parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(lhs.dtype)


def _in_parts(weights: torch.Tensor, size: int, axis: int) -> tuple[torch.Tensor, ...]:
    """``weights`` in parts for products one after the other, marked for the capture."""
    parts = weights.split(size, axis)
    for part in parts:
        local = getattr(part, "_local_tensor", part)  # of a DTensor, which shards make
        if isinstance(local, FakeTensor):
            local._ipu_serialised = True  # type: ignore[attr-defined]
    return parts


class MultiConv:
    """``with MultiConv(): ...`` runs the convolutions inside together, each on a part of the tiles.

    None may need another's result. Their gradients run together too. Poplin gives the largest one
    most of the tiles, unless `perConvReservedTiles` is raised. With ``MultiConvPlanType.Serial``
    they run one after another, each on all tiles. Numbers do not depend on it.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def availableMemoryProportions(self, value: float | Sequence[float]) -> MultiConv:
        """Memory proportion of all convolutions or of each."""
        return self._per_convolution("availableMemoryProportions", value, float)

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> MultiConv:
        """``torch.float`` or ``torch.half`` partial sums, for all convolutions or for each."""
        types = value if isinstance(value, (list, tuple)) else (value,)
        if not types or any(kind not in (torch.float32, torch.float16) for kind in types):
            raise UsageError(
                f"Invalid partials types. Expecting torch.float or torch.half, not {value!r}"
            )
        return self._set("partialsTypes", tuple(types))

    def enableConvDithering(self, value: bool | Sequence[bool]) -> MultiConv:
        """Dithering of all convolutions or of each."""
        return self._per_convolution("enableConvDithering", value, bool)

    def planType(self, value: MultiConvPlanType) -> MultiConv:
        """Parallel or Serial."""
        if not isinstance(value, MultiConvPlanType):
            raise UsageError(
                f"Invalid plan type: MultiConv.planType takes a MultiConvPlanType, not {value!r}"
            )
        return self._set("planType", value)

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Tiles reserved for each convolution that is planned after another (default 50)."""
        _check_numbers("MultiConv.perConvReservedTiles", tiles=value)
        return self._set("perConvReservedTiles", value)

    def cycleBackOff(self, value: float) -> MultiConv:
        """How much slower the largest convolution may be (default 0.1), to leave others tiles."""
        if not isinstance(value, float):
            raise UsageError(f"MultiConv.cycleBackOff takes a float, not {value!r}")
        return self._set("cycleBackOff", value)

    def _per_convolution(self, name: str, value: Any, kind: type) -> MultiConv:
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not values or not all(isinstance(item, kind) for item in values):
            raise UsageError(
                f"Invalid {name}: MultiConv takes a {kind.__name__} or one for each convolution"
            )
        return self._set(name, values)

    def _set(self, name: str, value: Any) -> MultiConv:
        self.settings[name] = value
        return self

    def __enter__(self) -> MultiConv:
        if isRunningOnIpu():
            open_multi_conv(self.settings)
        return self

    def __exit__(self, *exception: object) -> None:
        if isRunningOnIpu():
            open_multi_conv(None)


# -- the host ---


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Load these inputs during compute, over I/O tiles (`TensorLocations.numIOTiles`).

    Use only the returned tensors. Numbers do not depend on it. Rules: `ipu_exec.capture.overlap`.
    """
    return _overlap(overlap.INPUT, input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Send these outputs during compute, over I/O tiles. Return the result from the model."""
    return _overlap(overlap.OUTPUT, output_tensors, mode)


def _overlap(place: str, tensors: Any, mode: OverlapMode) -> Any:
    if not isinstance(mode, OverlapMode):
        raise UsageError(f"{place}: mode is an OverlapMode, not {mode!r}")
    tree_map(lambda leaf: check_tensor(place, leaf), tensors)

    # only while the model is captured
    def noted(leaf: torch.Tensor) -> torch.Tensor:
        return overlap.marked(leaf, place, mode) if isinstance(leaf, FakeTensor) else leaf

    return tree_map(noted, tensors)


def ipu_print_tensor(  # noqa: PLR0913 - PopTorch's signature
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Return the tensor, and print it, and its gradient as ``title_gradient``, when computed.

    Prints to stderr in Poplar's layout (`ipu_exec.base.tensor_text`), at no modelled cost. 0 as
    ``summarise_threshold``, ``max_line_width`` or ``digits``: no limit.
    """
    check_tensor("ipu_print_tensor", tensor)
    if float_format not in FLOAT_FORMATS:
        names = ", ".join(map(repr, FLOAT_FORMATS))
        raise UsageError(f"ipu_print_tensor: float_format is one of {names}, not {float_format!r}")
    if isinstance(tensor, FakeTensor):
        return tensor

    layout = Layout(
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        (open_bracket, close_bracket),
    )

    def show(name: str, value: torch.Tensor) -> None:
        plain = value.detach().float() if value.is_floating_point() else value.detach()
        text = laid_out(plain.numpy(), layout)
        print(f"{name}: {text}" if name else text, file=sys.stderr)

    show(title, tensor)
    if print_gradient and tensor.requires_grad:
        tensor.register_hook(
            lambda gradient: show(f"{title}_gradient" if title else "gradient", gradient)
        )
    return tensor

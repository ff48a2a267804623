"""The recorder: writes each ATen call that runs while it is entered into a `Graph`.

A forward operator belongs to the open Block. A backward operator is traced to its forward
operator by the autograd node that is running: its sequence number was taken when the forward
operator made it (docs/decisions.md#capture-by-running).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ipu_exec.base.context import refuse
from ipu_exec.base.structures import tensors_in
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.capture.control_flow import in_argument_check, in_metric
from ipu_exec.capture.recording.devices import Devices
from ipu_exec.capture.recording.no_content import note_constant
from ipu_exec.capture.recording.open_blocks import OPEN, attributes, current_block, multi_conv
from ipu_exec.capture.recording.origins import (
    AutogradNodes,
    SourceLine,
    following_modules,
    source_line,
)
from ipu_exec.capture.rewrites.decompositions import decomposition, one_value
from ipu_exec.capture.rewrites.multi_conv import MultiConvGroup, is_convolution
from ipu_exec.capture.rewrites.replacements import (
    ctc_loss_of_longest_targets,
    is_one_mask,
    zero_outside_mask,
)
from ipu_exec.errors import ContentError, Error
from ipu_exec.graph import BlockInfo, Graph, OperatorAttributes, OpNode, Storage, Value, ValueRef
from ipu_exec.lowering import info, is_view
from ipu_exec.lowering.plan import ITEM_BYTES
from ipuscope.profiler.enums import Direction, Role

# Calls that ask about a tensor and compute nothing, and the marks that torch's own profiler leaves.
_QUESTIONS = ("prim.", "profiler.")
_NO_ATTRIBUTES = OperatorAttributes()
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_ANY_NUMBER = 2.0
# PopTorch has no pattern for these, unlike bilinear and bicubic ones of images.
_NOT_UPSAMPLED = ("aten.upsample_linear1d", "aten.upsample_trilinear3d")
_BINS = (  # PopTorch's words of bincount
    "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 platform the"
    " minimum length is also the maximum length. "
)
_LIFT = "aten.lift_fresh.default"
_FROM_CPU = ("aten.copy_.default", "aten._to_copy.default")  # they move a tensor to another device
_REAL = (torch.Tensor, torch.nn.Parameter)  # no fake ones: made outside the forward, or by no mode
_SCALAR_TYPES = {  # as PyTorch's core names them
    torch.float32: "Float",
    torch.float16: "Half",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
}
_SETTINGS = (torch.dtype, torch.layout, torch.device, torch.memory_format)


class DynamicShapeError(Error, DynamicOutputShapeException):
    """A shape would depend on data. PopTorch lets through what PyTorch's fake tensors raise."""

    def __init__(self, message: str, func: Any, location: str) -> None:
        super().__init__(message, location=location)
        self.args = (f"{message} [{location}]",)  # torch's takes the operator alone
        self.func = func


class Origin(NamedTuple):
    """The origin of a call. -1: no forward operator, no Block."""

    forward_op: int = -1
    block: int = -1
    module: str = ""
    source: SourceLine = SourceLine()


@dataclass(slots=True)
class _Arguments:
    """A call's arguments in the form of `OpNode`."""

    positional: list[Any] = field(default_factory=list)
    named: list[tuple[str, Any]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    on_cpu: list[torch.Tensor] = field(default_factory=list)  # of the operands, as PopTorch sees it


class Recorder(TorchDispatchMode):
    """Writes each ATen call into ``graph``; ``direction`` says what the step is doing now.

    ``contents``: what the forward reads off tensors. ``devices``: which are on the CPU, if
    refused.
    """

    def __init__(
        self,
        training: bool,
        contents: Sequence[bool | int | float] = (),
        devices: Devices | None = None,
    ) -> None:
        super().__init__()
        self._devices = devices
        self._on_cpu: set[int] = set()  # by id of the tensor
        self.graph = Graph(training=training)
        self.direction = Direction.FORWARD
        self.multi_convs: dict[int, MultiConvGroup] = {}  # met in the forward, by identity
        self._contents = iter(contents)
        self._alive: list[Any] = []  # keeps ids of tensors and storages unique
        self._values: dict[int, int] = {}  # by id of the tensor
        self._storages: dict[int, int] = {}
        self._writers: dict[int, int] = {}  # storage -> last op that wrote it
        self._first_uses: dict[int, int] = {}  # storage -> first op that used it
        self._nodes = AutogradNodes()
        self._blocks: dict[tuple[str, int | None], int] = {}  # (user_id, ipu_id) -> index
        self._name_counts: dict[str, int] = {}
        self._scopes = OPEN.scopes  # the live list, not a copy
        self._paused = False

    # -- tensors ---

    def register(
        self,
        tensor: torch.Tensor,
        role: Role,
        name: str,
        parameter: torch.Tensor | None = None,
        another: bool = False,
    ) -> int:
        """Register a tensor that exists before the step; returns its value.

        ``another``: one like it instead, which no call of the step has.
        """
        new = self._new_value(tensor, self._new_storage(tensor), -1) if another else None
        value = self.value(tensor) if new is None else new
        storage = self.storage(value)
        storage.role, storage.name = role, name
        if parameter is not None:
            storage.parameter = self.storage(self.value(parameter)).id
        return value

    def storage(self, value: int) -> Storage:
        """The storage that a value lies in."""
        return self.graph.storages[self.graph.values[value].storage]

    def recorded_value(self, tensor: torch.Tensor) -> int | None:
        """The value of a tensor that was recorded before, else None."""
        return self._values.get(id(tensor))

    def value(self, tensor: torch.Tensor, producer: int | None = None) -> int:
        """The value of a tensor; a new one for a tensor, or a view, not recorded before."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # this rank's share of a DTensor
        recorded = self._values.get(id(tensor))
        if recorded is not None:
            return recorded
        _check_supported(tensor)
        storage = self._storage_of(tensor)
        self._alive.append(tensor)
        producer = self._writers.get(storage, -1) if producer is None else producer
        self._values[id(tensor)] = self._new_value(tensor, storage, producer)
        return self._values[id(tensor)]

    def _new_value(self, tensor: torch.Tensor, storage: int, producer: int) -> int:
        number = len(self.graph.values)
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        about = shape, strides, int(tensor.storage_offset()), _dtype(tensor)
        self.graph.values[number] = Value(number, storage, *about, producer)
        return number

    def _storage_of(self, tensor: torch.Tensor) -> int:
        untyped = tensor.untyped_storage()
        key = untyped._cdata
        if key not in self._storages:
            self._alive.append(untyped)
            self._storages[key] = self._new_storage(tensor)
        return self._storages[key]

    def _new_storage(self, tensor: torch.Tensor) -> int:
        number = len(self.graph.storages)
        elements = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
        about = elements, _dtype(tensor), Role.ACTIVATION, ""
        self.graph.storages[number] = Storage(number, *about)
        return number

    def tensors(self) -> Iterator[tuple[torch.Tensor, int]]:
        """All recorded tensors with their values, without those whose shape has changed since."""
        for tensor in self._alive:
            if isinstance(tensor, torch.Tensor) and id(tensor) in self._values:
                yield tensor, self._values[id(tensor)]

    def release(self) -> None:
        """Let go of the tensors, once nothing more is recorded; ``graph`` stays."""
        self._alive.clear()
        self._values.clear()
        self._storages.clear()
        self.multi_convs.clear()

    def modules(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Track the path of the modules being called while the step runs."""
        return following_modules(model, self._scopes)

    # -- calls ---

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, calls are made and not recorded."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    supports_higher_order_operators = True  # reach __torch_dispatch__

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        if any(kind.__module__.startswith("torch.distributed") for kind in types):
            return NotImplemented  # wrapped tensors make the calls on their contents
        name = str(func)
        if name.startswith(_QUESTIONS):
            return func(*args, **kwargs)
        if name == "aten._local_scalar_dense.default":
            return self.read_content(args[0])
        parts = self._parts(func, name, args, kwargs)
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        out = self.run_operator(func, args, kwargs)
        if not info(name).on_host:
            self.record(func, name, args, kwargs, out)
        elif name == _LIFT:
            if type(args[0]) in _REAL:
                note_constant(out, args[0])
            if self._devices is not None and self._devices.makes_on_cpu:
                self._left_on_cpu(out)
        return out

    def _parts(self, func: Any, name: str, args: Any, kwargs: Any) -> Callable[..., Any] | None:
        """The function to call instead of an operator; None: it is recorded as it is."""
        if isinstance(func, HigherOrderOperator):
            raise Error(
                f"torch's {name} is not modelled: take ipu_exec.cond, ipu_exec.for_loop or a loop"
                " of Python's",
                location=str(source_line()),
            )
        if name == "aten.bincount.default" and not _least_bins(*args, **kwargs):
            return None  # as many bins as the largest value says: refused
        if name == "aten._unique2.default" and in_argument_check():
            return one_value
        if (
            self.direction == Direction.BACKWARD
            and name == "aten.index.Tensor"
            and is_one_mask(args[1])
        ):
            return zero_outside_mask
        return decomposition(func)

    def run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator; Error if its shape would depend on data."""
        if func in (torch.ops.aten._ctc_loss.Tensor, torch.ops.aten._ctc_loss.default):
            return ctc_loss_of_longest_targets(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except UnsupportedOperatorException:
            raise Error(
                f"what {func} returns has no shape before it runs: pad nested tensors to the"
                " longest, with a mask; an operator of your own needs torch.library.register_fake",
                location=str(source_line()),
            ) from None
        except (DynamicOutputShapeException, DataDependentOutputException):
            name = str(func).split(".")[1].replace("index", "nonzero")
            bins = _BINS if name == "bincount" else ""
            raise DynamicShapeError(
                f"{bins}Operations using aten::{name} are unsupported"
                " because the output shape is determined by the tensor values. The IPU cannot"
                " support dynamic output shapes. Use an operator of a fixed shape (torch.where,"
                " topk, a mask), or compute it on the host before the model is called",
                func,
                str(source_line()),
            ) from None

    def read_content(self, tensor: torch.Tensor) -> float:
        """The number that a model or optimiser reads off a tensor; ContentError if unknown."""
        # Optimisers read their step counter on the host; every step costs the same.
        if self.direction == Direction.UPDATE:
            return _ANY_NUMBER
        if in_argument_check():
            return 0.0
        if self.direction == Direction.FORWARD:
            for value in self._contents:
                return value
        raise ContentError(
            "the model reads the content of a tensor (.item(), float(), bool(), a branch on data),"
            " which decides what runs; on an IPU the program is fixed at compile time. Keep the"
            " value a tensor (torch.where), or compute it outside the model",
            location=str(source_line()),
        )

    def record(self, func: Any, aten: str, args: Any, kwargs: Any, out: Any) -> None:
        """Append the call of an operator to the graph, with the values and storages it makes."""
        arguments = self._arguments(func._schema, args, kwargs)
        origin = self._origin()
        if arguments.on_cpu and self._devices is not None:
            self._check_devices(aten, arguments, origin.source, out)
        op = OpNode(
            id=len(self.graph.ops),
            aten=aten,
            args=tuple(arguments.positional),
            kwargs=tuple(arguments.named),
            inputs=tuple(arguments.inputs),
            outputs=(),
            writes=tuple(arguments.writes),
            direction=self.direction,
            block=origin.block,
            module=origin.module,
            name="",
            file=origin.source.file,
            line=origin.source.line,
            forward_op=origin.forward_op,
            attributes=self._attributes(origin.forward_op),
            callers=origin.source.callers,
        )
        for value in op.inputs:
            self._first_uses.setdefault(self.graph.values[value].storage, op.id)
        for value in op.writes:
            self._writers[self.graph.values[value].storage] = op.id
        if torch.Tag.inplace_view in func.tags:
            # squeeze_, t_, ...: the same tensor has another shape from here on
            del self._values[id(args[0])]
        results = out if isinstance(out, (tuple, list)) else (out,)
        op.outputs = tuple(
            self.value(r, op.id) if isinstance(r, torch.Tensor) else None for r in results
        )
        op.name = self._name(op)
        self._name_outputs(op)
        self._note_annotations(op)
        self.graph.ops.append(op)

    def _left_on_cpu(self, tensor: torch.Tensor) -> None:
        self._on_cpu.add(id(tensor))
        self._alive.append(tensor)

    def _check_devices(self, aten: str, given: _Arguments, source: SourceLine, out: Any) -> None:
        """Refuse an operator of IPU and other tensors; the CPU runs it on others alone."""
        if self.direction != Direction.FORWARD or aten in _FROM_CPU:
            return
        if len(given.on_cpu) == len(given.inputs):
            for result in tensors_in(out):
                self._left_on_cpu(result)
            return
        if in_metric():
            return
        tensor = given.on_cpu[0]
        refuse(
            f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)},"
            f" dtype={_SCALAR_TYPES.get(tensor.dtype, _dtype(tensor).capitalize())}).\nConstant"
            ' tensors should be moved explicitly to the IPU, via cpu_tensor.to("ipu"), or be'
            " buffers of the model: register_buffer",
            f"{source.file}:{source.line}" if source.file else "",
        )

    def stand_in(self, aten: str, inputs: Sequence[int], outputs: Sequence[torch.Tensor]) -> int:
        """Append an operator that stands for others (`capture.layers.repeats`); gives its id."""
        origin, number = self._origin(), len(self.graph.ops)
        values = tuple(self.value(tensor, number) for tensor in outputs)
        refs = tuple(map(ValueRef, inputs))
        place = (self.direction, origin.block, origin.module, f"{origin.module}/{aten}")
        op = OpNode(number, aten, refs, (), tuple(inputs), values, (), *place)
        op.file, op.line, op.callers = origin.source
        op.forward_op = origin.forward_op
        self._name_outputs(op)
        self._note_annotations(op)
        self.graph.ops.append(op)
        return number

    def _arguments(self, schema: Any, args: Any, kwargs: Any) -> _Arguments:
        collected = _Arguments()
        for index, argument in enumerate(schema.arguments):
            by_position = index < len(args)
            actual = (
                args[index] if by_position else kwargs.get(argument.name, argument.default_value)
            )
            if not argument.kwarg_only:
                collected.positional.append(self._plain(actual, collected))
            elif argument.name in kwargs or argument.has_default_value():
                collected.named.append((argument.name, self._plain(actual, collected)))
            if argument.alias_info is not None and argument.alias_info.is_write:
                collected.writes += [self.value(tensor) for tensor in tensors_in(actual)]
        return collected

    def _plain(self, item: Any, collected: _Arguments) -> Any:
        """An argument with its tensors as ValueRef; their values are added to ``collected``."""
        if isinstance(item, torch.Tensor):
            if id(item) in self._on_cpu or self._comes_from_cpu(item):
                self._left_on_cpu(item)
                collected.on_cpu.append(item)
            collected.inputs.append(self.value(item))
            return ValueRef(collected.inputs[-1])
        if isinstance(item, (list, tuple)):
            return tuple(self._plain(element, collected) for element in item)
        if isinstance(item, _SETTINGS):
            return str(item).removeprefix("torch.")
        return item if isinstance(item, (int, float, bool, str, type(None))) else None

    def _comes_from_cpu(self, tensor: torch.Tensor) -> bool:
        """Whether PopTorch would meet a tensor here for the first time, and on the CPU."""
        moved = self._devices is not None and self._devices.was_asked(tensor)
        return type(tensor) in _REAL and id(tensor) not in self._values and not moved

    def _name_outputs(self, op: OpNode) -> None:
        """Name new storages by the operator that makes them."""
        for index, output in enumerate(op.outputs):
            if output is not None and not self.storage(output).name:
                storage = self.storage(output)
                storage.name = f"{op.name}:{index}"
                storage.role = (
                    Role.GRADIENT if self.direction == Direction.BACKWARD else Role.ACTIVATION
                )

    def _note_annotations(self, op: OpNode) -> None:
        """Note an operator behind the last Block, and one inside a MultiConv."""
        if self.direction != Direction.FORWARD:
            return
        if op.aten.startswith(_NOT_UPSAMPLED):
            refuse(
                f"Unsupported upsample mode {op.aten}: currently only 'nearest' is supported by"
                " PopTorch",
                f"{op.file}:{op.line}" if op.file else "",
            )
        if OPEN.ended and self.graph.outside < 0 and not is_view(op.aten):
            self.graph.outside = op.id
        group = multi_conv()
        if group is not None:
            self.multi_convs[id(group)] = group
            if is_convolution(op.aten):
                group.convolutions.append(op.id)

    def _attributes(self, forward_op: int) -> OperatorAttributes:
        """The open attributes; a gradient's operators have those of what it is the gradient of."""
        own = attributes() if self.direction == Direction.FORWARD else ()
        if self.direction == Direction.BACKWARD and forward_op >= 0:
            own = self.graph.ops[forward_op].attributes.popart
        return OperatorAttributes(popart=own) if own else _NO_ATTRIBUTES

    def _name(self, op: OpNode) -> str:
        """The name of an operator: module path and operation; a name's second use is ``name_1``."""
        short = op.aten.split(".")[1].strip("_")
        if op.direction == Direction.UPDATE:
            weight = self._updated_weight(op)
            op.module = weight.rpartition("/")[0]
            name = f"{weight or 'optimiser'}/update/{short}"
        else:
            scope = op.module + "/" if op.module else ""
            way = "gradient/" if op.direction == Direction.BACKWARD else ""
            name = f"{scope}{way}{short}"
        count = self._name_counts.get(name, 0)
        self._name_counts[name] = count + 1
        return f"{name}_{count}" if count else name

    def _updated_weight(self, op: OpNode) -> str:
        """Path of the weight that an optimiser's op updates; "" for no particular weight."""
        for value in op.inputs:
            storage = self.storage(value)
            if storage.parameter >= 0:
                storage = self.graph.storages[storage.parameter]
            if storage.role == Role.WEIGHT:
                return storage.name.replace(".", "/")
            if "/update/" in storage.name:
                return storage.name.rpartition("/update/")[0]
        return ""

    # -- origins ---

    @property
    def scope(self) -> str:
        """The name scopes that are open: modules being called and `NameScope`s."""
        return "/".join(part for part in self._scopes if part)

    def _origin(self) -> Origin:
        """The origin of the call being recorded."""
        if self.direction == Direction.FORWARD:
            # also without a gradient: an autograd.Function's operators belong to its node, which
            # exists
            self._nodes.newest_is_of(len(self.graph.ops))
            return Origin(-1, self.open_block(), self.scope, source_line())
        if self.direction == Direction.BACKWARD:
            return self._origin_of_gradient()
        return Origin()

    def _origin_of_gradient(self) -> Origin:
        ops = self.graph.ops
        forward = self._forward_op(torch._C._current_autograd_node())
        if forward < 0:
            block = max((op.block for op in ops if op.direction == Direction.FORWARD), default=-1)
            return Origin(block=block)
        if torch.is_grad_enabled():
            # a checkpointed layer runs again, and will have a backward of its own
            self._nodes.newest_is_of(forward)
        op = ops[forward]
        return Origin(forward, op.block, op.module, SourceLine(op.file, op.line, op.callers))

    def _forward_op(self, node: Any) -> int:
        """The forward operator of an autograd node (of an accumulation: the weight's first use)."""
        if node is None:
            return -1
        if node.name() != _ACCUMULATE:
            return self._nodes.forward_op(node)
        return self._first_uses.get(self.storage(self.value(node.variable)).id, -1)

    def open_block(self) -> int:
        """The Block that is open now; -1: none."""
        block = current_block()
        if block is None:
            return -1
        use = (str(block.user_id), block.ipu_id)
        if use not in self._blocks:
            self._blocks[use] = self._begun_block(*use)
        return self._blocks[use]

    def _begun_block(self, user_id: str, ipu_id: int | None) -> int:
        """The Block of a first use; a name's uses on other IPUs are separate Blocks."""
        first = next((block for block in self.graph.blocks if block.user_id == user_id), None)
        if first is not None and ipu_id in (None, first.ipu_id):
            return first.id
        name = user_id if first is None else f"{user_id}@IPU{ipu_id}"
        self.graph.blocks.append(BlockInfo(len(self.graph.blocks), name, ipu_id, user_id))
        return self.graph.blocks[-1].id


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_supported(tensor: torch.Tensor) -> None:
    """Error for a tensor that an IPU does not support."""
    if tensor.layout != torch.strided:
        raise Error(
            f"an IPU has no sparse tensors ({str(tensor.layout).removeprefix('torch.')}): use a"
            " dense one, or torch.where with a mask",
            location=str(source_line()),
        )
    if _dtype(tensor) not in ITEM_BYTES:
        instead = "Keep real and imaginary parts as two tensors" if tensor.is_complex() else "Cast"
        raise Error(
            f"an IPU has no {_dtype(tensor)}: it computes in float32, float16 and integers of up to"
            f" 32 bits. {instead}, or compute with it on the host",
            location=str(source_line()),
        )
    if tensor.dtype is torch.bfloat16:
        warn_once(
            "an IPU has no bfloat16: numbers are PyTorch's in bfloat16, cycles and bytes those of"
            " float16. What runs there is float16, by .half() and a loss scale, or float32"
        )


def _least_bins(
    values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> int:
    """The minimum number of bins of a call of bincount."""
    return minlength

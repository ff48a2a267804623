"""Capture: run one micro-batch and one weight update on fake tensors and write down every ATen
call.

The real module, the real autograd and the real optimiser run under ``FakeTensorMode``: shapes and
dtypes are true, no weight is copied and nothing is computed. A ``TorchDispatchMode`` above it
records each call.

A forward op belongs to the Block open at that moment. A backward op is found by the autograd node
that is running: its sequence number was taken when the forward op made it
(docs/decisions.md#capture-by-running).
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from ipu_exec.capture import overlap
from ipu_exec.capture.casts import Casting
from ipu_exec.capture.control_flow import in_argument_check
from ipu_exec.capture.decompositions import decomposition
from ipu_exec.capture.multi_conv import Group, fuse, is_convolution
from ipu_exec.capture.open_blocks import (
    attributes,
    block_ended,
    current_block,
    multi_conv,
    name_scopes,
    reset_blocks,
)
from ipu_exec.capture.recurrent import whole_layers
from ipu_exec.context import keeping_what_is_saved, replaced
from ipu_exec.errors import ContentError, Error
from ipu_exec.graph import Asked, BlockInfo, Graph, OpNode, Storage, Value, ValueRef
from ipu_exec.lowering import info, is_view
from ipu_exec.lowering.plan import ITEM_BYTES
from ipu_exec.optimiser_attributes import combined, kept_as
from profiler.enums import Direction, Role

# Calls that ask about a tensor and compute nothing, and the marks that torch's own profiler leaves.
_QUESTIONS = ("prim.", "profiler.")
_NOTHING = Asked()
_OWN_CODE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_CHANGED = "has been modified by an inplace operation"  # what PyTorch's error says


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    accumulate: bool = False,
    find_loss: Callable[[Any], torch.Tensor] | None = None,
    contents: Sequence[bool | int | float] = (),
    casting: contextlib.AbstractContextManager[Any] | None = None,
) -> Graph:
    """Record what one micro-batch computes; with an optimiser, its backward and the weight update
    too.

    ``args``/``kwargs`` are one micro-batch (real tensors, untouched). ``accumulate``: gradients are
    added to accumulators that live on, as gradient accumulation does. ``find_loss`` picks the loss
    from what the model returns. ``contents``: what the forward reads off tensors, in order, for
    fake tensors hold nothing; ContentError where it asks for more. ``casting``: entered around
    forward and backward (`ipu_exec.capture.casts`).

    A model that changes in place what its backward still needs is recorded with a copy of it, as
    PopART's programs, where no tensor is changed, have it (``Graph.mutates``); PyTorch refuses such
    a backward.
    """
    once = partial(
        _capture, model, args, kwargs, optimizer, accumulate, find_loss, contents, casting
    )
    try:
        return once(mutates=False)
    except RuntimeError as error:
        if _CHANGED not in str(error):
            raise
    return once(mutates=True)


def _capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizer: torch.optim.Optimizer | None,
    accumulate: bool,
    find_loss: Callable[[Any], torch.Tensor] | None,
    contents: Sequence[bool | int | float],
    casting: contextlib.AbstractContextManager[Any] | None,
    *,
    mutates: bool,
) -> Graph:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state: dict[int, torch.Tensor] = {}

    def on_nothing(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "meta":
            return mode.from_tensor(tensor.detach())
        with (
            mode
        ):  # a model made on "meta", without weights in memory, is captured as if it had them
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in state:
            copy = on_nothing(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
            state[id(tensor)] = copy
        return state[id(tensor)]

    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    fake_state = {name: fake(tensor) for name, tensor in {**parameters, **buffers}.items()}

    with mode:
        recorder = Recorder(training=optimizer is not None, contents=contents)
        for name, tensor in fake_state.items():
            recorder.know(tensor, Role.WEIGHT if name in parameters else Role.BUFFER, name)
        fake_args, fake_kwargs = tree_map(
            lambda leaf: on_nothing(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            (args, kwargs),
        )
        leaves = [
            leaf
            for leaf in tree_flatten((fake_args, fake_kwargs))[0]
            if isinstance(leaf, torch.Tensor)
        ]
        recorder.graph.inputs = tuple(
            recorder.know(leaf, Role.INPUT, f"input.{index}") for index, leaf in enumerate(leaves)
        )
        fake_optimizer = None
        trained: dict[str, torch.Tensor] = {}
        if optimizer is not None:
            updated = {
                id(parameter) for group in optimizer.param_groups for parameter in group["params"]
            }
            trained = {
                name: fake_state[name]
                for name, p in model.named_parameters()
                if p.requires_grad and id(p) in updated
            }
            for name, parameter in trained.items():
                if accumulate:
                    parameter.grad = torch.zeros_like(parameter)
                    recorder.know(
                        parameter.grad, Role.ACCUMULATOR, f"{name}/accumulator", parameter
                    )
            fake_optimizer = _fake_optimizer(optimizer, state)
            _make_optimizer_state(fake_optimizer, trained, recorder, mode)

        dtypes = casting or contextlib.nullcontext()
        context = torch.enable_grad() if optimizer is not None else torch.no_grad()
        reset_blocks()

        def forward_and_backward(*args: Any, **kwargs: Any) -> Any:
            with (
                context,
                _without_fused_attention(),
                _fused_dropout(),
                _ctc_of_numbers(),
                _dense_embedding(),
                whole_layers(),
                recorder.modules(model),
                dtypes,
                recorder,
                keeping_what_is_saved(mutates),
            ):
                returned = model(*args, **kwargs)
                _check_buffers(model, {name: fake_state[name] for name in buffers})
                if fake_optimizer is not None:
                    if find_loss is None:
                        raise Error(
                            "a training step needs to know which output is the loss: pass find_loss"
                        )
                    loss = find_loss(returned)
                    recorder.graph.loss = recorder.value(loss)
                    recorder.direction = Direction.BACKWARD
                    if loss.requires_grad:  # else every weight is frozen, as `find_loss` saw
                        loss.backward()
            return returned

        # a checkpointed layer runs again in the backward, which has to find the fake weights too
        step = _Step(model, forward_and_backward)
        fakes = {f"model.{name}": tensor for name, tensor in fake_state.items()}
        returned = torch.func.functional_call(step, fakes, fake_args, fake_kwargs)
        if fake_optimizer is not None:
            with context, recorder:
                recorder.direction = Direction.UPDATE
                fake_optimizer.step()
                if accumulate:
                    for parameter in trained.values():
                        if parameter.grad is not None:
                            parameter.grad.zero_()
        recorder.mark_checkpoints()
        recorder.mark_proportions()
        recorder.graph.outputs = tuple(
            recorder.value(leaf)
            for leaf in tree_flatten(returned)[0]
            if isinstance(leaf, torch.Tensor)
        )
    recorder.graph.mutates = mutates
    recorder.graph.promotes = isinstance(casting, Casting) and casting.promoted
    recorder.mark_overlaps(model)
    recorder.name_gradients(trained)
    if optimizer is not None:
        recorder.keep_states(optimizer)
    fuse(recorder.graph, list(recorder._groups.values()))
    return recorder.graph


def _check_buffers(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    """Error where the forward took away a buffer or put another tensor in its place: the device
    holds the first.
    """
    after = dict(model.named_buffers(remove_duplicate=False))
    for name, buffer in before.items():
        if name not in after:
            raise Error(
                f"Buffer {name} is removed from the model when calling the forward method. Remove"
                " it before the model is compiled"
            )
        if after[name] is not buffer:
            raise Error(
                f"Buffer {name} is reassigned within the model when calling the forward method."
                f" This is not supported. Consider using self.{name}.copy_(src) to copy data from a"
                " source tensor, where src is the name of the source tensor."
            )


class _Step(torch.nn.Module):
    """A model around which something is done while its weights are replaced."""

    def __init__(self, model: torch.nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Recorder(TorchDispatchMode):
    """Writes each ATen call into ``graph``. ``direction`` says what the step is doing now."""

    def __init__(self, training: bool, contents: Sequence[bool | int | float] = ()) -> None:
        super().__init__()
        self.graph = Graph(training=training)
        self._contents = iter(contents)
        self.direction = Direction.FORWARD
        self._alive: list[Any] = []  # keeps ids of tensors and storages unique
        self._values: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._writers: dict[int, int] = {}  # storage -> last op that wrote it
        self._parameter_storages: dict[int, int] = {}
        self._nodes: dict[int, int] = {}  # autograd sequence number -> forward op
        self._sequence: list[int] = []  # the numbers in order
        self._blocks: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._groups: dict[int, Group] = {}  # the multi-convolutions, by identity
        self._module_stack = name_scopes()
        self._locations: dict[tuple[str, int], tuple[str, int]] = {}

    # -- tensors ---

    def know(
        self, tensor: torch.Tensor, role: Role, name: str, parameter: torch.Tensor | None = None
    ) -> int:
        """Register a tensor that exists before the step; returns its value."""
        value = self.value(tensor)
        storage = self.graph.storages[self.graph.values[value].storage]
        storage.role, storage.name = role, name
        if parameter is not None:
            storage.parameter = self.graph.values[self.value(parameter)].storage
        return value

    def value(self, tensor: torch.Tensor, producer: int | None = None) -> int:
        """The value of a tensor; a new one for a tensor, or a view, not met before."""
        known = self._values.get(id(tensor))
        if known is not None:
            return known
        if tensor.layout != torch.strided:
            file, line = self._location()
            raise Error(
                f"an IPU has no sparse tensors ({str(tensor.layout).removeprefix('torch.')}): use a"
                " dense one, or torch.where with a mask",
                location=f"{file}:{line}" if file else "",
            )
        untyped = tensor.untyped_storage()
        key = untyped._cdata
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ITEM_BYTES:
            file, line = self._location()
            raise Error(
                f"an IPU has no {dtype}: it computes in {', '.join(sorted(ITEM_BYTES))}. Keep real"
                " and imaginary parts as two tensors, or cast on the host",
                location=f"{file}:{line}" if file else "",
            )
        if key not in self._storages:
            self._storages[key] = len(self.graph.storages)
            self._alive.append(untyped)
            self.graph.storages[self._storages[key]] = Storage(
                self._storages[key],
                untyped.nbytes() // max(tensor.element_size(), 1),
                dtype,
                Role.ACTIVATION,
                "",
            )
        storage = self._storages[key]
        self._alive.append(tensor)
        value = Value(
            len(self.graph.values),
            storage,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            dtype,
            self._writers.get(storage, -1) if producer is None else producer,
        )
        self.graph.values[value.id] = value
        self._values[id(tensor)] = value.id
        return value.id

    def mark_checkpoints(self) -> None:
        """Note the storages that ops.recomputationCheckpoint was called on."""
        for tensor in self._alive:
            if getattr(tensor, "_ipu_checkpoint", False):
                self.graph.checkpoints.add(self.graph.values[self._values[id(tensor)]].storage)

    def mark_overlaps(self, model: torch.nn.Module) -> None:
        """Note what ops.set_overlap_for_input and set_overlap_for_output were called on."""
        tensors = [tensor for tensor in self._alive if isinstance(tensor, torch.Tensor)]
        overlap.find(self.graph, tensors, self._values, model)

    def mark_proportions(self) -> None:
        """Note what ops.set_available_memory asked for on an operator and on its gradients'."""
        asked: dict[int, float] = {}
        for tensor in self._alive:
            proportion = getattr(tensor, "_ipu_proportion", 0.0)
            op = self._planned(self._values[id(tensor)]) if proportion else None
            if op is not None:
                asked[op.id] = proportion
        for op in self.graph.ops:
            proportion = asked.get(op.id, asked.get(op.forward_op, 0.0))
            if proportion and not is_view(op.aten):
                op.asked = replace(op.asked, proportion=proportion)

    def _planned(self, value: int) -> OpNode | None:
        """The product or gather that made a value, seen through views, casts and the addition of a
        bias.
        """
        values, storages = self.graph.values, self.graph.storages
        while (producer := values[value].producer) >= 0:
            op = self.graph.ops[producer]
            operator = info(op.aten)
            bias = (
                len(op.inputs) == 2 and storages[values[op.inputs[1]].storage].role == Role.WEIGHT
            )
            if operator.uses_memory_proportion:
                return op
            seen_through = operator.view or operator.copy or (operator.addition and bias)
            if not op.inputs or not seen_through:
                return None
            value = op.inputs[0]
        return None

    def keep_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Give states and accumulators the dtype that an optimiser of PopTorch keeps them in.

        Where one tensor holds accumulated gradients and velocities, the velocity is the
        accumulator.
        """
        if combined(optimizer):
            storages = self.graph.storages
            accumulators = {
                s.parameter: s.id for s in storages.values() if s.role == Role.ACCUMULATOR
            }
            velocities = [s.id for s in storages.values() if s.name.endswith("/momentum_buffer")]
            same = {
                v: accumulators[storages.pop(v).parameter]
                for v in velocities
                if storages[v].parameter in accumulators
            }
            for value in self.graph.values.values():
                value.storage = same.get(value.storage, value.storage)
        changed: dict[int, str] = {}
        for storage in self.graph.storages.values():
            dtype = (
                kept_as(optimizer, storage.name.rpartition("/")[2])
                if storage.parameter >= 0
                else None
            )
            if dtype is not None:
                storage.dtype = changed[storage.id] = str(dtype).removeprefix("torch.")
        for value in self.graph.values.values():
            value.dtype = changed.get(value.storage, value.dtype)

    def name_gradients(self, trained: dict[str, torch.Tensor]) -> None:
        """Say which storages are the gradients of weights, where no accumulator took them."""
        for name, parameter in trained.items():
            if parameter.grad is not None:
                storage = self.graph.storages[self.graph.values[self.value(parameter.grad)].storage]
                if storage.role != Role.ACCUMULATOR:
                    storage.role, storage.name = Role.GRADIENT, f"{name}/gradient"
                    storage.parameter = self.graph.values[self.value(parameter)].storage

    # -- calls ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if name.startswith(_QUESTIONS):
            return func(*args, **kwargs)
        if name == "aten._local_scalar_dense.default":
            return self._content(args[0])
        parts = decomposition(func)
        if (
            self.direction == Direction.BACKWARD
            and name == "aten.index.Tensor"
            and _is_mask(args[1])
        ):
            parts = _under_mask
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        out = self._call(func, args, kwargs)
        if not info(name).on_host:
            self._record(func, name, args, kwargs, out)
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in (torch.ops.aten._ctc_loss.Tensor, torch.ops.aten._ctc_loss.default):
            return _ctc_loss_of_most(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            file, line = self._location()
            name = str(func).split(".")[1]
            raise Error(
                f"Operations using aten::{'nonzero' if name == 'index' else name} are unsupported"
                " because the output shape is determined by the tensor values. The IPU cannot"
                " support dynamic output shapes. Use an operator of a fixed shape (torch.where,"
                " topk, a mask), or compute it on the host before the model is called",
                location=f"{file}:{line}" if file else "",
            ) from None

    def _content(self, tensor: torch.Tensor) -> float:
        # Optimisers read their step counter on the host; every step costs the same, so any number
        # will do.
        if self.direction == Direction.UPDATE:
            return 2.0
        if in_argument_check():
            return 0.0
        if self.direction == Direction.FORWARD:
            for value in self._contents:
                return value
        file, line = self._location()
        raise ContentError(
            "the model reads the content of a tensor (.item(), float(), bool(), a branch on data),"
            " which decides what runs; on an IPU the program is fixed at compile time. Keep the"
            " value a tensor (torch.where), or compute it outside the model",
            location=f"{file}:{line}",
        )

    def _record(self, func: Any, aten: str, args: Any, kwargs: Any, out: Any) -> None:
        inputs: list[int] = []

        def plain(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                inputs.append(self.value(item))
                return ValueRef(inputs[-1])
            if isinstance(item, (list, tuple)):
                return tuple(plain(element) for element in item)
            if isinstance(item, (torch.dtype, torch.layout, torch.device, torch.memory_format)):
                return str(item).removeprefix("torch.")
            return item if isinstance(item, (int, float, bool, str, type(None))) else None

        schema = func._schema
        positional, named, writes = [], [], []
        for index, argument in enumerate(schema.arguments):
            if argument.kwarg_only:
                if argument.name in kwargs or argument.has_default_value():
                    given = kwargs.get(argument.name, argument.default_value)
                    named.append((argument.name, plain(given)))
            else:
                given = (
                    args[index]
                    if index < len(args)
                    else kwargs.get(argument.name, argument.default_value)
                )
                positional.append(plain(given))
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[index] if index < len(args) else kwargs.get(argument.name)
                writes += [
                    self.value(leaf)
                    for leaf in tree_flatten(given)[0]
                    if isinstance(leaf, torch.Tensor)
                ]

        forward_op, block, module, (file, line) = self._origin()
        op = OpNode(
            id=len(self.graph.ops),
            aten=aten,
            args=tuple(positional),
            kwargs=tuple(named),
            inputs=tuple(inputs),
            outputs=(),
            writes=tuple(writes),
            direction=self.direction,
            block=block,
            module=module,
            name="",
            file=file,
            line=line,
            forward_op=forward_op,
            asked=self._asked(forward_op),
        )
        for value in writes:
            self._writers[self.graph.values[value].storage] = op.id
        if torch.Tag.inplace_view in func.tags:
            del self._values[
                id(args[0])
            ]  # squeeze_, t_, ...: the same tensor has another shape from here on
        results = out if isinstance(out, (tuple, list)) else (out,)
        op.outputs = tuple(
            self.value(r, op.id) if isinstance(r, torch.Tensor) else None for r in results
        )
        op.name = self._op_name(op)
        for index, output in enumerate(op.outputs):
            if output is not None:
                storage = self.graph.storages[self.graph.values[output].storage]
                if not storage.name:
                    storage.name = f"{op.name}:{index}"
                    storage.role = (
                        Role.GRADIENT if self.direction == Direction.BACKWARD else Role.ACTIVATION
                    )
        if (
            block_ended()
            and self.graph.outside < 0
            and self.direction == Direction.FORWARD
            and not is_view(aten)
        ):
            self.graph.outside = op.id
        group = multi_conv()
        if group is not None and self.direction == Direction.FORWARD:
            self._groups[id(group)] = group
            if is_convolution(aten):
                group.convolutions.append(op.id)
        self.graph.ops.append(op)

    def _asked(self, forward_op: int) -> Asked:
        """The open attributes; a gradient's operators have those of what it is the gradient of."""
        found = attributes() if self.direction == Direction.FORWARD else ()
        if self.direction == Direction.BACKWARD and forward_op >= 0:
            found = self.graph.ops[forward_op].asked.attributes
        return Asked(attributes=found) if found else _NOTHING

    def _op_name(self, op: OpNode) -> str:
        """Module path and what is done there; the second of a name is ``name_1``, so that names can
        be matched.
        """
        short = op.aten.split(".")[1].strip("_")
        if op.direction == Direction.UPDATE:
            weight = self._updated_weight(op)
            op.module = weight.rpartition("/")[0]
            name = f"{weight or 'optimiser'}/update/{short}"
        else:
            scope = op.module + "/" if op.module else ""
            name = (
                f"{scope}gradient/{short}"
                if op.direction == Direction.BACKWARD
                else f"{scope}{short}"
            )
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}_{count}" if count else name

    def _updated_weight(self, op: OpNode) -> str:
        """Path of the weight that an op of the optimiser works for; "" where it works for none in
        particular.
        """
        for value in op.inputs:
            storage = self.graph.storages[self.graph.values[value].storage]
            if storage.parameter >= 0:
                storage = self.graph.storages[storage.parameter]
            if storage.role == Role.WEIGHT:
                return storage.name.replace(".", "/")
            if "/update/" in storage.name:
                return storage.name.split("/update/")[0]
        return ""

    def _origin(self) -> tuple[int, int, str, tuple[str, int]]:
        """(forward op, block, module path, source line) of the call being recorded."""
        ops = self.graph.ops
        if self.direction == Direction.FORWARD:
            # also where no gradient is asked for: what an autograd.Function runs belongs to its
            # node, which is there
            self._made_node(len(ops))
            return (
                -1,
                self._open_block(),
                "/".join(part for part in self._module_stack if part),
                self._location(),
            )
        if self.direction == Direction.BACKWARD:
            forward = self._forward_of(torch._C._current_autograd_node())
            if forward >= 0:
                op = ops[forward]
                if (
                    torch.is_grad_enabled()
                ):  # a checkpointed layer runs again, and will have a backward of its own
                    self._made_node(forward)
                return forward, op.block, op.module, (op.file, op.line)
            block = max((op.block for op in ops if op.direction == Direction.FORWARD), default=-1)
            return -1, block, "", ("", 0)
        return -1, -1, "", ("", 0)

    def _made_node(self, op: int) -> None:
        """The newest autograd node is of this forward op, unless it is known to be of another."""
        sequence = torch._C._autograd._get_sequence_nr() - 1
        if sequence >= 0 and sequence not in self._nodes:
            self._nodes[sequence] = op
            bisect.insort(self._sequence, sequence)

    def _forward_of(self, node: Any) -> int:
        """The forward op that made an autograd node, or the last one before it (an
        autograd.Function may run none); for an accumulation, the first op that used the weight.
        """
        if node is None:
            return -1
        if node.name() != _ACCUMULATE:
            before = bisect.bisect_right(self._sequence, node._sequence_nr())
            return self._nodes[self._sequence[before - 1]] if before else -1
        storage = self.graph.values[self.value(node.variable)].storage
        return self._first_use(storage)

    def _first_use(self, storage: int) -> int:
        if storage not in self._parameter_storages:
            values = self.graph.values
            self._parameter_storages[storage] = next(
                (
                    op.id
                    for op in self.graph.ops
                    if any(values[v].storage == storage for v in op.inputs)
                ),
                -1,
            )
        return self._parameter_storages[storage]

    def _open_block(self) -> int:
        block = current_block()
        if block is None:
            return -1
        name = str(block.user_id)
        if name not in self._blocks:
            self._blocks[name] = len(self.graph.blocks)
            self.graph.blocks.append(BlockInfo(self._blocks[name], name, block.ipu_id))
        return self._blocks[name]

    def _location(self) -> tuple[str, int]:
        """The innermost line of the user's own code."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(_OWN_CODE) and not file.startswith("<"):
                return file, frame.f_lineno
            frame = frame.f_back
        return "", 0

    @contextlib.contextmanager
    def modules(self, model: torch.nn.Module) -> Iterator[None]:
        """Keep the path of the modules being called while the step runs."""
        names = {id(module): name for name, module in model.named_modules()}
        paths: list[str] = []
        outside = list(self._module_stack)

        def enter(module: torch.nn.Module, args: Any) -> None:
            path = names.get(id(module), module.__class__.__name__)
            parent = paths[-1] if paths else ""
            paths.append(path)
            self._module_stack.append(path.removeprefix(parent + ".") if parent else path)

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            paths.pop()
            self._module_stack.pop()

        hooks = torch.nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave),
        ]
        self._module_stack.clear()
        try:
            yield
        finally:
            self._module_stack[:] = outside
            for handle in handles:
                handle.remove()


def _ctc_loss_of_most(
    scores: torch.Tensor, targets: torch.Tensor, steps: Any, lengths: Any, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten._ctc_loss on nothing: its table has room for the longest target there can be, as a fixed
    program must.

    ``scores``: [steps, batch, symbols], or [steps, symbols]; the table is [batch, steps, 2 longest
    + 1]. ``lengths`` of targets are numbers, or a tensor that nobody may read here.
    """
    batch = scores.shape[1] if scores.dim() == 3 else 1
    longest = targets.shape[-1] if isinstance(lengths, torch.Tensor) else max(lengths, default=0)
    table = scores.new_empty(batch, scores.shape[0], 2 * longest + 1)
    return scores.new_empty(batch), table


def _is_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    """True where one mask is the only index."""
    given = [index for index in indices if index is not None]
    return len(given) == 1 and given[0].dtype == torch.bool


def _under_mask(values: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """``values[mask]`` where autograd goes on to sum it up: what is not under the mask is there
    too, as zeros.

    The gradient of ``v`` in ``x[mask] = v``. How many elements are under a mask no compiled program
    knows.
    """
    first, mask = next((d, index) for d, index in enumerate(indices) if index is not None)
    after = first + mask.dim()
    kept = torch.where(
        mask.reshape(*mask.shape, *(1,) * (values.dim() - after)), values, torch.zeros_like(values)
    )
    return kept.reshape(*values.shape[:first], mask.numel(), *values.shape[after:])


def _dense_embedding() -> contextlib.AbstractContextManager[None]:
    """nn.Embedding(sparse=True) with a dense gradient, as in embedding bags: an IPU has no sparse
    tensors.
    """
    apart = torch.embedding

    def embedding(
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding: int = -1,
        by_frequency: bool = False,
        sparse: bool = False,
    ) -> torch.Tensor:
        return apart(weight, indices, padding, by_frequency, False)

    return replaced({"embedding": embedding}, torch)


def _ctc_of_numbers() -> contextlib.AbstractContextManager[None]:
    """The mean of a CTC loss whose lengths are numbers: PyTorch makes a tensor of them where no
    mode can see it.
    """
    apart = torch.ctc_loss

    def ctc_loss(
        scores: torch.Tensor,
        targets: torch.Tensor,
        steps: Any,
        lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        if reduction != 1 or isinstance(lengths, torch.Tensor):
            return apart(scores, targets, steps, lengths, blank, reduction, zero_infinity)
        losses = apart(scores, targets, steps, lengths, blank, 0, zero_infinity)
        return (losses / torch.tensor(lengths, dtype=losses.dtype).clamp_min(1)).mean()

    return replaced({"ctc_loss": ctc_loss}, torch)


def _fused_dropout() -> contextlib.AbstractContextManager[None]:
    """Dropout as one operator, as poprand has it; on a CPU PyTorch makes a mask of the input's type
    and multiplies.
    """
    apart = torch.dropout

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        whole = train and 0 < p < 1
        kept: torch.Tensor = (
            torch.native_dropout(input, p, True)[0] if whole else apart(input, p, train)
        )
        return kept

    return replaced({"dropout": dropout}, torch, torch._VF)


@contextlib.contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Have nn.MultiheadAttention and nn.TransformerEncoderLayer do in inference what they do in
    training.

    PyTorch's fast path is one operator for a whole layer, in which no product could be told from
    another.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _fake_optimizer(
    optimizer: torch.optim.Optimizer, fakes: dict[int, torch.Tensor]
) -> torch.optim.Optimizer:
    """The same optimiser over the fake parameters, one tensor at a time so that each update is
    seen.
    """
    copy = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy.__dict__.pop("step", None)  # a learning-rate scheduler's wrapper holds on to the real one
    groups = []
    for group in optimizer.param_groups:
        known = [fakes[id(p)] for p in group["params"] if id(p) in fakes]
        single: dict[str, Any] = {key: False for key in ("foreach", "fused") if key in group}
        groups.append({**group, "params": known, **single})
    copy.param_groups = groups
    copy.state = collections.defaultdict(dict)
    return copy


def _make_optimizer_state(
    optimizer: torch.optim.Optimizer,
    trained: dict[str, torch.Tensor],
    recorder: Recorder,
    mode: FakeTensorMode,
) -> None:
    """One unrecorded step, so that the recorded one meets its state as every later step does."""
    kept = {name: parameter.grad for name, parameter in trained.items()}
    for parameter in trained.values():
        parameter.grad = torch.zeros_like(parameter)
    with _ScalarsAsTwo():
        optimizer.step()
    for name, parameter in trained.items():
        parameter.grad = kept[name]
        for key, tensor in optimizer.state[parameter].items():
            if isinstance(tensor, torch.Tensor):
                recorder.know(tensor, Role.OPTIMISER_STATE, f"{name}/{key}", parameter)


class _ScalarsAsTwo(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 2.0
        return func(*args, **(kwargs or {}))

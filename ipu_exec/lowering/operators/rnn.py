"""LSTM, GRU and plain recurrent layers.

Each time step is one product of its inputs and the state (an LSTM) or one of each (a GRU, whose
reset follows the product), and a few maps ([PL, lib/popnn/Lstm.cpp], preCalcWeights, which is off
by default and which PopART does not set).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipu_exec.lowering.build import END, Builder, placed, row_major
from ipu_exec.lowering.costs import rearrange_cycles, slice_cycles
from ipu_exec.lowering.layouts import Spread, apportion, digest, in_proportion
from ipu_exec.lowering.operator_info import describe
from ipu_exec.lowering.operators.attention import transposed
from ipu_exec.lowering.operators.elementwise import base_name
from ipu_exec.lowering.operators.reduce import reduce_over
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.products.matmul import multiply, sides_of
from ipu_exec.lowering.products.product import Product
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine
from ipuscope.profiler.enums import Role

LSTM, GRU = 4, 3  # gates of a cell
# states that the forward keeps of a step, by gates ([PL, lib/popnn/Lstm.cpp], [PL,
# lib/popnn/Gru.cpp]: LSTM_FWD_INTERMEDIATE_*, GRU_FWD_INTERMEDIATE_*)
KEPT = {LSTM: 6, GRU: 4}


def repeat(build: Builder, first: int, times: int) -> None:
    """Run the steps from ``first`` on ``times`` times in all, with the memory that they hold."""
    body, temporaries = build.steps[first:], [t for t in build.temporaries if t.first >= first]
    for turn in range(1, times):
        shift = turn * len(body)
        build.steps += body
        build.temporaries += [
            replace(t, first=t.first + shift, last=min(t.last + shift, END)) for t in temporaries
        ]


def transpose_once(build: Builder, start: int, product: int) -> int:
    """Move the transposition of a product's right operand before the time loop.

    The product begins at step ``product``, the loop at ``start``; returns the loop's new start.
    That operand is the weights, which are the same at all time steps ([PL, lib/popnn/Lstm.cpp],
    [PL, lib/popnn/Gru.cpp]: preArrangeMatMulInputRHS, "PreArrangeWeights", in the program before
    the loop).
    """
    if not build.steps[product].name.endswith("/transpose inputs"):
        return start
    build.steps.insert(start, build.steps.pop(product))

    def place(index: int) -> int:
        return start if index == product else index + 1 if start <= index < product else index

    build.temporaries[:] = [
        replace(t, first=place(t.first), last=END if t.first == product else place(t.last))
        for t in build.temporaries
    ]
    return start + 1


def _product(build: Builder, name: str, left: Operand, right: Operand) -> tuple[Operand, Product]:
    done = multiply(build, name, sides_of(build.spec, left, right), left.dtype)
    shape = (left.shape[-2], right.shape[-1])
    return row_major(shape, left.dtype, done.outputs.layout(left.dtype)), done


def _cell(build: Builder, states: np.ndarray, gates: int, dtype: str) -> None:
    """The maps of one time step, for ``states`` elements of hidden state per tile."""
    # for an LSTM: both gates' products at once, their sum, tanh and the output's product ([PL,
    # lib/popnn/Lstm.cpp], basicLstmCellForwardPass)
    if gates == 1:
        build.map(
            "activation", "relu" if base_name(build.spec) == "rnn_relu" else "tanh", states, dtype
        )
        return
    build.map("gates/sigmoid", "sigmoid", states * (gates - 1), dtype)
    build.map("candidate/tanh", "tanh", states, dtype)
    build.map("forget", "mul", states * (2 if gates == 4 else 1), dtype)
    build.map("update", "add_", states, dtype)
    if gates == 4:
        build.map("cell/tanh", "tanh", states, dtype)
        build.map("output", "mul", states, dtype)


def _kernel(
    build: Builder, name: str, left: Operand, indices: tuple[int, ...], columns: int
) -> Operand:
    """The weights of a step's product, stacked, in the layout that its plan wants."""
    # Those without a layout have it from the start ([PL, lib/popnn/Lstm.cpp], createWeightsKernel).
    # Others are rearranged once, before the loop, and are kept until it ends.
    rows = left.shape[-1]
    size = rows * columns
    fused = Operand((rows, columns), left.dtype, (1, rows), 0, size, None, Role.WEIGHT)
    probe = Builder(OpSpec(build.spec.name, (left, fused), (), ()), build.machine)
    multiply(probe, name, sides_of(probe.spec, 0, 1), left.dtype)
    layout = probe.wishes[1]
    for position, index in enumerate(indices):
        source = build.spec.operands[index]
        share = apportion(max(source.storage_elements, source.elements), layout.bytes)
        key = ("recurrent", 0, digest(layout.key, position, len(indices)))
        wish = Spread(key, share).layout(left.dtype)
        if source.layout is None:
            build.wishes.setdefault(index, wish)
        elif source.layout.key != key:
            step = build.fetch(f"{name}/arrange weights {position}", source, share)
            build.compute(
                f"{name}/transpose weights {position}",
                f"popops::Transpose2D<{poplar_type(source.dtype)}>",
                rearrange_cycles(share),
            )
            build.hold(f"{name}/weights {position}", wish.bytes, step)
    return placed(fused, layout)


def _beside(build: Builder, rows: int, parts: tuple[Operand, ...], columns: int) -> Operand:
    """Operands side by side as one matrix; its layout combines their shares of the tiles."""
    nbytes = np.sum([part.layout.bytes for part in parts if part.layout is not None], axis=0)
    dtype = parts[0].dtype
    spread = Spread(
        ("beside", 0, digest(*(part.layout.key for part in parts if part.layout is not None))),
        apportion(rows * columns, nbytes),
    )
    return row_major((rows, columns), dtype, spread.layout(dtype))


def _weights_beside(build: Builder, parts: tuple[Operand, ...]) -> Operand:
    """Weights of the input and of the state as one matrix, with a row for each gate's unit."""
    rows, columns = parts[0].shape[0], sum(part.shape[1] for part in parts)
    return replace(_beside(build, rows, parts, columns), role=Role.WEIGHT)


def _cell_gradient(build: Builder, states: np.ndarray, gates: int, dtype: str) -> None:
    """The maps of one time step backward: each gate's derivative and the products around it."""
    # for an LSTM the output's gate and tanh first, the other gates after the cell's gradient is
    # added ([PL, lib/popnn/Lstm.cpp], backwardStepImpl)
    if gates == 4:
        build.map("output gate/products", "mul", states * 2, dtype)
        build.map("output gate/derivatives", "nonlinearity_grad", states * 2, dtype)
        build.map("add cell state", "add_", states, dtype)
        build.map("gates/products", "mul", states * 4, dtype)
        build.map("gates/derivatives", "nonlinearity_grad", states * 3, dtype)
        return
    build.map("grad activations", "nonlinearity_grad", states * gates, dtype)
    for _ in range(1 if gates == 1 else 4):
        build.map("grad products", "mul", states, dtype)
    build.map("grad state", "add_", states, dtype)


@lowering(
    "aten.mkldnn_rnn_layer", "ipu_rnn.lstm", "ipu_rnn.gru", "ipu_rnn.rnn_tanh", "ipu_rnn.rnn_relu"
)
def layer(spec: OpSpec, machine: Machine) -> Plan:
    """(input[T, B, I], W_ih, W_hh, biases, hx, cx, ...): T steps of the cell in sequence."""
    # what the backward needs of a step is saved (`ipu_exec.capture.rewrites.recurrent`)
    build = Builder(spec, machine)
    data, w_hidden = spec.operands[0], spec.operands[2]
    hidden = w_hidden.shape[-1]
    gates = w_hidden.shape[0] // hidden
    steps = data.shape[0]
    batch = data.elements // steps // data.shape[-1]
    source, dtype = build.place(0), data.dtype
    inputs = data.shape[-1]
    step_input = row_major(
        (batch, inputs), dtype, build.linear(batch * inputs, dtype).layout(dtype), source.role
    )
    states = build.linear(batch * hidden, dtype)
    state = row_major((batch, hidden), dtype, states.layout(dtype))
    products: list[tuple[str, Operand, Operand]] = []
    columns = gates * hidden
    if gates == 4:  # one product of inputs and state with both weights
        joined = _beside(build, batch, (step_input, state), inputs + hidden)
        products.append(("units", joined, _kernel(build, "units", joined, (1, 2), columns)))
    else:
        products.append(("inputs", step_input, _kernel(build, "inputs", step_input, (1,), columns)))
        products.append(("recurrent", state, _kernel(build, "recurrent", state, (2,), columns)))
    first = build.next
    # a time step's inputs, of the copy that is cut into time steps
    share = build.linear(batch * inputs, dtype).elements * data.item_bytes
    kind = poplar_type(dtype)
    build.compute("slice inputs", f"popops::DynamicSlice1d<{kind}>", slice_cycles(share))
    build.hold("step's inputs", share, build.next - 1)
    worklists = np.zeros(build.tiles, np.int64)
    for name, left, right in products:
        result, again = _product(build, name, left, right)
        worklists = worklists + again.worklists
        begin = build.next
        step = build.fetch_and_hold(f"{name}/gates", result, states.elements * gates)
        assert result.layout is not None
        build.hold(f"{name}/units", result.layout.bytes, begin - 1, step)
        build.map(f"{name}/add", "add_", states.elements * gates, dtype)
    state_elements = states.elements
    _cell(build, state_elements, gates, dtype)
    workspace = spec.outputs[3]
    if workspace is not None and workspace.dtype == dtype and workspace.elements:
        saved_bytes = apportion(workspace.elements // steps, state_elements) * data.item_bytes
        build.compute("keep", f"popops::DynamicUpdateSlice1d<{kind}>", slice_cycles(saved_bytes))
    build.compute(
        "write output",
        f"popops::DynamicUpdateSlice1d<{kind}>",
        slice_cycles(state_elements * data.item_bytes),
    )
    repeat(build, first, steps)
    layouts = in_proportion(("states", 0, digest(states.key)), state_elements, spec.outputs)
    return build.plan(layouts, constants=worklists, note=f"{steps} steps; {again.splits}")


@dataclass(frozen=True)
class _Sizes:
    """Extents of a recurrent layer: steps of time, samples, features, states, gates of a cell."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    dtype: str
    item_bytes: int

    @property
    def units(self) -> int:
        """Columns of the gates' product."""
        return self.gates * self.hidden

    @property
    def slice(self) -> str:
        """The vertex that takes a time step out of a sequence."""
        return f"popops::DynamicSlice1d<{poplar_type(self.dtype)}>"

    @property
    def update(self) -> str:
        """The vertex that puts a time step into a sequence."""
        return f"popops::DynamicUpdateSlice1d<{poplar_type(self.dtype)}>"


def _matrix_of(build: Builder, rows: int, columns: int, sizes: _Sizes) -> Operand:
    """A matrix of a time step, spread evenly."""
    layout = build.linear(rows * columns, sizes.dtype).layout(sizes.dtype)
    return row_major((rows, columns), sizes.dtype, layout)


def _steps_back(build: Builder, sizes: _Sizes, w_in: Operand, w_rec: Operand) -> np.ndarray:
    """Append the time steps from the last to the first; returns bytes of worklists."""
    # An LSTM makes the gradients of its state and of its input in one product, a GRU in two ([PL,
    # lib/popnn/Lstm.cpp], backwardStepImpl; [PL, lib/popnn/Gru.cpp], of resetAfter). Of a plain
    # layer the input's are made of all steps at once, afterwards.
    states = build.linear(sizes.batch * sizes.hidden, sizes.dtype).elements
    grad = _matrix_of(build, sizes.batch, sizes.units, sizes)
    weights = _weights_beside(build, (w_in, w_rec)) if sizes.gates == LSTM else w_rec
    first = build.next
    if sizes.gates > 1:
        saved = states * KEPT[sizes.gates] * sizes.item_bytes
        step = build.compute("slice what the forward kept", sizes.slice, slice_cycles(saved))
        build.hold("what the forward kept", saved, step)
    _cell_gradient(build, states, sizes.gates, sizes.dtype)
    product = build.next
    _, done = _product(build, "grad recurrent", grad, weights)
    first = transpose_once(build, first, product)
    worklists = done.worklists
    if sizes.gates == GRU:
        product = build.next
        _, again = _product(build, "grad input", grad, w_in)
        first = transpose_once(build, first, product)
        worklists = worklists + again.worklists
    columns = weights.shape[-1]
    share = apportion(sizes.batch * columns, states)
    source = row_major((sizes.batch, columns), sizes.dtype, done.outputs.layout(sizes.dtype))
    step = build.fetch("collect gradient", source, share)
    build.hold("gradient of state", share * sizes.item_bytes, step, build.next)
    if sizes.gates > 1:
        written = apportion(sizes.batch * (sizes.inputs + sizes.units), states) * sizes.item_bytes
        build.compute("write gradients", sizes.update, slice_cycles(written))
    build.map("add gradient of output", "add_", states, sizes.dtype)
    repeat(build, first, sizes.steps)
    return worklists


def _weights_step_by_step(build: Builder, sizes: _Sizes) -> tuple[Spread, Spread]:
    """Append the gradients of a GRU's weights: each step's are added to those before it."""
    # [PL, lib/popnn/Gru.cpp], basicGruParamUpdate
    first = build.next
    grad = _matrix_of(build, sizes.batch, sizes.units, sizes)
    spreads = []
    sides = {"input": sizes.inputs, "recurrent": sizes.hidden}
    for name, columns in sides.items():
        share = build.linear(sizes.batch * columns, sizes.dtype).elements * sizes.item_bytes
        step = build.compute(f"slice {name}", sizes.slice, slice_cycles(share))
        build.hold(f"step's {name}", share, step)
        acts = _matrix_of(build, sizes.batch, columns, sizes)
        _, done = _product(build, f"grad {name} weights", transposed(acts), grad)
        elements = done.outputs.elements
        build.map(f"add {name} weights", "scaled_add", elements, sizes.dtype)
        spreads.append(done.outputs)
    gates = build.linear(sizes.batch * sizes.units, sizes.dtype).elements
    build.map("add bias", "add_", gates, sizes.dtype)
    repeat(build, first, sizes.steps)
    return spreads[0], spreads[1]


def _weights_at_once(
    build: Builder, sizes: _Sizes, inputs: Operand, grads: Operand
) -> tuple[Spread, Spread]:
    """Append the gradients of weights: products over all steps."""
    # popnn takes as many of an LSTM at once as fit ([PL, lib/popnn/Lstm.cpp], interleaveWUCadence)
    _, of_inputs = _product(build, "grad input weights", transposed(grads), inputs)
    states = _matrix_of(build, sizes.steps * sizes.batch, sizes.hidden, sizes)
    _, of_states = _product(build, "grad recurrent weights", transposed(grads), states)
    return of_inputs.outputs, of_states.outputs


@lowering(
    "aten.mkldnn_rnn_layer_backward",
    "ipu_rnn.lstm_backward",
    "ipu_rnn.gru_backward",
    "ipu_rnn.rnn_tanh_backward",
    "ipu_rnn.rnn_relu_backward",
)
def layer_backward(spec: OpSpec, machine: Machine) -> Plan:
    """T steps back through the cell, then the gradients of the weights."""
    build = Builder(spec, machine)
    data, w_hidden = spec.operands[0], spec.operands[2]
    hidden, steps, inputs = w_hidden.shape[-1], data.shape[0], data.shape[-1]
    batch, gates = data.elements // steps // inputs, w_hidden.shape[0] // hidden
    sizes = _Sizes(steps, batch, inputs, hidden, gates, data.dtype, data.item_bytes)
    x = replace(build.place(0), shape=(steps * batch, inputs), strides=(inputs, 1))
    w_in, w_rec = (replace(build.place(i), role=Role.WEIGHT) for i in (1, 2))
    first = build.next
    worklists = _steps_back(build, sizes, w_in, w_rec)
    every = build.linear(steps * batch * sizes.units, data.dtype)
    grads = row_major((steps * batch, sizes.units), data.dtype, every.layout(data.dtype))
    build.hold("gradients of gates", every.layout(data.dtype).bytes, first)
    if gates == 1:
        of_inputs = _product(build, "grad input", grads, w_in)[1].outputs
    else:
        states = build.linear(batch * hidden, data.dtype)
        share = apportion(data.elements, states.elements)
        of_inputs = Spread(("states", 0, digest(states.key, "inputs")), share)
    if gates == GRU:
        of_w_in, of_w_rec = _weights_step_by_step(build, sizes)
    else:
        of_w_in, of_w_rec = _weights_at_once(build, sizes, x, grads)
    bias = reduce_over(build, grads, every, (0,), "ADD", "grad bias").spread
    spreads = {0: of_inputs, 1: of_w_in, 2: of_w_rec, 3: bias, 4: bias}
    layouts: list[Layout | None] = []
    for position, out in enumerate(spec.outputs):
        made = spreads.get(position)
        whole = made is not None and out is not None and int(made.elements.sum()) == out.elements
        layouts += made.layouts([out]) if made and whole else build.linear_layouts([out])
    return build.plan(tuple(layouts), constants=worklists, note=f"{steps} steps")


@lowering("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def cell(spec: OpSpec, machine: Machine) -> Plan:
    """(input gates, hidden gates, state, biases): a cell's maps, whose products came before."""
    build = Builder(spec, machine)
    out = spec.output
    state, state_spread = build.lead(2)
    for index in (0, 1):
        source = build.place(index)
        need = apportion(source.elements, state_spread.elements)
        build.fetch_and_hold(f"gates {index}", source, need)
    gates = spec.operands[0].elements // state.elements
    for index in range(3, len(spec.operands)):
        build.place(index)
        build.map("add bias", "add_vector", state_spread.elements * gates, out.dtype)
    build.map("add gates", "add_", state_spread.elements * gates, out.dtype)
    _cell(build, state_spread.elements, gates, out.dtype)
    key = ("cell", 0, digest(state_spread.key))
    return build.plan(in_proportion(key, state_spread.elements, spec.outputs))


describe("aten.mkldnn_rnn_layer", uses_memory_proportion=True)
describe("ipu_rnn.lstm", popart_name="LSTM")
describe("ipu_rnn.gru", popart_name="GRU")

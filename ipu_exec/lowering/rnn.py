"""LSTM, GRU and plain recurrent layers.

Each time step is one product of its inputs and the state (an LSTM) or one of each (a GRU, whose
reset follows the product), and a few maps ([PL, lib/popnn/Lstm.cpp], preCalcWeights, which is off
by default and which PopART does not set).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipu_exec.lowering.attention import transposed
from ipu_exec.lowering.build import Builder, placed, row_major
from ipu_exec.lowering.costs import rearrange_cycles, slice_cycles
from ipu_exec.lowering.elementwise import base_name
from ipu_exec.lowering.layouts import Spread, apportion, digest
from ipu_exec.lowering.matmul import multiply, sides_of
from ipu_exec.lowering.operators import describe
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.product import Product
from ipu_exec.lowering.reduce import reduce_over
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine
from profiler.enums import Role

_END = 1 << 30


def repeat(build: Builder, first: int, times: int) -> None:
    """Run the steps from ``first`` on ``times`` times in all, with the memory that they hold."""
    body, held = build.steps[first:], [t for t in build.temporaries if t.first >= first]
    for turn in range(1, times):
        shift = turn * len(body)
        build.steps += body
        build.temporaries += [
            replace(t, first=t.first + shift, last=min(t.last + shift, _END)) for t in held
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
        replace(t, first=place(t.first), last=_END if t.first == product else place(t.last))
        for t in build.temporaries
    ]
    return start + 1


def _matrix(operand: Operand, columns: int) -> Operand:
    """The operand as a matrix, with all but the last dimension flattened."""
    rows = operand.elements // columns
    return replace(operand, shape=(rows, columns), strides=(columns, 1))


def _product(build: Builder, name: str, left: Operand, right: Operand) -> tuple[Operand, Product]:
    done = multiply(build, name, sides_of(build.spec, left, right), left.dtype)
    shape = (left.shape[-2], right.shape[-1])
    return row_major(shape, left.dtype, done.outputs.layout(left.dtype)), done


def _cell(build: Builder, states: np.ndarray, gates: int, dtype: str) -> None:
    """The maps of one time step, for ``states`` elements of hidden state per tile.

    For an LSTM: both gates' products at once, their sum, tanh and the output's product ([PL,
    lib/popnn/Lstm.cpp], basicLstmCellForwardPass).
    """
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
    """The weights of a step's product, stacked, in the layout that its plan wants.

    Those without a layout have it from the start ([PL, lib/popnn/Lstm.cpp], createWeightsKernel);
    others are rearranged once, before the loop, and are kept until it ends.
    """
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
                f"popops::Transpose2D<{'half' if source.item_bytes == 2 else 'float'}>",
                rearrange_cycles(share),
            )
            build.hold(f"{name}/weights {position}", wish.bytes, step, _END)
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


def _cell_gradient(build: Builder, states: np.ndarray, gates: int, dtype: str) -> None:
    """The maps of one time step backward: each gate's derivative and the products around it."""
    build.map("grad activations", "nonlinearity_grad", states * gates, dtype)
    for _ in range(1 if gates == 1 else 4):
        build.map("grad products", "mul", states, dtype)
    build.map("grad state", "add_", states, dtype)


@lowering(
    "aten.mkldnn_rnn_layer", "ipu_rnn.lstm", "ipu_rnn.gru", "ipu_rnn.rnn_tanh", "ipu_rnn.rnn_relu"
)
def layer(spec: OpSpec, machine: Machine) -> Plan:
    """(input[T, B, I], W_ih, W_hh, biases, hx, cx, ...): T steps of the cell in sequence.

    The values that the backward needs of a step are saved (`ipu_exec.capture.recurrent`).
    """
    build = Builder(spec, machine)
    data, w_hidden = spec.operands[0], spec.operands[2]
    hidden = w_hidden.shape[-1]
    gates = w_hidden.shape[0] // hidden
    steps = data.shape[0]
    batch = data.elements // steps // data.shape[-1]
    source, dtype = build.place(0), data.dtype
    inputs = data.shape[-1]
    one = row_major(
        (batch, inputs), dtype, build.linear(batch * inputs, dtype).layout(dtype), source.role
    )
    states = build.linear(batch * hidden, dtype)
    state = row_major((batch, hidden), dtype, states.layout(dtype))
    products: list[tuple[str, Operand, Operand]] = []
    columns = gates * hidden
    if gates == 4:  # one product of inputs and state with both weights
        both = _beside(build, batch, (one, state), inputs + hidden)
        products.append(("units", both, _kernel(build, "units", both, (1, 2), columns)))
    else:
        products.append(("inputs", one, _kernel(build, "inputs", one, (1,), columns)))
        products.append(("recurrent", state, _kernel(build, "recurrent", state, (2,), columns)))
    first = build.next
    # a time step's inputs, of the copy that is cut into time steps
    share = build.linear(batch * inputs, dtype).elements * data.item_bytes
    kind = "half" if data.item_bytes == 2 else "float"
    build.compute("slice inputs", f"popops::DynamicSlice1d<{kind}>", slice_cycles(share))
    build.hold("step's inputs", share, build.next - 1, _END)
    worklists = np.zeros(build.tiles, np.int64)
    for name, left, right in products:
        result, again = _product(build, name, left, right)
        worklists = worklists + again.worklists
        begin = build.next
        step = build.fetch(f"{name}/gates", result, states.elements * gates)
        build.hold(f"{name}/gates", states.elements * gates * data.item_bytes, step, _END)
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
    layouts: list[Layout | None] = []
    for out in spec.outputs:
        spread = (
            None
            if out is None
            else Spread(("states", 0, digest(states.key)), apportion(out.elements, state_elements))
        )
        layouts.append(None if out is None or spread is None else spread.layout(out.dtype))
    return build.plan(
        tuple(layouts),
        constants=worklists,
        note=f"{steps} steps; {again.splits}",
    )


@lowering(
    "aten.mkldnn_rnn_layer_backward",
    "ipu_rnn.lstm_backward",
    "ipu_rnn.gru_backward",
    "ipu_rnn.rnn_tanh_backward",
    "ipu_rnn.rnn_relu_backward",
)
def layer_backward(spec: OpSpec, machine: Machine) -> Plan:
    """T steps back through the cell, then the gradients of inputs and weights.

    The latter are products over all steps.
    """
    build = Builder(spec, machine)
    data, w_hidden = spec.operands[0], spec.operands[2]
    hidden = w_hidden.shape[-1]
    gates = w_hidden.shape[0] // hidden
    steps, dtype = data.shape[0], data.dtype
    batch = data.elements // steps // data.shape[-1]
    x = _matrix(build.place(0), data.shape[-1])
    w_in, w_rec = (replace(build.place(i), role=Role.WEIGHT) for i in (1, 2))
    spread = build.linear(batch * hidden, dtype)
    grad = row_major(
        (batch, gates * hidden), dtype, build.linear(batch * gates * hidden, dtype).layout(dtype)
    )
    first = build.next
    _cell_gradient(build, spread.elements, gates, dtype)
    product = build.next
    _, done = _product(build, "grad recurrent", grad, w_rec)
    first = transpose_once(build, first, product)
    source = row_major((batch, hidden), dtype, done.outputs.layout(dtype))
    step = build.fetch("collect gradient", source, spread.elements)
    build.hold("gradient of state", spread.elements * data.item_bytes, step, build.next)
    build.map("add gradient of output", "add_", spread.elements, dtype)
    repeat(build, first, steps)
    every = build.linear(steps * batch * gates * hidden, dtype)
    grads = row_major((steps * batch, gates * hidden), dtype, every.layout(dtype))
    build.hold("gradients of gates", every.layout(dtype).bytes, first, _END)
    _, grad_input = _product(build, "grad input", grads, w_in)
    _, grad_w_in = _product(build, "grad input weights", transposed(grads), x)
    states = row_major(
        (steps * batch, hidden), dtype, build.linear(steps * batch * hidden, dtype).layout(dtype)
    )
    _, grad_w_rec = _product(build, "grad recurrent weights", transposed(grads), states)
    bias = reduce_over(build, grads, every, (0,), "ADD", "grad bias").spread
    known = {0: grad_input.outputs, 1: grad_w_in.outputs, 2: grad_w_rec.outputs, 3: bias, 4: bias}
    layouts: list[Layout | None] = []
    for position, out in enumerate(spec.outputs):
        if out is None:
            layouts.append(None)
        elif position in known and int(known[position].elements.sum()) == out.elements:
            layouts.append(known[position].layout(out.dtype))
        else:
            layouts.append(build.linear(out.elements, out.dtype).layout(out.dtype))
    return build.plan(tuple(layouts), constants=done.worklists, note=f"{steps} steps")


@lowering("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def cell(spec: OpSpec, machine: Machine) -> Plan:
    """The maps of a cell whose products were computed before.

    (input gates, hidden gates, state, biases).
    """
    build = Builder(spec, machine)
    out = spec.outputs[0]
    assert out is not None
    state, state_spread = build.lead(2)
    for index in (0, 1):
        source = build.place(index)
        need = apportion(source.elements, state_spread.elements)
        step = build.fetch(f"gates {index}", source, need)
        build.hold(f"gates {index}", need * source.item_bytes, step, _END)
    gates = spec.operands[0].elements // state.elements
    for index in range(3, len(spec.operands)):
        build.place(index)
        build.map("add bias", "add_vector", state_spread.elements * gates, out.dtype)
    build.map("add gates", "add_", state_spread.elements * gates, out.dtype)
    _cell(build, state_spread.elements, gates, out.dtype)
    layouts: list[Layout | None] = []
    for o in spec.outputs:
        spread = (
            None
            if o is None
            else Spread(
                ("cell", 0, digest(state_spread.key)), apportion(o.elements, state_spread.elements)
            )
        )
        layouts.append(None if o is None or spread is None else spread.layout(o.dtype))
    return build.plan(tuple(layouts))


describe("aten.mkldnn_rnn_layer", uses_memory_proportion=True)
describe("ipu_rnn.lstm", popart_name="LSTM")
describe("ipu_rnn.gru", popart_name="GRU")

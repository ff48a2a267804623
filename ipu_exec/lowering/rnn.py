"""LSTM, GRU and plain recurrent layers.

One product of all inputs, then a product and a few maps a time step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipu_exec.lowering.attention import transposed
from ipu_exec.lowering.build import Builder, row_major
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
    """Do the steps from ``first`` on ``times`` times in all, with what they hold."""
    body, held = build.steps[first:], [t for t in build.temporaries if t.first >= first]
    for turn in range(1, times):
        shift = turn * len(body)
        build.steps += body
        build.temporaries += [
            replace(t, first=t.first + shift, last=min(t.last + shift, _END)) for t in held
        ]


def transpose_once(build: Builder, start: int, product: int) -> int:
    """Move the transposition of a product's right operand before the time loop.

    The product begins at step ``product``, the loop at ``start``; returns where the loop then
    begins.

    That operand is the weights: they are the same at all time steps ([PL, lib/popnn/Lstm.cpp], [PL,
    lib/popnn/Gru.cpp]: preArrangeMatMulInputRHS, "PreArrangeWeights", in the program before the
    loop).
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
    """All but the last dimension flattened."""
    rows = operand.elements // columns
    return replace(operand, shape=(rows, columns), strides=(columns, 1))


def _product(build: Builder, name: str, left: Operand, right: Operand) -> tuple[Operand, Product]:
    done = multiply(build, name, sides_of(build.spec, left, right), left.dtype)
    shape = (left.shape[-2], right.shape[-1])
    return row_major(shape, left.dtype, done.outputs.layout(left.dtype)), done


def _cell(build: Builder, states: np.ndarray, gates: int, dtype: str) -> None:
    """The maps of one time step, ``states`` elements of hidden state a tile."""
    if gates == 1:
        build.map(
            "activation", "relu" if base_name(build.spec) == "rnn_relu" else "tanh", states, dtype
        )
        return
    build.map("gates/sigmoid", "sigmoid", states * (gates - 1), dtype)
    build.map("candidate/tanh", "tanh", states, dtype)
    build.map("forget", "mul", states, dtype)
    build.map("update", "scaled_add", states, dtype)
    if gates == 4:
        build.map("cell/tanh", "tanh", states, dtype)
        build.map("output", "mul", states, dtype)


def _cell_gradient(build: Builder, states: np.ndarray, gates: int, dtype: str) -> None:
    """The maps of one time step backward.

    A gradient of each gate's function and the products around it.
    """
    build.map("grad activations", "nonlinearity_grad", states * gates, dtype)
    for _ in range(1 if gates == 1 else 4):
        build.map("grad products", "mul", states, dtype)
    build.map("grad state", "add_", states, dtype)


@lowering(
    "aten.mkldnn_rnn_layer", "ipu_rnn.lstm", "ipu_rnn.gru", "ipu_rnn.rnn_tanh", "ipu_rnn.rnn_relu"
)
def layer(spec: OpSpec, machine: Machine) -> Plan:
    """(input[T, B, I], W_ih, W_hh, biases, hx, cx, ...): T steps of the cell, one after another.

    What the backward needs of a step is copied to its place (`ipu_exec.capture.recurrent`).
    """
    build = Builder(spec, machine)
    data, w_hidden = spec.operands[0], spec.operands[2]
    hidden = w_hidden.shape[-1]
    gates = w_hidden.shape[0] // hidden
    steps = data.shape[0]
    batch = data.elements // steps // data.shape[-1]
    x = _matrix(build.place(0), data.shape[-1])
    kernel = [replace(build.place(i), role=Role.WEIGHT) for i in (1, 2)]
    all_gates, done = _product(build, "inputs", x, transposed(kernel[0]))
    assert all_gates.layout is not None
    build.hold("gates of inputs", all_gates.layout.bytes, max(0, build.next - 1), _END)
    first = build.next
    state = row_major(
        (batch, hidden), data.dtype, build.linear(batch * hidden, data.dtype).layout(data.dtype)
    )
    recurrent, again = _product(build, "recurrent", state, transposed(kernel[1]))
    mine = again.outputs.elements
    step = build.fetch(
        "gates",
        replace(all_gates, shape=recurrent.shape, storage_elements=all_gates.elements),
        mine,
    )
    build.hold("gates", mine * data.item_bytes, step, build.next)
    build.map("add gates", "add_", mine, data.dtype)
    _cell(build, apportion(batch * hidden, mine), gates, data.dtype)
    workspace = spec.outputs[3]
    if workspace is not None and workspace.dtype == data.dtype and workspace.elements:
        build.map("keep", "copy", apportion(workspace.elements // steps, mine), data.dtype, flops=0)
    repeat(build, first, steps)
    layouts: list[Layout | None] = []
    for out in spec.outputs:
        spread = (
            None
            if out is None
            else Spread(("states", 0, digest(again.outputs.key)), apportion(out.elements, mine))
        )
        layouts.append(None if out is None or spread is None else spread.layout(out.dtype))
    return build.plan(
        tuple(layouts),
        constants=done.worklists + again.worklists,
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
    """The maps of a cell whose products were done before.

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

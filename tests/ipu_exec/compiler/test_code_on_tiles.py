"""Code on tiles: exchange instructions by message, control by the steps a tile takes part in, loops
kept once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import ipu_exec
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.memory.code_on_tiles import STACK_BYTES
from ipu_exec.lowering import lower
from ipu_exec.lowering.build import messages
from ipu_exec.lowering.layouts import linear_layout
from ipu_exec.lowering.plan import Exchange, Plan
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.file import records
from tests.models import model_of
from tests.operands import MK2, op, tensor


def compiled(model: nn.Module, *inputs: torch.Tensor) -> Executable:
    options = ipu_exec.Options().showCompilationProgressBar(False)
    return compile_step(model.eval(), inputs, {}, options, None, False)


def code(executable: Executable, category: str) -> np.ndarray:
    """Bytes of code per tile."""
    return sum(
        (v.tile_bytes for v in executable.variables if v.category == category),
        np.zeros(1472, np.int64),
    )


def test_a_part_meets_as_many_senders_as_its_shape_allows() -> None:
    line = np.array([0, 100, 400, 1000])
    sent = np.full(4, 400)
    # parts of 100, 400 and 1,000 bytes over parts of 400: one boundary, one, three
    assert messages(line, sent).tolist() == [0, 2, 2, 4]
    # rectangles: as many in both directions, 2 x 2, and 3 x 3 where the side is 1.6 times as long
    many = np.full(40, 400)
    assert messages(np.array([0, 100, 400, 1000] + [0] * 36), many, 2)[:4].tolist() == [0, 4, 4, 9]
    # never more than there are senders, nor than words
    assert messages(np.array([8, 4000]), np.array([0, 400])).tolist() == [1, 1]
    assert messages(np.array([8, 0, 0, 0]), np.full(4, 2), 2).tolist() == [2, 0, 0, 0]


def test_exchange_code_is_three_instructions_a_message_and_one_for_64_words_sent() -> None:
    add = model_of(lambda self, x, y: x + y[:, :256])
    executable = compiled(add, torch.zeros(256, 256), torch.zeros(256, 512))
    (step,) = (
        s for body in executable.tree.bodies for s in body.steps if s.type == records.DO_EXCHANGE
    )
    assert step.fragments is not None and step.bytes_out is not None
    sends = np.where(step.bytes_out > 0, 1 + np.ceil(step.bytes_out / 256), 0)
    assert (code(executable, "internalExchangeCode") == 4 * (3 * step.fragments + sends)).all()
    # both lie linearly, 44 to 46 elements on a tile: a part lies across two or three others
    assert set(step.fragments.tolist()) == {2, 3}


def test_a_transposed_operand_is_regrouped_first_or_arrives_element_by_element() -> None:
    """popops regroups where groups of 8 bytes go to, which 255 elements in a row do not allow."""

    def turned(rows: int, columns: int) -> tuple[np.ndarray, Plan]:
        layout = linear_layout(tensor(rows, columns), 1472)
        x, y = (
            tensor(rows, columns, layout=layout),
            tensor(rows, columns, strides=(1, rows), layout=layout),
        )
        return layout.bytes, lower(op("aten.add.Tensor", (x, y), tensor(rows, columns)), MK2)

    held, plan = turned(256, 255)
    (step,) = (s for s in plan.steps if isinstance(s, Exchange))
    assert (step.fragments == held // 4).all()
    assert len(turned(255, 256)[1].steps) == 4
    held, plan = turned(256, 256)
    assert [s.name for s in plan.steps] == [
        "regroup operand 1",
        "transpose operand 1",
        "operand 1",
        "add/add",
    ]
    regroup, bring = (s for s in plan.steps if isinstance(s, Exchange))
    assert regroup.bytes_in.sum() == bring.bytes_in.sum() == 256 * 256 * 4
    # a block of a tile's size lies over four others, a larger one over nine; a line over two or
    # three
    assert set(regroup.fragments.tolist()) == {4, 9} and set(bring.fragments.tolist()) == {2, 3}
    (regrouped,) = (t for t in plan.temporaries if t.name == "regrouped operand 1")
    assert (regrouped.bytes == held).all() and (regrouped.first, regrouped.last) == (0, 2)


def test_control_code_is_for_the_steps_a_tile_takes_part_in() -> None:
    executable = compiled(model_of(lambda self, x: torch.relu(x) * x), torch.zeros(320))
    bodies = [b for b in executable.tree.bodies if any(s.plan is not None for s in b.steps)]
    (forward,) = bodies
    assert [s.type for s in forward.steps] == [records.ON_TILE_EXECUTE] * 2
    busy = forward.steps[0].vertices[0].count > 0
    control = code(executable, "controlCode")
    # two calls everywhere; two compute sets of one vertex where 320 elements lie; input and output
    # streams
    streams = [s for b in executable.tree.bodies for s in b.steps if s.bytes_in is not None]
    for tile in (int(np.flatnonzero(busy)[0]), int(np.flatnonzero(~busy)[0])):
        moved = sum(3 if (s.bytes_in[tile] or s.bytes_out[tile]) else 1 for s in streams)
        assert control[tile] == 4 * (2 * 3 + (2 * (2 + 2) if busy[tile] else 0) + moved)


def test_the_turns_of_a_loop_share_their_code() -> None:
    def size(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        executable = compiled(nn.LSTM(64, 64), torch.zeros(steps, 8, 64))
        assert max(len(b.steps) for b in executable.tree.bodies) > 8 * steps
        return tuple(
            code(executable, c)
            for c in ("vertexInstanceState", "controlCode", "internalExchangeCode")
        )

    short, long = size(4), size(16)
    for few, many in zip(short, long, strict=True):
        # what grows is the one product of all inputs, not the recurrence: four times the turns,
        # never twice the code
        assert many.max() < 1.5 * few.max()


def test_serial_splits_are_one_loop() -> None:
    from dataclasses import replace

    x, w = tensor(2048, 1024), tensor(1024, 2048, role="weight")
    plan = lower(op("aten.mm.default", (x, w), tensor(2048, 2048)), replace(MK2, proportion=0.02))
    weights = [s for s in plan.steps if isinstance(s, Exchange) and "/weights/" in s.name]
    assert len(weights) > 1
    assert (
        len({s.bytes_in.tobytes() + s.bytes_out.tobytes() + s.fragments.tobytes() for s in weights})
        == 1
    )


def test_equal_layers_share_code_and_a_call_each() -> None:
    def control(layers: int) -> int:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(layers)))
        return int(code(compiled(model, torch.zeros(16, 64)), "controlCode").max())

    # from the third layer on every plan is known: two more calls a layer
    assert control(5) - control(4) == control(4) - control(3) == 2 * 3 * 4


def test_stacks_are_on_every_tile() -> None:
    executable = compiled(nn.ReLU(), torch.zeros(4))
    assert (code(executable, "stack") == STACK_BYTES).all()
    assert linear_layout(tensor(4), 1472).bytes.sum() == 16


def test_a_packet_to_the_host_has_a_header_of_eight_bytes() -> None:
    executable = compiled(nn.ReLU(), torch.zeros(1472, 600))
    (out,) = (
        s
        for b in executable.tree.bodies
        for s in b.steps
        if s.bytes_out is not None and s.bytes_out.any()
    )
    assert (
        out.bytes_out is not None and out.bytes_out.max() > 2 * 1024
    )  # 2,400 bytes: three packets
    assert (code(executable, "hostExchangePacketHeader") == 8 * np.ceil(out.bytes_out / 1024)).all()

"""Bytes of products and convolutions that poplibs' public sources decide."""

from __future__ import annotations

import math

import pytest

from ipu_exec.lowering import lower, vertex_info
from ipu_exec.lowering.plan import Plan, Temporary
from tests.operands import MK2, computes, op, tensor
from tools.vertex_code import Assembler


def named(plan: Plan, end: str) -> Temporary:
    return next(held for held in plan.temporaries if held.name.endswith(end))


def product(inner: int, dtype: str = "float16") -> Plan:
    left, right = tensor(200, inner, dtype=dtype), tensor(inner, 30000, dtype=dtype)
    return lower(op("aten.mm.default", (left, right), tensor(200, 30000, dtype=dtype)), MK2)


def test_whole_groups_of_input_channels_are_read_where_they_lie() -> None:
    """Five tiles share 16 groups: 3, 2, 2, 2 and 3 lie whole on them. Of 4 groups none does."""
    assert "out 5, in 1" in product(256).note and "out 5, in 1" in product(64).note
    rows = math.ceil(30000 / 292)
    gathered = named(product(256), "inputs").bytes
    whole = rows * 256 * 2
    assert gathered[:5].tolist() == [whole * (16 - n) // 16 for n in (3, 2, 2, 2, 3)]
    assert named(product(64), "inputs").bytes[:5].tolist() == [rows * 64 * 2] * 5


@pytest.mark.parametrize(("dtype", "is_result"), [("float32", True), ("float16", False)])
def test_partials_of_the_results_type_are_the_result(dtype: str, is_result: bool) -> None:
    assert named(product(64, dtype), "partials").becomes_result == is_result


def test_a_depthwise_vertex_keeps_outputs_in_a_buffer() -> None:
    data, weight = tensor(4, 256, 28, 28, dtype="float16"), tensor(256, 1, 3, 3, dtype="float16")
    args = (data, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 256)
    plan = lower(op("aten.convolution.default", args, tensor(4, 256, 28, 28, dtype="float16")), MK2)
    assert "slic" in plan.note
    buffer, partials = named(plan, "field buffer"), named(plan, "partials")
    used = partials.bytes > 0
    assert (buffer.bytes[used] > 200).all()
    assert (buffer.bytes[used] <= partials.bytes[used] + 200).all()


def test_code_of_vertices_is_counted_by_element_type() -> None:
    narrow, wide = (
        vertex_info(f"poplin::ConvPartial1x1Out<{types},true,false,{units}>")[0]
        for types, units in (("half,float", 8), ("float,float", 16))
    )
    assert (narrow, wide) == (1036, 1216)
    assert vertex_info("poplin::ReduceAdd<half,float>")[0] == 428


@pytest.mark.parametrize(("stride", "code"), [(1, 1464), (2, 1400)])
def test_a_slic_vertex_has_the_worker_of_its_stride_alone(stride: int, code: int) -> None:
    data, weight = tensor(4, 32, 112, 112, dtype="float16"), tensor(32, 1, 3, 3, dtype="float16")
    args = (data, weight, None, (stride, stride), (1, 1), (1, 1), False, (0, 0), 32)
    result = tensor(4, 32, 112 // stride, 112 // stride, dtype="float16")
    plan = lower(op("aten.convolution.default", args, result), MK2)
    (vertex,) = computes(plan)["conv/convolve"].vertices
    assert vertex.type == f"poplin::ConvPartial1xNSLIC<half,float,{stride},true,4,2,4,false>"
    assert vertex_info(vertex.type)[0] == code


ASSEMBLY = """
.macro LOAD TYPE TIMES
.ifc \\TYPE, half
  ld64 $a0:1, $m0
.else
  ld32 $a0, $m0
  nop
.endif
.rept \\TIMES
  { add $m0, $m0, 8
    nop }
.endr
.endm
.equ COUNT, 2 + 1
.section .text.vertex
entry:
  LOAD half, COUNT
loop: exitz $m15
.section .text.other
  LOAD float 1
"""


def test_instructions_are_counted_after_macros_conditions_and_repetitions() -> None:
    assembler = Assembler()
    assembler.run(ASSEMBLY.split("\n"))
    assert assembler.bytes == {".text.vertex": 4 * (1 + 6 + 1), ".text.other": 4 * (2 + 2)}

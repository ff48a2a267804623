"""Vertex types by their published names: bytes of code and of state.

Code is kept once a tile for each type used there. The code of vertices that poplibs has in assembly
is counted in its sources (``python -m tools.vertex_code CHECKOUT``; an instruction is 4 bytes):
entry, what it calls and the kernel of its element type. Of those that it has in C++ only the source
is public; their sizes are estimates. State is [TUT4]'s 16 B a vertex.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

STATE_BYTES = 16  # [TUT4]: 271 KiB over 16,877 vertices
# [TUT4] has 222 KiB of field data: the pointers of its products' and reductions' vertices
# (`ipu_exec.lowering.worklists`); vertices of one or two operands have theirs in their state
FIELD_BYTES = 0

_DEFAULT_CODE_BYTES = 320


@cache
def _code() -> dict[str, int]:
    """Bytes by the beginning of a type's name, those of some data types first."""
    text = Path(__file__).with_name("vertex_code.csv").read_text("utf-8")
    rows = [*csv.reader(text.splitlines())][1:]
    return {name: sum(map(int, parts.split("+"))) for name, parts, _ in rows}


def vertex_info(vertex_type: str) -> tuple[int, int]:
    """(bytes of code, of state and fields) of a type like ``poplin::ReduceAdd<float,float>``."""
    family, bracket, types = vertex_type.partition("<")
    family = family.rsplit("::", 1)[-1]
    name = f"{family}{bracket}{types}"
    of_types = (nbytes for one, nbytes in _code().items() if "<" in one and name.startswith(one))
    code = next(of_types, _code().get(family, _DEFAULT_CODE_BYTES))
    return code, STATE_BYTES + FIELD_BYTES


_POPLAR_TYPES = {
    **dict.fromkeys(("float32", "float64"), "float"),
    **dict.fromkeys(("float16", "bfloat16"), "half"),
    **dict.fromkeys(("int64", "int32"), "int"),
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


def poplar_type(dtype: str) -> str:
    """Poplar's name of a data type."""
    return _POPLAR_TYPES[dtype]

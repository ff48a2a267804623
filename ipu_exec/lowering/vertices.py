"""Vertex types by their published names: bytes of code and of state.

Code is kept once a tile for each type used there. Sizes by family are estimates in the range that
[TUT4] shows (1.7 kB and 0.9 kB a tile for all code of a product,
docs/memory-model.md#measured-sizes), not fitted to any one row; state is [TUT4]'s 16 B of state and
13 B of field data a vertex.
"""

from __future__ import annotations

STATE_BYTES = 16  # [TUT4]: 271 KiB over 16,877 vertices
FIELD_BYTES = 13  # [TUT4]: 222 KiB over 16,877 vertices

_CODE_BYTES = {  # estimates: hand-written assembly is small, generic C++ is not
    "ConvPartial1x1Out": 620,
    "ConvPartialnx1": 1100,
    "ConvPartial1x4SLIC": 980,
    "ConvPartialVerticalMac": 640,
    "ConvPartialHorizontalMac": 560,
    "OuterProduct": 280,
    "ReduceAdd": 420,
    "Reduce": 520,
    "Transpose": 360,
    "PreArrange": 240,
    "MaxPooling": 480,
    "MaxPoolingGrad": 560,
    "SumPooling": 460,
    "Cast": 190,
    "Fill": 80,
    "MultiSlice": 330,
    "MultiUpdateAdd": 360,
    "Memcpy": 120,
}
_DEFAULT_CODE_BYTES = 320


def vertex_info(vertex_type: str) -> tuple[int, int]:
    """(bytes of code, bytes of state and field data) of a vertex type.

    Types are named like ``poplin::ReduceAdd<float,float>``.
    """
    family = vertex_type.split("<", 1)[0].rsplit("::", 1)[-1]
    return _CODE_BYTES.get(family, _DEFAULT_CODE_BYTES), STATE_BYTES + FIELD_BYTES


_POPLAR_TYPES = {
    "float32": "float",
    "float64": "float",
    "float16": "half",
    "bfloat16": "half",
    "int64": "int",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


def poplar_type(dtype: str) -> str:
    """Poplar's name of a data type."""
    return _POPLAR_TYPES[dtype]

"""Vertex types by their published names: bytes of code and of state.

Code is kept once a tile for each type used there. The code of vertices that poplibs has in assembly
is counted in its sources (``python -m tools.vertex_code CHECKOUT``; an instruction is 4 bytes):
entry, what it calls and the kernel of its element type. Of those that it has in C++ only the source
is public; their sizes are estimates. State is [TUT4]'s 16 B a vertex.
"""

from __future__ import annotations

STATE_BYTES = 16  # [TUT4]: 271 KiB over 16,877 vertices
# [TUT4] has 222 KiB of field data: the pointers of its products' and reductions' vertices
# (`ipu_exec.lowering.worklists`); vertices of one or two operands have theirs in their state
FIELD_BYTES = 0

_ZERO_OUTPUT = 68  # zeroes partials: convNx1ZeroOutField
_SLIC_WEIGHTS = 128 + 12  # loads them, and its jump table
# worker + supervisor (of 64-bit loads), of an MK2 ([PL, lib/poplin/codelets/asm])
_COUNTED_BY_TYPES = {
    "ConvPartial1x1Out<half,float,true,false,8>": 612 + 424,
    "ConvPartial1x1Out<half,half,true,false,16>": 612 + 552,
    "ConvPartial1x1Out<half,half,true,false,8>": 356 + 424,
    "ConvPartial1x1Out<float,float,true,false,16>": 664 + 552,
    "ConvPartial1x1Out<float,float,true,false,8>": 496 + 424,
    "ConvPartialnx1<half,float,true,false,8>": 480 + 1052 + _ZERO_OUTPUT,
    "ConvPartialnx1<half,half,true,false,16>": 480 + 1436 + _ZERO_OUTPUT,
    "ConvPartialnx1<half,half,true,false,8>": 436 + 1052 + _ZERO_OUTPUT,
    "ConvPartialnx1<float,float,true,false,16>": 760 + 1436 + _ZERO_OUTPUT,
    "ConvPartialnx1<float,float,true,false,8>": 584 + 1052 + _ZERO_OUTPUT,
    # the worker of one stride alone: only that is linked
    "ConvPartial1xNSLIC<half,float,1": 328 + 8 + 988 + _SLIC_WEIGHTS,
    "ConvPartial1xNSLIC<half,float,2": 328 + 8 + 924 + _SLIC_WEIGHTS,
    "ConvPartial1xNSLIC<half,half,1": 328 + 12 + 552 + _SLIC_WEIGHTS,
    "ConvPartial1xNSLIC<half,half,2": 328 + 12 + 520 + _SLIC_WEIGHTS,
    "ReduceAdd<float,float>": 328,
    "ReduceAdd<half,float>": 428,
    "ReduceAdd<half,half>": 508,
    "ScaledAddSupervisor<float": 48 + 120 + 288,
    "DynamicSlice1d<float>": 296 + 108,
    "Transpose2D<float>": 360,
}
_COUNTED = {
    "ConvPartialVerticalMac": 140 + 100 + 276 + 224 + _ZERO_OUTPUT,
    "ConvPartialHorizontalMac": 332 + 380 + _ZERO_OUTPUT,
    "OuterProduct": 360,
    "Transpose2D": 284
    + 80
    + 148
    + 316
    + 16,  # of half: one worker's, a supervisor's, what both use
    "Reduce": 456,  # ReductionSpecial01Acc
    "MaxPooling": 452,
    "MaxPoolingGrad": 524,
    "SumPooling": 464,
    "Cast1DSingleWorker": 224 + 20 + 92,
    "ScaledAddSupervisor": 48 + 120 + 364,
    "DynamicSlice1d": 364 + 108,
    "DynamicUpdateSlice1d": 364 + 108,
    "Fill": 152,
    "MultiSlice": 24 + 24 + 80 + 32 + 32,
    "MultiUpdateAdd": 168,
}
_ESTIMATED = {"PreArrange": 240, "Memcpy64BitSupervisor": 120}
_DEFAULT_CODE_BYTES = 320


def vertex_info(vertex_type: str) -> tuple[int, int]:
    """(bytes of code, of state and fields) of a type like ``poplin::ReduceAdd<float,float>``."""
    family, bracket, types = vertex_type.partition("<")
    family = family.rsplit("::", 1)[-1]
    return _code_bytes(family, f"{family}{bracket}{types}"), STATE_BYTES + FIELD_BYTES


def _code_bytes(family: str, name: str) -> int:
    for counted, nbytes in _COUNTED_BY_TYPES.items():
        if name.startswith(counted):
            return nbytes
    return _COUNTED.get(family, _ESTIMATED.get(family, _DEFAULT_CODE_BYTES))


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

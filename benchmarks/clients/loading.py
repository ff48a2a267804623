"""What PopLiner loads from a profile: attribute by attribute, as it does, and as arrays."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profiler import pva


@dataclass(frozen=True, slots=True)
class Speed:
    """CPU seconds of each way of loading; ``pieces`` is the number of lowered variables.

    ``walk`` and ``index`` visit every variable once, in a loop and by index.
    """

    pieces: int
    walk: float
    index: float
    popliner: float
    attributes: float
    arrays: float


def measure(path: Path) -> Speed:
    """Measure every way in this process, each with a report that has read nothing yet.

    Raises AssertionError if attributes and arrays disagree. PopLiner must be importable.
    """
    itself, _ = _timed(by_popliner, path)
    arrays, other = _timed(by_arrays, path)
    attributes, one = _timed(by_attributes, path)
    for name, values in one.items():
        if not np.array_equal(values, other[name]):
            raise AssertionError(f"{name} differs between attributes and arrays")
    walk, _ = _timed(every_entry, path)
    index, _ = _timed(every_index, path)
    return Speed(len(one["id"]), walk, index, itself, attributes, arrays)


def _timed(load: Callable[[Any], Any], path: Path) -> tuple[float, Any]:
    start = time.process_time()
    contents = load(pva.openReport(path))
    return time.process_time() - start, contents


def every_entry(report: Any) -> None:
    """Create each lowered variable and discard it."""
    deque(report.compilation.loweredVariables.allBriefVars, maxlen=0)


def every_index(report: Any) -> None:
    """The same by index: ``for at in range(len(...))``."""
    for at in range(len(report.compilation.loweredVariables.allBriefVars)):
        report.compilation.loweredVariables.allBriefVars[at]


def by_popliner(report: Any) -> Any:
    """PopLiner's own loading, unchanged."""
    return importlib.import_module("popliner.operation_list").OperationList(report)


def by_attributes(report: Any) -> dict[str, np.ndarray]:
    """Lowered variables, code of vertices by tile, and of each operation its programs' code and
    vertices by tile and its variables, through libpva's names.
    """
    compilation = report.compilation
    table = np.array(
        [
            (piece.id, piece.bytes, piece.tileId, piece.equivalenceClass.id)
            for piece in compilation.loweredVariables.allBriefVars
        ],
        dtype=np.int64,
    )
    code = np.zeros(compilation.target.numTiles, dtype=np.int64)
    for at, tile in enumerate(compilation.tiles):
        for vertex in tile.memory.vertices:
            code[at] += vertex.codeBytes
    programs, used = np.zeros_like(code), 0
    seen = set()
    for operation in pva.OperationAnalysis(report).operations:
        for program in operation.programs():
            if program._id not in seen:
                seen.add(program._id)
                programs += np.array(program.controlCodeByTile)
                if program.type == pva.Program.Type.DoExchange:
                    programs += np.array(program.codeBytesByTile)
                if program.type == pva.Program.Type.OnTileExecute:
                    for vertex in program.computeset.vertices:
                        programs += np.array(vertex.countByTile) * vertex.type.size
        used += sum({variable._id for variable in operation.vars})
    return _gathered(table.T, code, programs, used)


def by_arrays(report: Any) -> dict[str, np.ndarray]:
    """The same through the arrays that accompany them."""
    compilation = report.compilation
    pieces = compilation.loweredVariables.allBriefVarsArrays
    table = (pieces.id, pieces.bytes, pieces.tileId, pieces.equivalenceClass)
    code = np.zeros(compilation.target.numTiles, dtype=np.int64)
    for values in compilation.vertexCodeByTileArrays.values():
        code += values
    programs, used = np.zeros_like(code), 0
    seen = set()
    for operation in pva.OperationAnalysis(report).operations:
        for program in operation.programs():
            if program._id not in seen:
                seen.add(program._id)
                programs += program.controlCodeByTileArray
                if program.type == pva.Program.Type.DoExchange:
                    programs += program.codeBytesByTileArray
                if program.type == pva.Program.Type.OnTileExecute:
                    for vertex in program.computeset.vertices:
                        programs += vertex.countByTileArray * vertex.type.size
        used += int(operation.varIds.sum())
    return _gathered(table, code, programs, used)


def _gathered(
    table: Any, code: np.ndarray, programs: np.ndarray, used: int
) -> dict[str, np.ndarray]:
    names = ("id", "bytes", "tile", "class")
    columns = dict(zip(names, table, strict=True))
    return {**columns, "vertex code": code, "programs": programs, "used": np.array([used])}

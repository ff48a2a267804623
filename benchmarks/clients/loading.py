"""What PopLiner loads from a profile, and what each part of that takes."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ipuscope.profiler import pva


@dataclass(frozen=True, slots=True)
class Speed:
    """CPU seconds of each way of loading; ``pieces`` is the number of lowered variables.

    ``walk`` and ``index`` visit every variable once, in a loop and by index. ``bare``: PopLiner's
    own loading where everything that it asks for lies there as plain Python objects.
    """

    pieces: int
    walk: float
    index: float
    popliner: float
    bare: float
    attributes: float


def measure(path: Path) -> Speed:
    """Measure every way in this process, each with a report that has read nothing yet.

    PopLiner must be importable.
    """
    itself, _ = _timed(by_popliner, path)
    attributes, one = _timed(by_attributes, path)
    walk, _ = _timed(every_entry, path)
    index, _ = _timed(every_index, path)
    pieces = len(one["id"])
    del one
    bare = _bare(path)
    return Speed(pieces, walk, index, itself, bare, attributes)


def _bare(path: Path) -> float:
    """Seconds of PopLiner's loading over objects that were made before: what no reader can beat."""
    report, operations = _plain(pva.openReport(path))
    module = importlib.import_module("popliner.operation_list")
    analysis = module.OperationAnalysis
    module.OperationAnalysis = lambda _: SimpleNamespace(operations=operations)
    start = time.process_time()
    try:
        by_popliner(report)
    finally:
        module.OperationAnalysis = analysis
    return time.process_time() - start


class _Piece:
    """A lowered variable that is nothing but its four attributes."""

    __slots__ = ("bytes", "equivalenceClass", "id", "tileId")

    def __init__(self, piece: Any, kind: Any) -> None:
        self.id, self.bytes, self.tileId = piece.id, piece.bytes, piece.tileId
        self.equivalenceClass = kind


def _plain(report: Any) -> tuple[Any, list[Any]]:
    """What PopLiner reads of a report and of its operations, as plain objects and lists."""
    compilation = report.compilation
    kinds: dict[int, Any] = {}
    pieces = []
    for piece in compilation.loweredVariables.allBriefVars:
        known = piece.equivalenceClass
        if known.id not in kinds:
            kinds[known.id] = SimpleNamespace(id=known.id, steps=list(known.steps))
        pieces.append(_Piece(piece, kinds[known.id]))
    tiles = [
        SimpleNamespace(memory=SimpleNamespace(vertices=list(tile.memory.vertices)))
        for tile in compilation.tiles
    ]
    plain = SimpleNamespace(
        target=compilation.target,
        livenessProgramSteps=list(compilation.livenessProgramSteps),
        tiles=tiles,
        loweredVariables=SimpleNamespace(allBriefVars=pieces),
    )
    programs: dict[int, Any] = {}
    operations = [_plain_operation(op, programs) for op in pva.OperationAnalysis(report).operations]
    return SimpleNamespace(compilation=plain), operations


def _plain_operation(operation: Any, programs: dict[int, Any]) -> Any:
    own = operation.programs()
    for program in own:
        if program._id not in programs:
            programs[program._id] = _plain_program(program)
    context = operation.debugContext
    plain = SimpleNamespace(
        name=operation.name,
        debugContext=SimpleNamespace(id=context.id, json=context.json),
        programs=[programs[program._id] for program in own].copy,
        vars=[SimpleNamespace(_id=variable._id) for variable in operation.vars],
    )
    if own:
        plain.firstStepIndex = operation.firstStepIndex
        plain.lastStepIndex = operation.lastStepIndex
    return plain


def _plain_program(program: Any) -> Any:
    plain = SimpleNamespace(
        _id=program._id,
        type=program.type,
        children=list(program.children),
        controlCodeByTile=list(program.controlCodeByTile),
    )
    if program.type == pva.Program.Type.DoExchange:
        plain.codeBytesByTile = list(program.codeBytesByTile)
    if program.type == pva.Program.Type.OnTileExecute:
        vertices = [
            SimpleNamespace(type=vertex.type, countByTile=list(vertex.countByTile))
            for vertex in program.computeset.vertices
        ]
        plain.computeset = SimpleNamespace(vertices=vertices)
    return plain


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


def _gathered(
    table: Any, code: np.ndarray, programs: np.ndarray, used: int
) -> dict[str, np.ndarray]:
    names = ("id", "bytes", "tile", "class")
    columns = dict(zip(names, table, strict=True))
    return {**columns, "vertex code": code, "programs": programs, "used": np.array([used])}

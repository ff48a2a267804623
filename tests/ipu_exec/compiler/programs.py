"""Bodies, trees and placements written by hand, for passes that need no captured model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_exec.compiler.emission.bodies import Body, ProgramStep, ProgramTree
from ipu_exec.compiler.emission.loops import Loop
from ipu_exec.compiler.placement.place import Placement, StagePlace, Transfer
from ipuscope.profiler.file import records

Touched = Mapping[int, tuple[int, int]]


def body(
    task: int,
    ipu: int,
    stage: int,
    *cycles: int,
    touched: Touched | None = None,
    loops: tuple[Loop, ...] = (),
) -> Body:
    """A body whose steps take the cycles given."""
    steps = tuple(
        ProgramStep(records.ON_TILE_EXECUTE, f"step {at}", c) for at, c in enumerate(cycles)
    )
    return Body(f"task {task} of stage {stage}", ipu, stage, task, steps, (), touched or {}, loops)


def tree(*bodies: Body, **fields: Any) -> ProgramTree:
    """A tree of bodies; all else is empty unless ``fields`` says."""
    empty: dict[str, Any] = {
        "layouts": {},
        "stashed": {},
        "recomputed": {},
        "op_plans": {},
        "op_cycles": {},
        "moving": {},
        "parts": {},
        "turning": frozenset(),
        "loads": {},
        "stores": {},
        "buffers": (),
        "beside": frozenset(),
        "across": False,
    }
    return ProgramTree(bodies=bodies, **{**empty, **fields})


def placement(
    *ipus: int,
    pipelined: bool = True,
    transfers: tuple[Transfer, ...] = (),
    phases: tuple[int, ...] = (),
) -> Placement:
    """A stage for each IPU given, in order."""
    stages = tuple(StagePlace(ipu, (f"B{stage}",)) for stage, ipu in enumerate(ipus))
    return Placement(pipelined, stages, (), {}, transfers, phases)


def with_bodies_at(tree: ProgramTree, ipu: int) -> list[tuple[Body, int]]:
    """The bodies of an IPU, each with the position of its first step."""
    mine = [one for one in tree.bodies if one.ipu == ipu]
    ends = np.cumsum([len(one.steps) for one in mine])
    return [(one, int(end) - len(one.steps)) for one, end in zip(mine, ends, strict=True)]

"""What Blocks hold (`BlockMemory`), which a large profile has worked out.

Reading it from the variables takes most of what `Costs` take to read.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.carried_tensors import Carried
from ipuscope.planner.costs.passes import Pass
from ipuscope.profiler import held
from ipuscope.profiler.report import Report

NAME = "memory of Blocks"  # name of the answer
_CARRIED = "carried"
_OF_MEMORY = tuple(one.name for one in fields(BlockMemory) if one.name != _CARRIED)
_OF_CARRIED = tuple(one.name for one in fields(Carried))
_NAMES = (*_OF_MEMORY, *(f"{_CARRIED} {name}" for name in _OF_CARRIED))
_NEGATIVE = [name for name in _OF_MEMORY if name.startswith("residual")]


def plain(memory: BlockMemory) -> dict[str, Any]:
    """As JSON can hold it."""
    tables = {name: getattr(memory, name) for name in _OF_MEMORY}
    carried = {f"{_CARRIED} {name}": getattr(memory.carried, name) for name in _OF_CARRIED}
    return held.plain_tables({**tables, **carried})


def read(report: Report, stage: np.ndarray, ties: int) -> BlockMemory | None:
    """What the file holds; None where that is nothing, or cannot be.

    ``stage``: that of each Block, as profiled; ``ties``: how many weights Blocks share.
    """
    tables = held.read_tables(report.worked_out(NAME), _NAMES, _NEGATIVE)
    if tables is None:
        return None
    carried = Carried(*(tables.pop(f"{_CARRIED} {name}") for name in _OF_CARRIED))
    memory = BlockMemory(**tables, carried=carried)
    ipus = len(np.unique(report.stages["ipu"].to_numpy()[stage]))
    return memory if _sound(memory, len(stage), report.target.tiles_per_ipu, ties, ipus) else None


def _sound(memory: BlockMemory, blocks: int, tiles: int, ties: int, ipus: int) -> bool:
    """Whether it can be: of these Blocks, tiles, shared weights and IPUs."""
    carried, pieces, residuals = memory.carried, len(memory.code), len(memory.residual)
    each, tensors = (blocks, tiles), len(memory.carried)
    shapes = {
        **dict.fromkeys(("always", "peak_of_backward", "peak_of_copies", "updating"), each),
        **dict.fromkeys(("peak_interleaved", "saved", "state", "state_once"), each),
        **dict.fromkeys(("ran_again", "saved_tensors", "state_weights"), (blocks,)),
        "peak": (len(Pass), *each),
        "copies": (ties, tiles),
        "shared": (tiles,),
        "code_users": (pieces, blocks),
        "code": (pieces, tiles),
        "residual": (ipus, tiles) if residuals else memory.residual.shape,
        "residual_of": (blocks,) if residuals else (0,),
        "residual_at_home": memory.residual.shape if len(memory.residual_at_home) else (0, 0),
        "peak_if_again": each,
    }
    bools = {"ran_again", "code_users", "back", "touched", "tied"}
    of_carried = {
        **dict.fromkeys(("maker", "back", "tied"), (tensors,)),
        "touched": (tensors, blocks),
        "nbytes": (tensors, tiles),
    }
    for source, wanted in ((memory, shapes), (carried, of_carried)):
        for name, shape in wanted.items():
            table = getattr(source, name)
            if table.shape != shape or (table.dtype == bool) != (name in bools):
                return False
    return (
        int(carried.maker.max(initial=-1)) < blocks
        and int(memory.residual_of.min(initial=0)) >= 0
        and int(memory.residual_of.max(initial=-1)) < max(1, ipus)
    )

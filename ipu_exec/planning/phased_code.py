"""Code that Blocks bring to an IPU, as pieces that several may have in common.

A compile with one Block a stage says what each Block's bodies and its weights' updates need; an IPU
with other Blocks has each piece of theirs once, as the compiler outlines phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_exec.compiler.emission.bodies import Body, ProgramStep
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.memory.code_on_tiles import (
    CodeOfIpu,
    SharedCode,
    code_bytes,
    control_bytes,
)
from ipu_exec.lowering import vertex_info
from ipu_exec.lowering.plan import Plan
from ipuscope.planner.mappings.phased_costs import CodePieces
from ipuscope.profiler.timeline import schedule_types

_OF_A_STAGE = (
    *(schedule_types.FORWARD, schedule_types.RECOMPUTE, schedule_types.BACKWARD),
    *(schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE),
    *(schedule_types.STREAM_IN, schedule_types.STREAM_OUT),
)


class _Pieces(CodeOfIpu):
    """The pieces of code of some steps: bytes on each tile by key, and vertex types by tile."""

    def __init__(self, shared: SharedCode, tiles: int) -> None:
        super().__init__(shared, tiles, lambda *_, **__: None)
        self.bytes: dict[Any, np.ndarray] = {}

    def _step(self, body: Body, step: ProgramStep, step_id: int, key: tuple[int, ...]) -> None:
        if key in self.bytes:
            return
        once = self.shared.once
        code = np.zeros_like(self.control) + control_bytes(step, once)
        for _, _, nbytes in code_bytes(step, once):
            code = code + nbytes
        self.bytes[key] = code
        for vertices in step.vertices:
            there = self.on_tile.get(vertices.type, np.zeros(len(code), dtype=bool))
            self.on_tile[vertices.type] = there | (vertices.count > 0)

    def _constants(self, plan: Plan, constants: np.ndarray, users: list[int], stage: int) -> None:
        self.bytes[id(plan), -1] = constants


def code_pieces(
    executable: Executable,
    program: np.ndarray,
    updates_block: Callable[[ProgramStep], int],
    on_ipus: np.ndarray,
) -> CodePieces:
    """The pieces of each program, of one of its Blocks; ``program`` of each Block.

    ``on_ipus``: code of the compiled IPUs, int64[IPU, tile], that gives what is no Block's.
    """
    tiles, shared = executable.target.tiles, SharedCode(executable.graph, True)
    programs = int(program.max()) + 1
    by_program = []
    for number in range(programs):
        pieces = _Pieces(shared, tiles)
        for body in _bodies(executable, int(np.argmax(program == number)), updates_block):
            pieces.body(body, 0)
        by_program.append(pieces)
    code, users = _by_users(by_program, tiles)
    types = sorted({name for one in by_program for name in one.on_tile})
    nowhere = np.zeros(tiles, dtype=bool)
    masks = [[one.on_tile.get(name, nowhere) for one in by_program] for name in types]
    sizes = np.array([vertex_info(name)[0] for name in types], dtype=np.int64)
    vertices = np.array(masks, dtype=bool).reshape(len(types), programs, tiles)
    none = CodePieces(code, users, vertices, sizes, np.zeros_like(on_ipus))
    where = np.array(executable.placement.ipus)
    others = [
        nbytes - none.of(set(program[where == ipu].tolist()), ipu)
        for ipu, nbytes in enumerate(on_ipus)
    ]
    return replace(none, others=np.array(others))


def _bodies(
    executable: Executable, block: int, updates_block: Callable[[ProgramStep], int]
) -> Iterator[Body]:
    """The bodies of a Block's stage, and what updates its weights."""
    for body in executable.tree.bodies:
        if body.task in _OF_A_STAGE and body.stage == block:
            yield body
        elif body.task == schedule_types.UPDATE:
            steps = tuple(step for step in body.steps if updates_block(step) == block)
            if steps:
                yield replace(body, steps=steps)


def _by_users(by_program: list[_Pieces], tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces that the same programs have, as one: int64[piece, tile], bool[piece, program]."""
    have: dict[Any, list[int]] = {}
    for number, pieces in enumerate(by_program):
        for key in pieces.bytes:
            have.setdefault(key, []).append(number)
    together: dict[tuple[int, ...], np.ndarray] = {}
    for key, programs in have.items():
        nbytes = by_program[programs[0]].bytes[key]
        sharers = tuple(programs)
        together[sharers] = together.get(sharers, np.zeros(tiles, dtype=np.int64)) + nbytes
    for number, pieces in enumerate(by_program):
        alone = (number,)
        together[alone] = together.get(alone, np.zeros(tiles, dtype=np.int64)) + pieces.calls
    users = np.zeros((len(together), len(by_program)), dtype=bool)
    for row, group in zip(users, together, strict=True):
        row[list(group)] = True
    return np.array(list(together.values())), users

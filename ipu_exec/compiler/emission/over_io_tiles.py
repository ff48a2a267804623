"""Streaming memory over I/O tiles: transfers beside what the compute tiles do.

Where each phase is a pipeline, a tensor whose location asks for it (``useIOTilesToLoad``,
``useIOTilesToStore``) is loaded onto the I/O tiles before the compute tiles need it, and stored
from there; for the compute tiles only an exchange with the I/O tiles remains.
`ipuscope.profiler.timeline.phased_schedules` schedules them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ipu_exec.compiler.emission.bodies import Move, Use, program_steps, stream_steps, the_one
from ipu_exec.compiler.emission.body_builder import BodyBuilder
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.lowering.build import messages
from ipu_exec.lowering.plan import Exchange
from ipuscope.profiler.enums import Purpose, Role
from ipuscope.profiler.timeline import schedule_types

# On whose behalf a body loads and stores: what is made again is part of the backward.
_ON_BEHALF = {schedule_types.RECOMPUTE: schedule_types.BACKWARD}
# Transfers that never wait on the I/O tiles at the same time share a buffer there.
_BUFFER = {
    schedule_types.LOAD_FORWARD: "loads of a micro-batch",
    schedule_types.LOAD_BACKWARD: "loads of a micro-batch",
    schedule_types.STORE_FORWARD: "stores of a micro-batch",
    schedule_types.STORE_BACKWARD: "stores of a micro-batch",
    schedule_types.LOAD_ENTER: "loads of a phase",
    schedule_types.LOAD_RETURN: "loads of a phase",
    schedule_types.STORE_LEAVE: "stores of a phase",
}


class OverIoTiles:
    """Makes the bodies and buffers of I/O tiles, for loads and stores of streaming memory."""

    def __init__(self, mapping: TileMapping, options: CompileOptions) -> None:
        self.mapping, self.graph, self.machines = mapping, mapping.graph, mapping.machines
        self.locations = options.locations
        self.bodies: dict[tuple[int, int], BodyBuilder] = {}  # by task and stage
        self.filled: dict[tuple[int, str], tuple[int, int]] = {}  # IPU, buffer -> bytes, stage

    def task_of(self, body: BodyBuilder, purpose: Purpose) -> int | None:
        """The task of a body's transfers if they go over I/O tiles; None where none of them can."""
        stores = purpose is Purpose.REMOTE_STORE
        tasks = schedule_types.STORES_BESIDE if stores else schedule_types.LOADS_BESIDE
        return tasks.get(_ON_BEHALF.get(body.task, body.task))

    def chosen(self, storages: Sequence[int], body: BodyBuilder, purpose: Purpose) -> Sequence[int]:
        """Those of the storages that are loaded (or stored) over I/O tiles."""
        if self.task_of(body, purpose) is None:
            return ()
        stores = purpose is Purpose.REMOTE_STORE
        every, over = self.graph.storages, self.locations.over_io_tiles
        return [s for s in storages if over(every[s], stores)]

    def move(
        self,
        name: str,
        moves: Sequence[Move],
        nbytes: np.ndarray,
        cycles: int,
        body: BodyBuilder,
        purpose: Purpose,
    ) -> None:
        """Move storages over I/O tiles for a body: ``nbytes`` a compute tile, in ``cycles``."""
        task = self.task_of(body, purpose)
        assert task is not None
        machine = self.machines[body.ipu]
        total = int(nbytes.sum())
        lands = machine.on_io_tiles(total)
        stores = purpose is Purpose.REMOTE_STORE
        into, out = (lands, nbytes) if stores else (nbytes, lands)
        exchange = Exchange(
            f"{name}/{'to' if stores else 'from'} I/O tiles", into, out, messages(into, out)
        )
        between = Purpose.TO_IO_TILES if stores else Purpose.FROM_IO_TILES
        storages = [move.storage for move in moves]
        first = len(body.steps)
        body.steps += [
            replace(step, purpose=between, tensor=the_one(storages))
            for step in program_steps(exchange, machine.target.name, self.mapping.once)
        ]
        body.touch(storages, first)
        beside = self._body(task, body)
        beside.steps += stream_steps(self.mapping.once, name, cycles, lands, purpose, moves)
        buffer = body.ipu, _BUFFER[task]
        self.filled[buffer] = max(self.filled.get(buffer, (0, 0)), (total, body.stage))

    def _body(self, task: int, body: BodyBuilder) -> BodyBuilder:
        name = f"stage {body.stage} {schedule_types.TASKS[task]} over I/O tiles"
        return self.bodies.setdefault(
            (task, body.stage), BodyBuilder(name, body.ipu, body.stage, task)
        )

    def buffers(self) -> list[Use]:
        """What the I/O tiles of each IPU hold: the largest of the transfers that take turns."""
        role = Role.STREAM_BUFFER
        return [
            Use(f"{what}/stream buffer", role, self.machines[ipu].on_io_tiles(total), stage, stage)
            for (ipu, what), (total, stage) in self.filled.items()
        ]

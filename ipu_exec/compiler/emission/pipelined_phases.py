"""The work of a pipelined phase's stages besides that of each micro-batch.

Weights and accumulators are loaded from streaming memory before the first micro-batch;
accumulators are stored after the last. A result stays on its IPU until the next stage fetches it
at its own micro-batch's beginning: one pipeline cycle later, or more if it skips stages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipu_exec.compiler.emission.bodies import Use
from ipu_exec.compiler.emission.body_builder import BodyBuilder
from ipu_exec.compiler.emission.transfers import Transfers
from ipu_exec.compiler.tile_mapping import TileMapping
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.timeline import schedule_types

_FETCH = 2  # steps in which the next stage fetches: a sync, and the exchange


class PipelinedPhases:
    """Makes the bodies that run once for all micro-batches of a phase."""

    def __init__(self, mapping: TileMapping, transfers: Transfers) -> None:
        self.mapping, self.placement = mapping, mapping.placement
        self.traffic, self.transfers = mapping.residency.traffic, transfers

    def enter(self, direction: str, stage: int) -> BodyBuilder:
        """Load the tensors that the phase needs before its first micro-batch."""
        task = schedule_types.ENTER if direction == Direction.FORWARD else schedule_types.RETURN
        body = self._body(f"stage {stage} enters {direction}", stage, task)
        storages = self.traffic[direction, stage].enter
        self.transfers.remote(storages, f"{body.name}/load", stage, body, Purpose.REMOTE_LOAD)
        return body

    def leave(self, direction: str, stage: int) -> BodyBuilder:
        """Store the tensors that leave after the last micro-batch."""
        body = self._body(f"stage {stage} leaves {direction}", stage, schedule_types.LEAVE)
        storages = self.traffic[direction, stage].leave
        self.transfers.remote(storages, f"{body.name}/store", stage, body, Purpose.REMOTE_STORE)
        return body

    def _body(self, name: str, stage: int, task: int) -> BodyBuilder:
        return BodyBuilder(name, self.placement.ipus[stage], stage, task)

    def hold_for_receivers(self, bodies: Sequence[BodyBuilder]) -> None:
        """Keep the results that other stages of the phase fetch until they do."""
        farthest: dict[tuple[str, int, int], int] = {}  # direction, stage, storage -> stages away
        for (direction, stage), traffic in self.traffic.items():
            for storage in traffic.receive:
                source = self._source(storage)
                if self._fetched_from(source, stage) and storage not in traffic.load:
                    key = (direction, source, storage)
                    farthest[key] = max(farthest.get(key, 0), abs(stage - source))
        of_stage: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for (direction, source, storage), far in farthest.items():
            of_stage.setdefault((direction, source), []).append((storage, far))
        begun: set[tuple[str, int]] = set()
        for body in bodies:
            micro_batch = _direction(body), body.stage
            for storage, far in of_stage.get(micro_batch, ()):
                self._hold(storage, far, body, first=micro_batch not in begun)
            begun.add(micro_batch)

    def _source(self, storage: int) -> int:
        maker = self.mapping.makers.get(storage)
        return -1 if maker is None else self.placement.op_stage[maker]

    def _fetched_from(self, source: int, stage: int) -> bool:
        phases = self.placement.phases
        return source >= 0 and phases[source] == phases[stage]

    def _hold(self, storage: int, far: int, body: BodyBuilder, first: bool) -> None:
        """Hold a result in a micro-batch's ``first`` body until fetched, longer if far away."""
        nbytes = self.mapping.bytes([storage], body.stage)
        name = f"{self.mapping.graph.storages[storage].name}/waits for the next stage"
        if first:
            body.hold(Use(name, Role.TEMPORARY, nbytes, 0, min(_FETCH, len(body.steps)) - 1))
        if far > 1:
            body.hold(Use(name, Role.TEMPORARY, nbytes * np.int64(far - 1), 0, body.last))


def _direction(body: BodyBuilder) -> str:
    return Direction.FORWARD if body.task == schedule_types.FORWARD else Direction.BACKWARD

"""``report.compilation`` (docs/libpva.md#compilation)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.pva.enums import Architecture, TargetType
from ipuscope.profiler.pva.lists import LazyList, Shown
from ipuscope.profiler.pva.model import Model
from ipuscope.profiler.pva.programs import ComputeSet, Program, make_program
from ipuscope.profiler.pva.tiles import IPU, Tile
from ipuscope.profiler.pva.variables import LoweredVariables, VariableSize, sizes

_ARCHITECTURES = {"ipu1": Architecture.Ipu1, "ipu2": Architecture.Ipu2, "ipu21": Architecture.Ipu21}


class Graph(Shown):
    """Numbers of compute sets, vertices and variables on one replica."""

    _shown = ("numComputeSets", "numVertices", "numVars")

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def numComputeSets(self) -> int:
        """Compute sets of one replica."""
        return len(self._model.compute_set_steps)

    @property
    def numVertices(self) -> int:
        """Vertices of one replica, over all tiles."""
        counts = [count for kinds in self._model.vertices.values() for _, _, count in kinds]
        unique, times = np.unique(np.array(counts, dtype=np.int64), return_counts=True)
        uses = zip(unique.tolist(), times.tolist(), strict=True)
        return sum(int(self._model.report.file.vector(id).sum()) * often for id, often in uses)

    @property
    def numVars(self) -> int:
        """Variables of one replica."""
        return len(self._model.variables["id"])


class Target(Shown):
    """The machine: a model of one, `Target.Type.IpuModel`. Memory in bytes, the clock in Hz."""

    Type: ClassVar[type[TargetType]] = TargetType
    _shown = (
        "type",
        "architecture",
        "numIPUs",
        "tilesPerIpu",
        "numReplicas",
        "bytesPerTile",
        "clockFrequency",
    )

    def __init__(self, model: Model) -> None:
        own = model.target
        self.type = TargetType.IpuModel
        self.architecture = _ARCHITECTURES.get(own.architecture.lower(), Architecture.Unknown)
        self.numIPUs, self.numReplicas = own.num_ipus, own.num_replicas
        self.ipusPerReplica, self.tilesPerIpu = own.ipus_per_replica, own.tiles_per_ipu
        self.numTiles = self.numIPUs * self.tilesPerIpu
        self.tilesPerReplica = self.ipusPerReplica * self.tilesPerIpu
        self.bytesPerTile = own.bytes_per_tile
        self.bytesPerIPU = self.tilesPerIpu * self.bytesPerTile
        self.memoryPerReplica = self.tilesPerReplica * self.bytesPerTile
        self.totalMemory = self.numTiles * self.bytesPerTile
        self.clockFrequency = own.clock_hz
        self.numWorkerContexts = own.workers_per_tile


class LiveMemory(Shown):
    """Memory live at a step but not always, on all of a replica, an IPU or a tile."""

    __slots__ = ("_ipu", "_model", "_step", "_tile")
    _shown = ("bytes",)

    def __init__(
        self, model: Model, step: int, ipu: int | None = None, tile: int | None = None
    ) -> None:
        self._model, self._step, self._ipu, self._tile = model, step, ipu, tile

    @property
    def bytes(self) -> int:
        """Bytes of all its variables."""
        return int(self._model.live_bytes(self._ipu, self._tile)[self._step])

    @property
    def variables(self) -> list[VariableSize]:
        """Largest first; their sizes add up to ``bytes``."""
        return sizes(self._model, *self._model.live_rows(self._step, self._ipu, self._tile))


class LivenessProgramStep(Shown):
    """A step of the program and the memory live at it."""

    __slots__ = ("_model", "_step")
    _shown = ("program", "notAlwaysLiveMemory")

    def __init__(self, model: Model, step: int) -> None:
        self._model, self._step = model, step

    @property
    def program(self) -> Program:
        """The program that runs at this step."""
        return make_program(self._model, int(self._model.steps["node"][self._step]))

    @property
    def notAlwaysLiveMemory(self) -> LiveMemory:
        """The not-always-live memory of a replica."""
        return LiveMemory(self._model, self._step)

    def notAlwaysLiveMemoryForIpu(self, ipu: int) -> LiveMemory:
        """Memory live at this step on one IPU, always-live memory excluded."""
        return LiveMemory(self._model, self._step, self._model.ipu_of(ipu))

    def notAlwaysLiveMemoryForTile(self, tile: int) -> LiveMemory:
        """Memory live at this step on one tile, always-live memory excluded."""
        return LiveMemory(self._model, self._step, *self._model.tile_of(tile))


class CompilationReport(Shown):
    """The results of the compile."""

    _shown = ("graph", "target")

    def __init__(self, model: Model) -> None:
        self._model, self.graph, self.target = model, Graph(model), Target(model)

    @property
    def tiles(self) -> LazyList[Tile]:
        """The tiles of all IPUs, replicas included."""
        model = self._model
        return LazyList(model.target.num_ipus * model.tiles, lambda i: Tile(model, i))

    @property
    def ipus(self) -> LazyList[IPU]:
        """The IPUs, each with its tiles."""
        return LazyList(self._model.target.num_ipus, lambda i: IPU(self._model, i))

    @property
    def programs(self) -> LazyList[Program]:
        """All programs, depth-first; steps that run the same code are one program."""
        model = self._model
        first = np.flatnonzero(model.code_node == np.arange(len(model.code_node)))
        return LazyList(len(first), lambda i: make_program(model, int(first[i])))

    @property
    def computeSets(self) -> LazyList[ComputeSet]:
        """By id."""
        steps = self._model.compute_set_steps
        return LazyList(len(steps), lambda i: ComputeSet(self._model, int(steps[i])))

    @property
    def livenessProgramSteps(self) -> LazyList[LivenessProgramStep]:
        """The steps of all IPUs of a replica, in the program's order."""
        return LazyList(len(self._model.steps["id"]), lambda i: LivenessProgramStep(self._model, i))

    @property
    def alwaysLiveVariables(self) -> list[VariableSize]:
        """The always-live variables of a replica."""
        return sizes(self._model, *self._model.always_rows(), categories=True)

    def alwaysLiveVariablesForTile(self, tile: int) -> list[VariableSize]:
        """Variables that are always live, with their bytes on that tile."""
        return sizes(
            self._model, *self._model.always_rows(*self._model.tile_of(tile)), categories=True
        )

    @property
    def tilesWithLivenessInfo(self) -> list[int]:
        """All tiles: a profile has the lifetime of every variable and its bytes per tile."""
        return list(range(self._model.target.num_ipus * self._model.tiles))

    @cached_property
    def loweredVariables(self) -> LoweredVariables:
        """Variables by tile."""
        return LoweredVariables(self._model)

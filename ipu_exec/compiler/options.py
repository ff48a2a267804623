"""The compiler's own options, from PopTorch's (`ipu_exec.session.compile_options`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ipu_exec.base.replica_groups import Groupings
from ipu_exec.enums import AutoStage, HalfFloatCastingBehavior, Liveness, OutputMode, SyncPattern
from ipu_exec.graph import Storage
from ipu_exec.machine import HOST_LATENCY_SECONDS
from ipuscope.profiler.enums import Role

_ONCE = (OutputMode.Final, OutputMode.Sum)
_KINDS = {
    Role.WEIGHT: "weight",
    Role.OPTIMISER_STATE: "state",
    Role.ACCUMULATOR: "accumulator",
    Role.ACTIVATION: "activation",
}


class Execution(StrEnum):
    """How stages are scheduled in time."""

    PIPELINED = "pipelined"  # at once, each on its own micro-batch
    SHARDED = "sharded"  # one after another, on the same micro-batch
    PHASED = "phased"  # phase by phase, between which tensors move to and from streaming memory


@dataclass(frozen=True, slots=True)
class StageOptions:
    """A stage that the strategy names."""

    blocks: tuple[str, ...]
    ipu: int | None = None  # None: what its Blocks ask for, or ``default_ipu``
    default_ipu: int = 0
    phase: int = 0
    recompute: bool | None = None  # None: as `CompileOptions.recomputation` says
    state_off_chip: bool | None = None  # optimiser state; None: as `Locations` say

    def __str__(self) -> str:
        blocks = ", ".join(repr(block) for block in self.blocks)
        return f"Stage({blocks})" + ("" if self.ipu is None else f".ipu({self.ipu})")


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """How Blocks become stages. ``stages`` is empty if ``auto_stage`` decides."""

    execution: Execution = Execution.PIPELINED
    auto_stage: AutoStage = AutoStage.SameAsIpu
    stages: tuple[StageOptions, ...] = ()
    parallel_phases: bool = False  # on two groups of IPUs in turn
    liveness: Liveness = Liveness.AlwaysLive  # of the activations that a phase's backward reads
    separate_backward_phase: bool = False  # the backward of the last phase is one of its own
    # Each phase is a pipeline of its stages, through which all micro-batches of an update go.
    pipelined_phases: bool = False

    def recomputes(self, blocks: Sequence[str]) -> bool | None:
        """The recomputation setting of these Blocks' stage; None if it has none."""
        return next((stage.recompute for stage in self.stages if stage.blocks[0] in blocks), None)

    def keeps_state_off_chip(self, blocks: Sequence[str]) -> bool | None:
        """Whether the stage stores its optimiser state off the chip; None: no setting."""
        stages = (stage for stage in self.stages if stage.blocks[0] in blocks)
        return next((stage.state_off_chip for stage in stages), None)

    @property
    def phases(self) -> tuple[int, ...]:
        """The phase of each stage; empty without phases."""
        phased = self.execution is Execution.PHASED
        return tuple(stage.phase for stage in self.stages) if phased else ()


@dataclass(frozen=True, slots=True)
class Location:
    """Where one kind of tensor is stored while nothing uses it.

    Minimum elements: PopART's defaults [POPART, willow/include/popart/sessionoptions.hpp].
    """

    off_chip: bool = False
    sharded: bool = False
    least_off_chip: int = 2
    least_sharded: int = 8192
    io_tiles_load: bool = False  # over I/O tiles, beside computing
    io_tiles_store: bool = False


@dataclass(frozen=True, slots=True)
class Locations:
    """The locations of all kinds of tensors. ``replicas``: how many share a sharded tensor."""

    weight: Location = field(default_factory=Location)
    state: Location = field(default_factory=Location)
    accumulator: Location = field(default_factory=Location)
    activation: Location = field(default_factory=Location)
    replicas: int = 1

    def _of(self, storage: Storage) -> Location | None:
        kind = _KINDS.get(storage.role)
        location: Location | None = getattr(self, kind) if kind else None
        return location

    def off_chip(self, storage: Storage) -> bool:
        """Whether the tensor is in streaming memory while nothing uses it."""
        location = self._of(storage)
        return (
            location is not None
            and location.off_chip
            and storage.elements >= location.least_off_chip
        )

    def sharded(self, storage: Storage) -> bool:
        """Whether each replica has only its part of the tensor."""
        location = self._of(storage)
        if location is None or storage.role == Role.ACTIVATION or self.replicas == 1:
            return False
        return location.sharded and storage.elements >= location.least_sharded

    def over_io_tiles(self, storage: Storage, to_store: bool) -> bool:
        """Whether I/O tiles load (store) it; other stages' results and gradients as activations."""
        location = self._of(storage) or self.activation
        return location.io_tiles_store if to_store else location.io_tiles_load

    def moves(self, storage: Storage) -> bool:
        """Whether the tensor is off the chip or sharded at any time."""
        return self.off_chip(storage) or self.sharded(storage)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """All options that affect how one micro-batch and one weight update are compiled."""

    training: bool
    micro_batch: int = 1  # samples
    micro_batches: int = 1  # of a pipeline's run: accumulation in training, else device iterations
    iterations: int = 1  # how often the program runs that in a call
    replicas: int = 1  # of all instances
    shards: int = 1  # IPUs that share the tensors of each stage
    groupings: Groupings = field(default_factory=dict)  # weights that differ between replicas
    instances: int = 1  # processes that share the replicas, with as many consecutive ones each
    hosts: int = 1  # machines that share the instances alike
    # the machine
    target: str = "mk2"
    io_tiles: int = 0  # of every IPU, set aside for host I/O
    auto_round_ipus: bool = False  # attach more IPUs than are used, to a power of two
    sync_pattern: SyncPattern = SyncPattern.Full
    # capture
    half_float_casting: HalfFloatCastingBehavior = HalfFloatCastingBehavior.Default
    float_statistics: bool | None = None  # running statistics in float32; None: as the model has it
    patterns: Mapping[str, bool] = field(default_factory=dict)  # PopART's, by name
    # placement
    strategy: StrategyOptions = field(default_factory=StrategyOptions)
    broadcast_buffers: bool = True  # replicas have to agree on them
    # residency
    locations: Locations = field(default_factory=Locations)
    recomputation: object = None  # what ``autoRecomputation`` was set to; None: the default
    # lowering
    memory_proportions: Mapping[int, float] = field(default_factory=dict)  # by IPU; else 0.6
    block_proportions: Mapping[str, float] = field(default_factory=dict)  # Blocks with their own
    partials: str = ""  # "float32", "float16"; "" is float32
    dithering: bool = False  # of convolutions
    wide_loads: tuple[str, ...] = ()  # "convolution", "matmul": weights loaded 128 bits at a time
    half_partials: tuple[str, ...] = ()  # the same: where ``partials`` is ""
    fully_connected: str = "training"  # or "inference": products are layers'; "": they are not
    stable_norm: bool = False
    ipu_model: bool = False  # vertices of products take what the vendor's IPUModel estimates
    norm_group: int = 1  # replicas over which a batch norm in training takes its statistics
    estimate_unknown: bool = False  # guess an operator that nobody lowered
    # streams
    output_mode: OutputMode = OutputMode.All  # never Default
    host_io: bool = True  # inputs come from the host and outputs go there
    buffering: int = 1  # micro-batches that the host has ready for a stream, or room for
    explicit_ir: bool = False  # PopART's, which overlaps host I/O in a pipeline

    @property
    def outputs_once(self) -> bool:
        """Whether outputs leave once a call rather than with every micro-batch."""
        return self.output_mode in _ONCE

    @property
    def host_latency(self) -> float:
        """Seconds before a transfer's first byte.

        0 if the host has the data ready: from two micro-batches in its buffers on, a transfer
        takes only the time of its bytes (PopTorch's guide, 'Prefetch and multibuffering': begin
        and end of a copy vanish there; that this is all of the latency is an estimate).
        """
        return 0 if self.buffering > 1 else HOST_LATENCY_SECONDS

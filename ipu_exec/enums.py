"""PopTorch's enumerations, by its names and values (docs/poptorch-semantics.md#enumerations)."""

from __future__ import annotations

from enum import Enum, IntEnum


class OutputMode(IntEnum):
    """Which micro-batches a call returns the outputs of; see `ipu_exec.numerics.loop.Outputs`."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4  # Final in training, All in inference


class ReductionType(IntEnum):
    """How gradients of micro-batches and replicas are combined."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum):
    """When a mean reduction divides."""

    Running = 0  # the accumulator always holds a mean
    Post = 1  # sums are divided once, before the weight update
    # the loss by the replicas, the sum by the accumulation; PopTorch calls it deprecated
    PostAndLoss = 2


class AutoStage(IntEnum):
    """How Blocks are assigned to stages if the strategy names none."""

    SameAsIpu = 0  # the stage of a Block is its ipu_id
    AutoIncrement = 1  # every new Block starts a new stage


class ConnectionType(IntEnum):
    """When to attach to the device. ``Never`` compiles but does not run."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum):
    """Which IPUs sync with which."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class DataLoaderMode(IntEnum):
    """Where batches are created. All modes return the same batches in the same order."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(Enum):
    """How a data loader's worker passes batches on."""

    SharedMemory = "sharedmem"
    FileSystem = "filesystem"
    Fork = "fork"
    ForkServer = "forkserver"


class CommGroupType(IntEnum):
    """Which replicas form a group."""

    All = 0
    Consecutive = 1  # 0 ... g-1, then g ... 2g-1
    Orthogonal = 2  # every (replicas / g)-th
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which values of a weight that differs between replicas the host gets."""

    OnePerGroup = 0
    AllReplicas = 2


class HalfFloatCastingBehavior(IntEnum):
    """The dtype in which an operator on float16 and float32 computes."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1  # as PyTorch
    Default = 2  # the same


class MatMulSerializationMode(Enum):
    """Which dimension of a matrix multiplication is split into parts that run one after another."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(Enum):
    """How far host I/O may overlap with compute."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class MultiConvPlanType(IntEnum):
    """Whether convolutions that run together share the tiles or take turns."""

    Parallel = 0
    Serial = 1


class Liveness(IntEnum):
    """Where tensors stay between the phases of phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3

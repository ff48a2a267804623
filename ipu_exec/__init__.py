"""ipu_exec: PyTorch models with Blocks, run as on Graphcore IPUs that are modelled tile by tile.

Names and semantics are PopTorch's::

    import ipu_exec as poptorch

    options = poptorch.Options(autoreport=True, autoreport_dir="demo").deviceIterations(10)
    options.Training.gradientAccumulation(10)
    model = poptorch.trainingModel(network, options, poptorch.optim.AdamW(network.parameters()))
    output, loss = model(images, labels)
"""

from ipu_exec import enums, optim
from ipu_exec.annotations import (
    BeginBlock,
    Block,
    BlockFunction,
    PipelinedExecution,
    ShardedExecution,
    Stage,
    removeBlocks,
)
from ipu_exec.context import isRunningOnIpu
from ipu_exec.dataloader import DataLoader
from ipu_exec.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
)
from ipu_exec.errors import Error, LoweringError, OutOfMemoryError, RecoverableError, UnrecoverableError, UsageError
from ipu_exec.executor import PoplarExecutor, inferenceModel, load, trainingModel
from ipu_exec.ops import identity_loss, nop, recomputationCheckpoint, set_available_memory
from ipu_exec.options import Options, TensorLocationSettings
from ipu_exec.structures import ICustomArgParser, registerCustomArgParser

AnchorMode = OutputMode  # PopTorch's old name

__all__ = [
    "AnchorMode",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "CommGroupType",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "LoweringError",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "Options",
    "OutOfMemoryError",
    "OutputMode",
    "OverlapMode",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "UsageError",
    "enums",
    "identity_loss",
    "inferenceModel",
    "isRunningOnIpu",
    "load",
    "nop",
    "optim",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "removeBlocks",
    "set_available_memory",
    "trainingModel",
]

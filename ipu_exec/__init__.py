"""ipu_exec: PyTorch models with Blocks, run as on Graphcore IPUs that are modelled tile by tile.

Names and semantics are PopTorch's::

    import ipu_exec as poptorch

    options = poptorch.Options(profile_dir="demo").deviceIterations(10)
    options.Training.gradientAccumulation(10)
    model = poptorch.trainingModel(network, options, poptorch.optim.AdamW(network.parameters()))
    output, loss = model(images, labels)
"""

from importlib.util import find_spec as _find_spec

if _find_spec("torch") is None:
    raise ModuleNotFoundError(
        "ipu_exec computes with PyTorch, which is not installed here:"
        " pip install 'ipuscope[engine]'",
        name="torch",
    )


# PopTorch's own, which its tests and libraries reach for
from ipu_exec import _impl as _impl
from ipu_exec import _poplar_executor as _poplar_executor
from ipu_exec import _utils as _utils
from ipu_exec import distributed, enums, logs, optim, poptorch_core, profiling, testing
from ipu_exec.accessor import AsynchronousDataAccessor
from ipu_exec.annotations import (
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    NameScope,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    module_repr,
    removeBlocks,
)
from ipu_exec.base.context import isRunningOnIpu, no_weights
from ipu_exec.base.structures import ICustomArgParser, registerCustomArgParser
from ipu_exec.custom import CPU, custom_op, register_custom_op
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
    VariableRetrievalMode,
)
from ipu_exec.errors import (
    Error,
    LoweringError,
    OutOfMemoryError,
    RecoverableError,
    UnrecoverableError,
    UsageError,
)
from ipu_exec.logs import (
    hasMLIRSupportOnPlatform,
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    setLogLevel,
)
from ipu_exec.ops import (
    MultiConv,
    cond,
    dynamic_slice,
    dynamic_update,
    for_loop,
    identity_loss,
    ipu_print_tensor,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from ipu_exec.option_groups.tensor_locations import TensorLocationSettings
from ipu_exec.options import Options
from ipu_exec.planning import plan
from ipu_exec.search_ops import ctc_beam_search_decoder, fps, nearest
from ipu_exec.session.compile_hooks import registerPostCompileHook, registerPreCompileHook
from ipu_exec.session.executor import PoplarExecutor, inferenceModel, load, trainingModel
from ipu_exec.session.files.executable_file import importPoptorchMetadataFromFile

AnchorMode = OutputMode  # PopTorch's old name
_logging = logs  # and its own, which its tests reach for
__version__ = "3.4.0+ipuscope"  # PopTorch's release whose names these are
logs.from_environment()

__all__ = [
    "CPU",
    "AnchorMode",
    "AsynchronousDataAccessor",
    "Attribute",
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
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutOfMemoryError",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "UsageError",
    "VariableRetrievalMode",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "distributed",
    "dynamic_slice",
    "dynamic_update",
    "enums",
    "for_loop",
    "fps",
    "hasMLIRSupportOnPlatform",
    "identity_loss",
    "importPoptorchMetadataFromFile",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "module_repr",
    "nearest",
    "no_weights",
    "nop",
    "optim",
    "plan",
    "poptorch_core",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "register_custom_op",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "testing",
    "trainingModel",
]

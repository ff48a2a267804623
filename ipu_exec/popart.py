"""``popart`` for `ipu-run`: PopART's enumerations that scripts pass to ``Options._Popart.set``.

Values are those of [POPART, willow/include/popart/sessionoptions.hpp, tensorlocation.hpp].
"""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn

RecomputationType = IntEnum(
    "RecomputationType", "NoRecompute Standard NormOnly Pipeline RecomputeAll", start=0
)
SyntheticDataMode = IntEnum("SyntheticDataMode", "Off Zeros RandomNormal RandomUniform", start=0)
SubgraphCopyingStrategy = IntEnum("SubgraphCopyingStrategy", "OnEnterAndExit JustInTime", start=0)
AccumulateOuterFragmentSchedule = IntEnum(
    "AccumulateOuterFragmentSchedule",
    "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    start=0,
)
VirtualGraphMode = IntEnum("VirtualGraphMode", "Off Manual Auto ExecutionPhases", start=0)
TensorStorage = IntEnum("TensorStorage", "OnChip OffChip", start=0)
ReplicatedTensorSharding = IntEnum("ReplicatedTensorSharding", "Off On", start=0)
BatchSerializationBatchSchedule = IntEnum(
    "BatchSerializationBatchSchedule", "Scheduler Isomorphic OverlapOnIo OverlapOnCompute", start=0
)
ExecutionPhaseIOSchedule = IntEnum("ExecutionPhaseIOSchedule", "Preload OnDemand", start=0)
ExecutionPhaseSchedule = IntEnum(
    "ExecutionPhaseSchedule", "Interleaving Batch BatchClusteredIO", start=0
)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"popart.{name} is part of PopART, which IPUscope does not have; its options' values are"
        " here"
    )

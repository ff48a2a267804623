"""libpva's enumerations, numbered from 0 (docs/libpva.md)."""

from __future__ import annotations

from enum import Enum

# `Program.Type`
ProgramType = Enum(
    "ProgramType",
    "OnTileExecute DoExchange GlobalExchange StreamCopyBegin StreamCopyMid StreamCopyEnd Sync"
    " SyncAns Sans Repeat Sequence OnEveryTileSwitch Call Copy CopySharedStructure Execute Unknown",
    start=0,
)
TargetType = Enum("TargetType", "Ipu IpuModel Cpu Unknown", start=0)  # `Target.Type`
Architecture = Enum("Architecture", "Ipu1 Ipu2 Ipu21 Unknown", start=0)  # `IPU.Architecture`
# how finely compute, and exchanges with the outside, were measured
ComputeInstrumentation = Enum(
    "ComputeInstrumentation", "Off Vertex Tile Ipu Device Unknown", start=0
)
ExchangeInstrumentation = Enum("ExchangeInstrumentation", "Off Tile Unknown", start=0)

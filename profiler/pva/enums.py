"""libpva's enumerations (docs/libpva.md)."""

from __future__ import annotations

from enum import Enum


class ProgramType(Enum):
    """Kinds of programs; `Program.Type` is this."""

    OnTileExecute = 0
    DoExchange = 1
    GlobalExchange = 2
    StreamCopyBegin = 3
    StreamCopyMid = 4
    StreamCopyEnd = 5
    Sync = 6
    SyncAns = 7
    Sans = 8
    Repeat = 9
    Sequence = 10
    OnEveryTileSwitch = 11
    Call = 12
    Copy = 13
    CopySharedStructure = 14
    Execute = 15
    Unknown = 16


class TargetType(Enum):
    """What ran the program; `Target.Type` is this."""

    Ipu = 0
    IpuModel = 1
    Cpu = 2
    Unknown = 3


class Architecture(Enum):
    """Generations of the chip; `IPU.Architecture` is this."""

    Ipu1 = 0
    Ipu2 = 1
    Ipu21 = 2
    Unknown = 3


class ComputeInstrumentation(Enum):
    """How finely compute was measured."""

    Off = 0
    Vertex = 1
    Tile = 2
    Ipu = 3
    Device = 4
    Unknown = 5


class ExchangeInstrumentation(Enum):
    """How finely exchanges with the outside were measured."""

    Off = 0
    Tile = 1
    Unknown = 2

"""The module of libpva's types; annotations name them here (``pva.pva_core.ExecutionStep``)."""

from __future__ import annotations

from ipuscope.profiler.pva.compilation import (
    CompilationReport,
    Graph,
    LiveMemory,
    LivenessProgramStep,
    Target,
)
from ipuscope.profiler.pva.enums import Architecture, ProgramType, TargetType
from ipuscope.profiler.pva.execution import (
    Block,
    Cycles,
    ExecutionReport,
    ExecutionStep,
    Run,
    StepOnIpu,
)
from ipuscope.profiler.pva.operations import DebugContext, Location, Operation, OperationAnalysis
from ipuscope.profiler.pva.programs import (
    ComputeSet,
    DoExchangeProgram,
    GlobalExchangeProgram,
    OnTileExecuteProgram,
    Program,
    ProgramVisitor,
    RepeatProgram,
    SequenceProgram,
    StreamCopyBeginProgram,
    StreamCopyEndProgram,
    StreamCopyMidProgram,
    VertexInstances,
    VertexType,
)
from ipuscope.profiler.pva.report import Report, openReport
from ipuscope.profiler.pva.tiles import IPU, Tile, TileMemory
from ipuscope.profiler.pva.trace import Event, openTrace
from ipuscope.profiler.pva.variables import (
    EquivalenceClass,
    Interval,
    LoweredVariable,
    LoweredVariables,
    VariableSize,
)

__all__ = [
    "IPU",
    "Architecture",
    "Block",
    "CompilationReport",
    "ComputeSet",
    "Cycles",
    "DebugContext",
    "DoExchangeProgram",
    "EquivalenceClass",
    "Event",
    "ExecutionReport",
    "ExecutionStep",
    "GlobalExchangeProgram",
    "Graph",
    "Interval",
    "LiveMemory",
    "LivenessProgramStep",
    "Location",
    "LoweredVariable",
    "LoweredVariables",
    "OnTileExecuteProgram",
    "Operation",
    "OperationAnalysis",
    "Program",
    "ProgramType",
    "ProgramVisitor",
    "RepeatProgram",
    "Report",
    "Run",
    "SequenceProgram",
    "StepOnIpu",
    "StreamCopyBeginProgram",
    "StreamCopyEndProgram",
    "StreamCopyMidProgram",
    "Target",
    "TargetType",
    "Tile",
    "TileMemory",
    "VariableSize",
    "VertexInstances",
    "VertexType",
    "openReport",
    "openTrace",
]

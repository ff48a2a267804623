"""Where each operator runs, in the debug log, as PopTorch says it."""

from __future__ import annotations

import logging
from collections import Counter

from ipu_exec.compiler.options import StrategyOptions
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.enums import Liveness
from ipu_exec.graph import Graph
from ipu_exec.lowering import popart_name
from ipuscope.profiler.enums import Direction

logger = logging.getLogger("ipu_exec")

# PopART's phases from one of the user's to the next: what leaves the chip in between takes some
# [POPTORCH, python/options.py, Liveness].
_PHASES_APART = {
    Liveness.AlwaysLive: 1,
    Liveness.OffChipAfterFwd: 1,
    Liveness.OffChipAfterFwdNoOverlap: 2,
    Liveness.OffChipAfterEachPhase: 4,
}
_LEAVING = 3  # phases before the backward pass, for tensors that leave the chip
_LOCATIONS = ("weight", "optimizer", "accumulator")


def log_placement(graph: Graph, placed: Placement, strategy: StrategyOptions) -> None:
    """Log at debug level where operators run, by PopART's names, numbered from the second on."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    logger.debug("enablePipelining set to value %d", placed.pipelined)
    apart = 1 if strategy.parallel_phases else _PHASES_APART[strategy.liveness]
    if placed.phases:
        _log_phases(max(placed.phases) * apart + 1, strategy)
    met: Counter[str] = Counter()
    for op, stage in zip(graph.ops, placed.op_stage, strict=True):
        if op.direction == Direction.FORWARD and op.outputs and op.outputs[0] is not None:
            kind = popart_name(op.aten)
            name = f"{op.module}/{kind}:0" if op.module else f"{kind}:0"
            again = f"/{met[name]}" if met[name] else ""
            met[name] += 1
            value = graph.values[op.outputs[0]]
            shape = ", ".join(map(str, value.shape))
            where = f"phase({placed.phases[stage] * apart})" if placed.phases else f"stage({stage})"
            mode = "Phased" if placed.phases else "Pipelined"
            logger.debug(
                "%s%s [%s(%s), mode(%s), ipu(%d), %s]",
                f" {name}",
                again,
                value.dtype,
                shape,
                mode,
                placed.stages[stage].ipu,
                where,
            )


def _log_phases(count: int, strategy: StrategyOptions) -> None:
    """PopART's settings of phased execution; ``count``: phases of the forward pass."""
    if strategy.liveness is not Liveness.AlwaysLive:
        count += _LEAVING
    elif strategy.separate_backward_phase:
        count += 1
    logger.debug("executionPhaseSettings.phases set to value %d", count)
    logger.debug(
        "executionPhaseSettings.stages set to value %d", 2 if strategy.parallel_phases else 1
    )
    leaves = strategy.liveness is not Liveness.AlwaysLive
    for tensors in ("activation",) * leaves + _LOCATIONS:
        logger.debug("location_%s set to value useOnChipStorage(False)", tensors)

"""Where each operator runs, in the debug log, as PopTorch says it."""

from __future__ import annotations

import logging
from collections import Counter

from ipu_exec.compiler.placement import Placement
from ipu_exec.graph import Graph
from ipu_exec.lowering import popart_name
from profiler.enums import Direction

logger = logging.getLogger("ipu_exec")


def log_placement(graph: Graph, placed: Placement) -> None:
    """Log at debug level where each operator runs, as PopTorch does.

    Operators have PopART's names, numbered from the second of a name on.
    """
    if not logger.isEnabledFor(logging.DEBUG):
        return
    logger.debug("enablePipelining set to value %d", placed.pipelined)
    met: Counter[str] = Counter()
    for op, stage in zip(graph.ops, placed.op_stage, strict=True):
        if op.direction == Direction.FORWARD and op.outputs and op.outputs[0] is not None:
            kind = popart_name(op.aten)
            name = f"{op.module}/{kind}:0" if op.module else f"{kind}:0"
            again = f"/{met[name]}" if met[name] else ""
            met[name] += 1
            value = graph.values[op.outputs[0]]
            shape = ", ".join(map(str, value.shape))
            where = f"phase({placed.phases[stage]})" if placed.phases else f"stage({stage})"
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

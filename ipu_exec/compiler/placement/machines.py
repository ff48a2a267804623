"""The IPUs that operators are planned for."""

from __future__ import annotations

from ipu_exec.compiler.options import CompileOptions
from ipu_exec.machine import Machine, target

USUAL_PROPORTION = 0.6  # Poplar's availableMemoryProportion


def machines_of(options: CompileOptions, ipus: int) -> list[Machine]:
    """One machine per IPU of a replica, with the options' settings for it."""
    device = target(options.target)
    return [
        Machine(
            device,
            device.tiles - options.io_tiles,
            options.memory_proportions.get(ipu, USUAL_PROPORTION),
            options.partials,
            dithering=options.dithering,
            stable_norm=options.stable_norm,
            wide_loads=options.wide_loads,
            half_partials=options.half_partials,
            fully_connected=options.fully_connected,
            shards=options.shards,
            ipu_model=options.ipu_model,
        )
        for ipu in range(ipus)
    ]

"""A process's knowledge of its launch by ``ipu-run --instances`` or ``poprun``.

The environment has torchrun's number of the process and of all processes, and the launch's total
number of replicas. A process without them is one instance with its own replicas.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ipu_exec.errors import UsageError
from ipu_exec.options import Options
from ipuscope.poprun import PRINTING_ALONE

REPLICAS_VARIABLE = "IPUSCOPE_REPLICAS"  # of all instances
IPUS_VARIABLE = "IPUSCOPE_IPUS_PER_REPLICA"
# What MPI tells a process, by what torchrun calls it: PopTorch's options read these.
_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """Which instance of how many this is; on its host it is ``local_rank`` of ``local_size``."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int  # which host
    nodes: int
    replicas: int  # of all instances
    ipus_per_replica: int

    @property
    def local_replicas(self) -> int:
        """Replicas of one instance."""
        return self.replicas // self.size


def launch() -> Launch | None:
    """The launch that this process belongs to, if any; UsageError for wrong variables."""
    if REPLICAS_VARIABLE not in os.environ:
        return None
    return Launch(
        rank=_number("RANK", 0),
        size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        local_size=_number("LOCAL_WORLD_SIZE", 1),
        node=_number("GROUP_RANK", 0),
        nodes=_number("GROUP_WORLD_SIZE", 1),
        replicas=_number(REPLICAS_VARIABLE, 1),
        ipus_per_replica=_number(IPUS_VARIABLE, 1),
    )


def launched(options: Options) -> bool:
    """Whether instances may share the replicas of a model with these options."""
    return int(options.Distributed.numProcesses) > 1 or launch() is not None


def hosts(options: Options) -> int:
    """The number of hosts that the instances run on, as far as the launch knows."""
    launched = launch()
    return 1 if launched is None or options.Distributed.numProcesses == 1 else launched.nodes


def tell_as_open_mpi() -> None:
    """Set the variables that Open MPI would set for this process, from torchrun's."""
    for theirs, ours in _OPEN_MPI.items():
        if ours in os.environ:
            os.environ[theirs] = os.environ[ours]


def silence_unless_asked() -> None:
    """Close stderr and stdout, or stdout alone, where another instance prints alone."""
    for variable, files in zip(PRINTING_ALONE, ((1, 2), (1,)), strict=True):
        for file in (
            files if os.environ.get(variable, os.environ["RANK"]) != os.environ["RANK"] else ()
        ):
            os.dup2(os.open(os.devnull, os.O_WRONLY), file)


def _number(name: str, otherwise: int) -> int:
    value = os.environ.get(name, str(otherwise))
    if not value.isdecimal():
        raise UsageError(f"{name}={value!r} is not a whole number: ipu-run --instances sets it")
    return int(value)

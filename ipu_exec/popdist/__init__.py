"""PopDist's names: which of how many instances of a script this is, and its replicas.

Without ``poprun`` or ``ipu-run --instances`` a script is the only instance, with one replica.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from ipu_exec.errors import UsageError
from ipu_exec.instances import Launch, launch
from ipu_exec.numerics.collectives import Instances, connect

Given = TypeVar("Given")
_ALONE = Launch(0, 1, 0, 1, 0, 1, replicas=1, ipus_per_replica=1)


def _launch() -> Launch:
    return launch() or _ALONE


def _together() -> Instances | None:
    """The instances, once connected; None if there is only one."""
    current = _launch()
    return connect(current.rank, current.size) if current.size > 1 else None


def isPopdistEnvSet() -> bool:
    """Whether this process was started as an instance."""
    return launch() is not None


def init() -> None:
    """Connect to the other instances. The first call that needs them does so by itself."""
    _together()


def synchronize() -> None:
    """Wait until every instance has reached this call."""
    together = _together()
    if together is not None:
        together.barrier()


finalizeDistributed = synchronize


def getInstanceIndex() -> int:
    """The number of this instance, from 0."""
    return _launch().rank


def getNumInstances() -> int:
    """The number of instances of the script."""
    return _launch().size


def getLocalInstanceIndex() -> int:
    """The number of this instance among those on its host."""
    return _launch().local_rank


def getNumLocalInstances() -> int:
    """The number of instances on this host."""
    return _launch().local_size


def getNumHosts() -> int:
    """The number of hosts that run instances."""
    return _launch().nodes


def getNumTotalReplicas() -> int:
    """The number of replicas of all instances."""
    return _launch().replicas


def getNumLocalReplicas() -> int:
    """The number of replicas of this instance."""
    return _launch().local_replicas


def getReplicaIndexOffset() -> int:
    """The number of this instance's first replica among all."""
    return _launch().rank * _launch().local_replicas


def getNumIpusPerReplica() -> int:
    """The value of ``--ipus-per-replica``, or 1."""
    return _launch().ipus_per_replica


def getDeviceId(ipus_per_replica: int | None = None) -> int:
    """The device that this instance uses.

    The modelled system has one partition of devices, each with an instance's IPUs: device i is
    instance i's.
    """
    if ipus_per_replica is not None and ipus_per_replica < 1:
        raise UsageError(f"getDeviceId: a replica has IPUs, not {ipus_per_replica}")
    return _launch().rank


def execute_on_instances(
    instances: Collection[int], function: Callable[..., Given], *args: Any, **kwargs: Any
) -> Given | None:
    """Call a function on these instances while the others wait, and get None."""
    index, strange = getInstanceIndex(), set(instances) - set(range(getNumInstances()))
    if strange:
        raise UsageError(
            f"execute_on_instances: there is no instance {min(strange)}: they are 0 to"
            f" {getNumInstances() - 1}"
        )
    result = function(*args, **kwargs) if index in instances else None
    synchronize()
    return result

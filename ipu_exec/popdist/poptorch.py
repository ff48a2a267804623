"""``popdist.poptorch.Options``: PopTorch's options that know the instance and its replicas."""

from __future__ import annotations

from typing import Any, NoReturn, Self

from ipu_exec import options as poptorch
from ipu_exec import popdist
from ipu_exec.errors import UsageError


class _Distributed(poptorch._DistributedOptions):
    """Which process this is, which the launch determines."""

    def __init__(self) -> None:
        self._made = False
        super().__init__()
        self._set(process_id=popdist.getInstanceIndex(), num_processes=popdist.getNumInstances())
        self._made = True

    def disable(self) -> NoReturn:
        """RuntimeError."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """RuntimeError, except for PopTorch's own call when the options are created."""
        if self._made:
            _refuse("Distributed.setEnvVarNames")
        return self

    def configureProcessId(self, process_id: int, num_processes: int = 1) -> NoReturn:
        """RuntimeError."""
        _refuse("Distributed.configureProcessId")


class Options(poptorch.Options):
    """Options with this instance's part of the replicas; RuntimeError for the launch's settings."""

    def __init__(self, ipus_per_replica: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if ipus_per_replica is not None and ipus_per_replica < 1:
            raise UsageError(f"Options: a replica has IPUs, not {ipus_per_replica}")
        super().replicationFactor(popdist.getNumLocalReplicas())
        self.Distributed = _Distributed()
        self.__dict__["ipus_per_replica"] = ipus_per_replica or popdist.getNumIpusPerReplica()

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """RuntimeError."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """RuntimeError."""
        _refuse("useIpuId")


def _refuse(method: str) -> NoReturn:
    raise UsageError(f"Cannot call `{method}` with popdist.poptorch.Options")

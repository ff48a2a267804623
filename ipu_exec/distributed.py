"""``poptorch.distributed``: PopTorch's wrapper around ``vipu-cli``, for partitions of real IPUs.

As on a machine without that tool, `VirtualIpuManager.isAvailable` returns False, and the rest
raises an Error. ``Options.Distributed`` tells which of how many processes this is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from ipu_exec.errors import Error


@dataclass
class Partition:
    """A partition as it would be created."""

    num_ipus: int
    num_gcds: int = 1
    num_sync_replicas: int = 1


class VirtualIpuManager:
    """The manager of a system's partitions."""

    @staticmethod
    def isAvailable() -> bool:
        """False: IPUs are modelled."""
        return False

    @staticmethod
    def numIpus() -> NoReturn:
        """Error."""
        _nothing("numIpus")

    @staticmethod
    def listPartitions() -> NoReturn:
        """Error."""
        _nothing("listPartitions")

    @staticmethod
    def createPartition(name: str, partition: Partition) -> NoReturn:
        """Error."""
        _nothing("createPartition")

    @staticmethod
    def deletePartition(name: str) -> NoReturn:
        """Error."""
        _nothing("deletePartition")

    @staticmethod
    def resetPartition(name: str) -> NoReturn:
        """Error."""
        _nothing("resetPartition")


def _nothing(what: str) -> NoReturn:
    raise Error(
        f"VirtualIpuManager.{what}: there is no vipu-cli, because IPUs are modelled and need no"
        " partition. Ask VirtualIpuManager.isAvailable() first; Options.replicationFactor says how"
        " many replicas are modelled"
    )

"""The instances of a script that share the replicas of a profiled model."""

from __future__ import annotations

from dataclasses import dataclass

from ipuscope.profiler.report import Report, number
from ipuscope.profiler.units import count


@dataclass(frozen=True, slots=True)
class Shared:
    """``instances`` processes on ``hosts`` machines, each with ``replicas`` of ``ipus`` IPUs."""

    instances: int
    hosts: int
    replicas: int
    ipus: int

    def __str__(self) -> str:
        """On one line, as in "4 instances on 2 hosts x 2 replicas x 1 IPU"."""
        where = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        replicas, ipus = count(self.replicas, "replica"), count(self.ipus, "IPU")
        return f"{count(self.instances, 'instance')}{where} x {replicas} x {ipus}"


def shared(report: Report) -> Shared:
    """The instances that run the replicas of a profile; one where the profile does not say."""
    target = report.target
    instances = max(1, int(number(report.meta, "num_instances", 1)))
    hosts = max(1, int(number(report.meta, "num_hosts", 1)))
    return Shared(instances, hosts, target.num_replicas // instances, target.ipus_per_replica)

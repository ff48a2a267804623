"""The machine that a profile was modelled on, as far as the cost of a split depends on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuscope.profiler.enums import BodyTask
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report, number
from ipuscope.profiler.timeline import links


def published_parameters(clock_hz: float) -> dict[str, float]:
    """Parameters of the machine that an imported profile does not state: cycles, bytes a cycle."""
    return {
        "host_latency": round(9e-6 * clock_hz),
        "link_latency": round(0.7e-6 * clock_hz),
        "link_bytes_per_cycle": 55e9 / clock_hz,
        "link_bytes_per_cycle_between_boards": 27.7e9 / clock_hz,
        "link_bytes_per_cycle_between_racks": 6.25e9 / clock_hz,
        "ipus_per_board": 4,
        "ipus_per_rack": 64,
        "gateway_latency": 2.5e-6 * clock_hz,
        "link_hop_latency": 0.16e-6 * clock_hz,
        "external_sync": 600,
        "stream_step": 257,
        "slice_cycles": 403,
        "slice_bytes_per_cycle": 4,
        "streaming_bytes_per_cycle": 5e9 / clock_hz,
    }


@dataclass(frozen=True, kw_only=True)
class MachineCosts(links.Links):
    """Tiles, links and fixed steps. Cycles and bytes; rates are bytes a cycle, one way."""

    tiles: int
    bytes_per_tile: int
    region0_bytes: int
    clock_hz: float
    sync: int  # of IPUs
    shards: int = 1  # IPUs of a stage that share its tensors and lie side by side
    streaming_bytes_per_cycle: float = 1.0  # an IPU's part of its machine's streaming memory
    stream_step: int = 0  # begin of a stream copy, and its end
    slice_cycles: float = 0.0  # of a tensor's way into its stash, whatever its size
    slice_bytes_per_cycle: float = 1.0  # ... and of each tile beyond that

    @classmethod
    def from_report(cls, report: Report) -> MachineCosts:
        """From the profile's target and header, or `published_parameters` where these lack one."""
        target, meta = report.target, report.meta
        before = published_parameters(target.clock_hz)

        def value(key: str) -> float:
            return number(meta, key, before[key])

        bodies = report.file.table(records.Body)
        syncs = bodies["cycles"][bodies.equals("task", BodyTask.SYNC)]
        rate = value("link_bytes_per_cycle") or 1.0
        return cls(
            tiles=target.tiles_per_ipu,
            bytes_per_tile=target.bytes_per_tile,
            region0_bytes=target.region0_bytes,
            clock_hz=target.clock_hz,
            sync=int(syncs.max()) if len(syncs) else int(value("external_sync")),
            link_latency=int(value("link_latency")),
            link_bytes_per_cycle=rate,
            link_hop_latency=value("link_hop_latency"),
            ipus_per_board=int(value("ipus_per_board")) or 1 << 30,
            board_link_bytes_per_cycle=value("link_bytes_per_cycle_between_boards") or rate,
            ipus_per_rack=int(value("ipus_per_rack")) or 1 << 30,
            rack_link_bytes_per_cycle=value("link_bytes_per_cycle_between_racks") or rate,
            gateway_latency=value("gateway_latency"),
            shards=int(number(meta, "tensor_sharding", 1)),
            streaming_bytes_per_cycle=value("streaming_bytes_per_cycle")
            or before["streaming_bytes_per_cycle"],
            stream_step=int(value("stream_step")),
            slice_cycles=value("slice_cycles"),
            slice_bytes_per_cycle=value("slice_bytes_per_cycle") or before["slice_bytes_per_cycle"],
        )

    def link_rate(self, a: int, b: int) -> float:
        """Bytes a cycle, one way, between two stages' IPUs: less over boards, least over racks."""
        return links.link_rate(self, a * self.shards, b * self.shards)

    def hop_latency(self, a: int, b: int) -> int:
        """Cycles before the first byte arrives, on a ladder with two IPUs to a rung."""
        return round(links.latency_cycles(self, a * self.shards, b * self.shards))

    def offload_cycles(
        self, nbytes: np.ndarray | int, weights: np.ndarray | int
    ) -> np.ndarray | float:
        """Cycles of an update for ``weights``' state from streaming memory, a transfer each way."""
        steps = 2 * self.stream_step * weights
        return 2 * (steps + nbytes / self.streaming_bytes_per_cycle)

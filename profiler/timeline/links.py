"""Positions of a pod's IPUs relative to each other, and the costs of transfers between them.

Pipelines copy, replicas reduce and shards gather by these functions only. IPUs are numbered
through the pod, replica by replica and stage by stage; the shards of a stage are adjacent.

IPU-Links are a ladder with two IPUs to a rung, four to an IPU-Machine and 64 to a rack; gateway
links join racks (docs/machine.md#pods). Cycles are tile clock cycles, bytes are bytes, rates are
of one direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

MAX_IPUS = 256  # of the largest system (docs/machine.md#pods)
IPUS_OF_A_PROCESS = 64  # at most, that PopTorch reserves


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of a pod. Cycles; rates are bytes a cycle, one way."""

    link_latency: int  # before the first byte arrives from a neighbour
    link_bytes_per_cycle: float  # to a neighbour on the same board
    link_hop_latency: float = 0.0  # of each further rung of the ladder
    ipus_per_board: int = 1 << 30
    board_link_bytes_per_cycle: float = 1.0  # between boards
    ipus_per_rack: int = 1 << 30
    rack_link_bytes_per_cycle: float = 1.0  # between racks: an IPU's part of a gateway
    gateway_latency: float = 0.0  # of each border between racks


@dataclass(frozen=True, slots=True)
class Span:
    """IPUs that exchange a tensor: the first, the distance between neighbours, and their number."""

    first: int
    apart: int
    members: int

    @property
    def last(self) -> int:
        """The IPU that is farthest from the first."""
        return self.first + self.apart * (self.members - 1)


def same_board(links: Links, a: int, b: int) -> bool:
    """Whether two IPUs belong to one IPU-Machine (or card)."""
    return a // links.ipus_per_board == b // links.ipus_per_board


def gateways(links: Links, a: int, b: int) -> int:
    """Gateway links between two IPUs: racks are in a row."""
    return abs(a // links.ipus_per_rack - b // links.ipus_per_rack)


def link_hops(a: int, b: int) -> int:
    """Links between two IPUs of a pod, at least 1; between racks a gateway is one.

    IPUs of a board are neighbours on the ladder; 16 IPUs lie at most 7 apart (1.76 us [JIA]).
    """
    return max(1, abs(a // 2 - b // 2))


def link_latency_cycles(links: Links, hops: int) -> float:
    """Cycles before the first byte arrives over ``hops`` IPU-Links."""
    return links.link_latency + links.link_hop_latency * (hops - 1)


def latency_cycles(links: Links, a: int, b: int) -> float:
    """Cycles before the first byte from IPU ``a`` arrives at IPU ``b``."""
    over_gateways = gateways(links, a, b) * links.gateway_latency
    return link_latency_cycles(links, link_hops(a, b)) + over_gateways


def link_rate(links: Links, a: int, b: int) -> float:
    """Bytes a cycle in one direction between two IPUs of a pod: the slowest link on the way.

    55 GB/s on a board, 27.7 GB/s between boards [JIA], an IPU's quarter of a gateway between
    racks.
    """
    if gateways(links, a, b):
        return links.rack_link_bytes_per_cycle
    if same_board(links, a, b):
        return links.link_bytes_per_cycle
    return links.board_link_bytes_per_cycle


def ring_cycles(links: Links, ipu: int, apart: int, members: int, nbytes: int, rounds: int) -> int:
    """Cycles in which a ring of IPUs exchanges tensors of ``nbytes`` bytes.

    It has ``members`` IPUs from ``ipu`` on, each ``apart`` from the one before. A scatter or a
    gather is one round, an all-reduce is both. Over several racks it runs rack by rack and then
    between racks (`levels`): gateways carry only what a rack has summed up.
    """
    return ceil(sum(cycles_of_levels(links, Span(ipu, apart, members), nbytes, rounds)))


def cycles_of_levels(links: Links, ring: Span, nbytes: float, rounds: int) -> list[float]:
    """Cycles of each of the ring's `levels`: within the rack and, where it spans some, between."""
    cycles, part = [], 1
    for level in levels(links, ring):
        cycles.append(_one_ring(links, level, nbytes / part, rounds))
        part *= level.members
    return cycles


def levels(links: Links, ring: Span) -> tuple[Span, ...]:
    """The rings of GCL's hierarchical collectives for a ring that spans racks.

    First within the rack, then between racks. A ring in one rack, or with unequal numbers of
    members in its racks, is its only level.
    """
    inside = links.ipus_per_rack // ring.apart
    aligned = ring.first % links.ipus_per_rack < ring.apart
    if not gateways(links, ring.first, ring.last) or inside < 2 or not aligned:
        return (ring,)
    if ring.members % inside:
        return (ring,)
    return (
        Span(ring.first, ring.apart, inside),
        Span(ring.first, ring.apart * inside, ring.members // inside),
    )


def _one_ring(links: Links, ring: Span, nbytes: float, rounds: int) -> float:
    """Cycles of one ring.

    A round has R - 1 steps, which carry (R - 1) / R of the bytes through each IPU, at the pace of
    the slowest link. From three members on, half of the data goes each way (GCL's bidirectional
    ring; two directions carry twice one [JIA]); two members use both ways anyway.
    """
    steps = rounds * (ring.members - 1)
    moved = steps * nbytes / ring.members
    rate = link_rate(links, ring.first, ring.last)
    # a hop between neighbours of the ring, by the farthest that two of them lie apart
    hop = link_latency_cycles(links, link_hops(0, ring.apart))
    if gateways(links, ring.first, ring.last):
        hop += links.gateway_latency
    return steps * hop + moved / (2 if ring.members > 2 else 1) / rate

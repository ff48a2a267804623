"""The modelled machine: constants of each IPU generation, and operator-independent costs.

Every number stands in docs/machine.md with its source. Cycles are tile clock cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.timeline.links import Links
from ipuscope.words import did_you_mean


@dataclass(frozen=True)
class Target:
    """One generation of IPU. ``target("mk2")`` returns one by name."""

    name: str
    architecture: str
    tiles: int
    rows: int  # tiles of a column; sets the latency of an exchange
    clock_hz: float
    bytes_per_tile: int
    region0_bytes: int  # not interleaved, and the only place for code
    macs_fp16: int  # AMP multiply-accumulates a cycle a tile
    macs_fp32: int
    link_bytes_per_second: float  # to a neighbouring IPU of the same board, one direction
    host_bytes_per_second: float
    streaming_bytes_per_second: float  # streaming memory, one IPU's part
    ipus_per_board: int  # a C2 card, an IPU-M2000 or Bow-2000, a C600 card
    board_link_bytes_per_second: float = 27.7e9  # between boards, one direction [JIA]
    ipus_per_rack: int = 64  # racks are joined by gateway links
    gateway_bytes_per_second: float = 25e9 / 4  # 2 x 100 Gb/s a machine: an IPU's quarter
    # of a gateway on top of the links beside it. No measurement is public: the estimate is what a
    # loaded link takes [JIA]
    gateway_latency_seconds: float = 2.5e-6
    workers: int = 6
    exchange_bytes_per_cycle: int = 4

    @cached_property
    def links(self) -> Links:
        """The links to other IPUs."""
        return Links(
            link_latency=round(LINK_LATENCY_SECONDS * self.clock_hz),
            link_bytes_per_cycle=self.link_bytes_per_second / self.clock_hz,
            link_hop_latency=LINK_HOP_SECONDS * self.clock_hz,
            ipus_per_board=self.ipus_per_board,
            board_link_bytes_per_cycle=self.board_link_bytes_per_second / self.clock_hz,
            ipus_per_rack=self.ipus_per_rack,
            rack_link_bytes_per_cycle=self.gateway_bytes_per_second / self.clock_hz,
            gateway_latency=self.gateway_latency_seconds * self.clock_hz,
        )

    def seconds(self, cycles: float) -> float:
        """Seconds that this number of cycles takes."""
        return cycles / self.clock_hz


_TILE, _REGION0 = 638_976, 212_992  # Mk2: 624 KiB, of which 208 KiB are not interleaved

TARGETS = {
    target.name: target
    for target in (
        Target("mk1", "ipu1", 1_216, 19, 1.6e9, 262_144, 131_072, 32, 8, 55e9, 5.9e9, 5.9e9, 2),
        Target("mk2", "ipu2", 1_472, 23, 1.33e9, _TILE, _REGION0, 64, 16, 55e9, 5.5e9, 5e9, 4),
        Target("c600", "ipu2", 1_472, 23, 1.5e9, _TILE, _REGION0, 64, 16, 55e9, 5.5e9, 5.5e9, 1),
        Target("bow", "ipu2", 1_472, 23, 1.85e9, _TILE, _REGION0, 64, 16, 55e9, 5.5e9, 5e9, 4),
    )
}

# Costs of the fixed steps, in cycles (docs/machine.md, from docs/machine.md#exchange on).
SYNC_CYCLES = 100  # internal: 80-123 in the vendor's model [TUT4], 64-117 on hardware [LBM]
EXTERNAL_SYNC_CYCLES = 600  # the vendor's global-sync constant; 501-642 measured over 16 IPUs [JIA]
# A tensor into one slot of something larger, or out of it, on each tile (docs/cycles.md#gather):
# 25 + 6 (39 + 24 + 2 n / 6 / v) cycles for n elements, v of them to 8 bytes: a cycle for 4 bytes
SLICE_CYCLES = 25 + 6 * (39 + 24)
SLICE_BYTES_PER_CYCLE = 4
STREAM_STEP_CYCLES = 257  # begin, mid and end of a stream copy, each [TUT4]
HOST_LATENCY_SECONDS = 9e-6  # [JIA]: 8.8 us to one tile, 9.9 us to all
LINK_LATENCY_SECONDS = 0.7e-6  # [JIA]: 0.54-0.83 us to a neighbour
LINK_HOP_SECONDS = 0.16e-6  # [JIA]: each further hop; 1.76 us across 16 IPUs
EXCHANGE_BASE_LATENCY = 170  # [IS]: 170 + 2 x row of the farther tile
EXCHANGE_ROW_LATENCY = 2
EXCHANGE_FRAGMENT_CYCLES = 3  # [IS]: control instructions a received fragment


def header(target: Target) -> dict[str, float]:
    """The machine's entries in a profile's header: cycles, and bytes per cycle one way."""
    links = target.links
    return {
        "external_sync": EXTERNAL_SYNC_CYCLES,
        "stream_step": STREAM_STEP_CYCLES,
        "slice_cycles": SLICE_CYCLES,
        "slice_bytes_per_cycle": SLICE_BYTES_PER_CYCLE,
        "link_latency": links.link_latency,
        "link_hop_latency": links.link_hop_latency,
        "link_bytes_per_cycle": links.link_bytes_per_cycle,
        "link_bytes_per_cycle_between_boards": links.board_link_bytes_per_cycle,
        "ipus_per_board": links.ipus_per_board,
        "link_bytes_per_cycle_between_racks": links.rack_link_bytes_per_cycle,
        "gateway_latency": links.gateway_latency,
        "ipus_per_rack": links.ipus_per_rack,
        "streaming_bytes_per_cycle": target.streaming_bytes_per_second / target.clock_hz,
    }


def target(name: str) -> Target:
    """The target of that name; ValueError lists all."""
    try:
        return TARGETS[name.lower()]
    except KeyError:
        near = did_you_mean(name, TARGETS)
        names = ", ".join(TARGETS)
        raise ValueError(f"unknown target {name!r}{near}; known: {names}") from None


TRAINING, INFERENCE = "training", "inference"


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of a lowering: one IPU's tiles and the planner's settings."""

    target: Target
    tiles: int  # available for compute (I/O tiles taken off)
    proportion: float = 0.6  # availableMemoryProportion
    partials: str = ""  # "float32", "float16"; "" is float32, the vendor's default
    first: int = 0  # the tile that products begin at
    part: int = 0  # tiles for a product; 0: all
    dithering: bool = False  # of convolutions: different ones begin at different tiles
    shards: int = 1  # IPUs that share the stage's tensors, this one among them
    stable_norm: bool = False  # norms take the mean off before they square
    # kinds of operators ("convolution", "matmul") whose vertices load weights 128 bits at a time
    wide_loads: tuple[str, ...] = ()
    half_partials: tuple[str, ...] = ()  # those with fp16 partials where ``partials`` says nothing
    wide_load: bool = False  # of the operator in hand: `loading`
    ipu_model: bool = False  # products take what the vendor's IPUModel estimates, not their code
    fully_connected: str = TRAINING  # or INFERENCE: products are passes of layers; "": they are not

    def loading(self, kind: str) -> Machine:
        """The machine for an operator of this kind, with loads and partials as its options say."""
        wide, half = kind in self.wide_loads, kind in self.half_partials and not self.partials
        partials = "float16" if half else self.partials
        return replace(self, wide_load=wide, partials=partials) if wide or half else self

    @property
    def product_tiles(self) -> int:
        """Tiles that a product may use: only part of them in a multi-convolution."""
        return self.part or self.tiles

    @property
    def io_tiles(self) -> int:
        """Tiles set aside for I/O: the IPU's last.

        Which ones GCL uses is not public; an exchange's cost hardly depends on it
        (`exchange_latency` is a mean over rows).
        """
        return self.target.tiles - self.tiles

    def whole(self, compute: np.ndarray) -> np.ndarray:
        """A vector over compute tiles, extended to all tiles of the IPU: zero on I/O tiles."""
        return (
            np.append(compute, np.zeros(self.io_tiles, compute.dtype)) if self.io_tiles else compute
        )

    def on_io_tiles(self, total: int, grain: int = 4) -> np.ndarray:
        """``total`` bytes spread evenly over the I/O tiles, in words: a vector over all tiles."""
        share = np.zeros(self.target.tiles, np.int64)
        words = -(-total // grain)
        edges = np.minimum(
            np.arange(self.io_tiles + 1, dtype=np.int64) * words // self.io_tiles * grain, total
        )
        share[self.tiles :] = np.diff(edges)
        return share


def exchange_latency(target: Target) -> int:
    """Cycles from the start of an exchange to the first word, for pairs spread over the chip.

    [IS]: 170 + 2 x row of the farther tile, checked on hardware; here the mean row counts.
    """
    return EXCHANGE_BASE_LATENCY + EXCHANGE_ROW_LATENCY * (target.rows // 2)


def exchange_tile_cycles(
    target: Target,
    bytes_in: np.ndarray,
    bytes_out: np.ndarray,
    fragments: np.ndarray,
    shared_bus: bool = False,
) -> np.ndarray:
    """Cycles each tile spends in one exchange, latency included; 0 without data.

    docs/cycles.md#exchange: the larger of words in (two tiles of a pair that take the same data
    share a bus: 8 bytes a cycle), words out, and three control instructions a received fragment.
    """
    rate = target.exchange_bytes_per_cycle * (2 if shared_bus else 1)
    words = np.maximum(-(-bytes_in // rate), -(-bytes_out // target.exchange_bytes_per_cycle))
    words = np.maximum(words, EXCHANGE_FRAGMENT_CYCLES * fragments)
    return np.where(words > 0, words + exchange_latency(target), 0).astype(np.int64)

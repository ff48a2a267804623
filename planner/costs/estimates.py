"""What Blocks would cost in half precision, or with a larger or smaller micro-batch.

Estimates from a profile alone, by rules that hold for any model (docs/advice.md#estimates has what
they are off by):

- What starting a vertex takes stays, by its formula (`ipuscope.planner.costs.vertex_costs`); of
  vertices without one, and of exchanges, it is what the profile's shortest steps take.
- In float16 half as many bytes move, and vertices take as many cycles an element as their formulas
  say. Partial sums of products and reductions, accumulators, optimiser state and the update stay
  float32, and what is computed from whole numbers alone, as positions are. What is so small that
  most tiles idle is on half as many, with twice the elements.
- Tiles that idle in a step take what more samples bring first; what goes to few tiles has theirs.
- Weights and accumulators that come and go each micro-batch are as large whatever the samples.
- Of operators on samples, computing grows with them. What tiles exchange for a product grows by the
  power of 2/3: blocks of a product of n operations need n^(2/3) operands [ITT], and so do the
  temporaries that hold them, and what lookups exchange. What is the size of a weight does not grow.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.planner.costs.block_cycles import RUN_AGAIN, BlockCycles
from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.cuts import Cuts
from ipuscope.planner.costs.host_streams import HostStreams
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.vertex_costs import step_vertices
from ipuscope.profiler.analysis.peak import MACS_PER_CYCLE
from ipuscope.profiler.enums import OF_WEIGHTS, Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

_GROUPED = r"(?s)convolution.*groups (?!1\b)"  # an operator and its plan, with several groups
_FEW_TILES = 0.5  # share of them: tensors that fill no more have the least bytes a tile may have
SHORTEST = 0.1  # quantile of a profile's steps that is taken for what starting one takes
_PRODUCTS = ("mm", "matmul", "convolution", "attention", "linear", "lstm", "gru", "rnn")
_MORE_CODE, _FIRST = 1.3, 1.8  # times, at most, in float16 and by each doubling, and by the first
_SINGLE, _HALF = "float32", "float16"
_WORKING = (Direction.FORWARD, Direction.BACKWARD, Direction.RECOMPUTE)
_FROM_OUTSIDE = (*OF_WEIGHTS, Role.INPUT)
_MOVES = Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE, Purpose.ALL_GATHER, Purpose.REDUCE_SCATTER
_PER_SAMPLE = (Role.ACTIVATION, Role.GRADIENT, Role.INPUT, Role.STASH, Role.TEMPORARY)


@dataclass(frozen=True)
class Steps:
    """Steps of Blocks in a profile, one entry each."""

    block: np.ndarray
    direction: np.ndarray  # what moves for recomputation is the backward's
    moves: np.ndarray  # a weight, a gradient or an accumulator
    fixed: np.ndarray  # cycles that stay
    beyond: np.ndarray  # cycles that grow with the work
    busy: np.ndarray  # share of the tiles that work in it
    growth: np.ndarray  # how it grows, of `GROWTHS`
    in_half: np.ndarray  # times as many ``beyond`` in float16
    at_peak: np.ndarray  # share of ``beyond`` that a product takes at the machine's peak; else 1
    planned: np.ndarray  # of products and lookups, which the planner divides anew for each size
    of_rows: np.ndarray  # exchanges of rows that several tiles share; more rows may have one each
    sums_samples: np.ndarray  # of products that make what is like a weight
    in_groups: np.ndarray  # of grouped convolutions, which have other vertices in float16


# With the samples to this power: what is a weight's, what tiles exchange for products, all else.
GROWTHS = (0.0, 2 / 3, 1.0)
STAYS, AS_PRODUCTS, AS_SAMPLES = range(3)
BOUNDS = SLOWEST, QUICKEST = -1, 1


@dataclass(frozen=True)
class Sizes:
    """What grows with samples and shrinks in float16; phases need no `steps` and `nbytes`."""

    report: Report
    variables: pd.DataFrame  # `variables_alike` of the report

    @cached_property
    def steps(self) -> Steps:
        """Operators' steps."""
        return _steps(self.report, self.variables)

    @cached_property
    def nbytes(self) -> pd.DataFrame:
        """By ``block, always_live, grows``; ``single``: those that halve. No optimiser state."""
        rows = growing(self.report, self.variables[self.variables["role"] != Role.OPTIMISER_STATE])
        by = rows.groupby(["block", "always_live", "grows"])
        return by[["bytes", "single"]].sum().reset_index()

    @cached_property
    def float32_shares(self) -> dict[str, float]:
        """Share of what comes "in" from the host and goes "out" to it that is float32."""
        from ipuscope.profiler.analysis.movement import host_tensors

        tensors = host_tensors(self.report)
        single = tensors["bytes"].where(tensors["dtype"] == _SINGLE, 0)
        of_way = tensors["bytes"].groupby(tensors["way"]).sum().to_dict()
        halves = single.groupby(tensors["way"]).sum().to_dict()
        return {way: halves.get(way, 0) / max(1, of_way.get(way, 1)) for way in ("in", "out")}

    @cached_property
    def halves(self) -> bool:
        """Whether most weights are float32, so that there is something to halve."""
        weights = self.variables[self.variables["role"] == Role.WEIGHT]
        single = weights.loc[weights["dtype"] == _SINGLE, "bytes"].sum()
        return bool(single > weights["bytes"].sum() / 2)


def variables_alike(report: Report) -> pd.DataFrame:
    """Columns of `Report.variables`, with ``like_weight``: of its shape, or transposed."""
    names = ("role", "shape", "dtype", "parameter", "op", "block", "always_live", "bytes", "tensor")
    variables = report.usage.variables_with(*names)
    weights = variables[variables["role"] == Role.WEIGHT]
    shapes = {key for shape in weights["shape"].unique() for key in _either_way(shape)}
    by_role = variables["role"].isin(OF_WEIGHTS).to_numpy()
    of_gradient = (variables["role"] == Role.GRADIENT) & (variables["parameter"] >= 0)
    by_shape = variables["shape"].isin(shapes).to_numpy()
    return variables.assign(like_weight=by_role | of_gradient.to_numpy() | by_shape)


def _either_way(shape: str) -> tuple[str, ...]:
    """A weight's shape and its transpose, as the profile writes shapes; none of vectors."""
    sides = json.loads(shape) if shape else []
    return (json.dumps(sides), json.dumps(sides[::-1])) if len(sides) > 1 else ()


def is_product(aten: pd.Series[str]) -> np.ndarray:
    """Mask of operators that are products, by their ATen names."""
    import pandas as pd

    kinds = aten.drop_duplicates()  # operators are many, kinds of them few
    which = pd.Index(kinds).get_indexer(pd.Index(aten))
    product = kinds.str.contains("|".join(_PRODUCTS), regex=True).to_numpy(dtype=bool)
    mask: np.ndarray = product[which]
    return mask


def _steps(report: Report, variables: pd.DataFrame) -> Steps:
    steps = report.program_steps()
    # operators of no Block are the first Block's of their stage, as in `measured_cycles`
    first = report.blocks.drop_duplicates("stage").set_index("stage")["block"]
    alone = (steps["block"] < 0) & (steps["purpose"] == Purpose.OPERATOR)
    of_stage = steps["stage"].map(first).fillna(-1).astype(int)
    steps = steps.assign(block=steps["block"].where(~alone, of_stage))
    steps = steps[
        (steps["block"] >= 0)
        & steps["direction"].isin(_WORKING)
        & steps["purpose"].isin((Purpose.OPERATOR, *_MOVES))
    ]
    # What comes before and after is of one turn; then each step counts as often as it runs.
    order, turns = _Order.of(steps), steps["times"].to_numpy()
    steps, order = steps.loc[steps.index.repeat(turns)], order.repeated(turns)
    vertices = step_vertices(report, steps["step"].to_numpy())
    ops = report.ops
    product = is_product(ops.loc[steps["op"], "aten"])
    accumulates = steps["op"].isin(_accumulating(report, variables)).to_numpy()
    of_weights = steps["op"].isin(weight_operators(report, variables)).to_numpy() & ~product
    moves = steps["purpose"].isin(_MOVES).to_numpy()
    forward = (steps["direction"] == Direction.FORWARD).to_numpy()
    cycles, kind = steps["cycles"].to_numpy(), steps["kind"].to_numpy()
    compute, exchange = kind == "compute", kind == "exchange"

    beyond = beyond_starting(cycles, compute, exchange, moves)
    has_start = compute & (vertices.start >= 0)
    beyond = np.where(has_start, np.maximum(0, cycles - vertices.start), beyond)

    tiles = report.target.tiles_per_ipu
    busy = order.at_receivers(steps["active_tiles"].to_numpy() / tiles)
    busy = np.where(compute, np.fmin(busy, steps["tile_balance"].to_numpy()), busy)
    busy[moves] = 1.0  # streaming memory and links are no tiles'
    weights = variables.loc[variables["like_weight"], "tensor"]  # others' activations move, too
    stays = of_weights | accumulates | (moves & steps["tensor"].isin(weights).to_numpy())
    looking_up, partial = order.bringing(vertices.looks_up), order.partial_sums(vertices)
    divided = (product & exchange & ~moves) | looking_up
    growth = np.select([stays, divided], [STAYS, AS_PRODUCTS], AS_SAMPLES)

    in_half = np.where(product & vertices.rearranges, 0.5, vertices.in_half)  # by the byte there
    float32 = partial | (accumulates & ~exchange)
    float32 |= steps["op"].isin(_of_whole_numbers(report, variables)).to_numpy()
    # between a recurrent layer's products is what is an element at a time
    multiplies = product & (exchange | vertices.product | vertices.rearranges | partial)
    few_tiles = (busy < _FEW_TILES) & ~multiplies & ~moves
    in_half = np.where(float32, 1.0, np.where(few_tiles, 2 * in_half, in_half))
    multiplied = np.where(vertices.product & compute, cycles, 0)
    makers = variables.loc[variables["like_weight"], "op"]
    return Steps(
        steps["block"].to_numpy(),
        np.where(moves & ~forward, Direction.BACKWARD, steps["direction"]),
        moves,
        cycles - beyond,
        beyond,
        busy,
        growth,
        in_half,
        _at_peak(report, steps, multiplied, beyond, vertices.of_half),
        (product | partial | vertices.looks_up | looking_up) & ~moves,
        partial & exchange & ~product,
        product & ~forward & steps["op"].isin(makers).to_numpy(),
        steps["op"].isin(ops.index[(ops["aten"] + ops["plan"]).str.contains(_GROUPED)]).to_numpy(),
    )


def _at_peak(
    report: Report,
    steps: pd.DataFrame,
    multiplied: np.ndarray,
    beyond: np.ndarray,
    of_half: np.ndarray,
) -> np.ndarray:
    """`Steps.at_peak`; ``multiplied``: cycles of the steps that multiply, 0 of others."""
    rates = MACS_PER_CYCLE.get(report.target.architecture.lower(), (np.nan, np.nan))
    of_run = steps[["op", "direction"]].assign(cycles=multiplied).groupby(["op", "direction"])
    share = multiplied / of_run["cycles"].transform("sum").clip(lower=1)
    flops = share * report.ops["flops"].reindex(steps["op"], fill_value=0).to_numpy()
    peak = 2 * report.target.tiles_per_ipu * np.where(of_half, *rates)
    known = np.where(multiplied > 0, flops / peak / np.maximum(1, beyond), 1.0)
    shares: np.ndarray = np.fmin(1.0, known)
    return shares


@dataclass(frozen=True)
class _Order:
    """Which compute steps of the same operator come before and after steps; -1: none."""

    before: np.ndarray  # behind an exchange: of a compute step, the one that sent its results to it
    after: np.ndarray
    exchange: np.ndarray

    @classmethod
    def of(cls, steps: pd.DataFrame) -> _Order:
        """``steps`` in the order of the program."""
        count, op = len(steps), steps["op"].to_numpy()
        compute = (steps["kind"] == "compute").to_numpy()
        exchange = (steps["kind"] == "exchange").to_numpy()
        position = np.arange(count)

        def last(chosen: np.ndarray) -> np.ndarray:
            """The last of those before each step."""
            until = np.maximum.accumulate(np.where(chosen, position, -1))
            return np.concatenate([[-1], until[:-1]]) if count else until

        following = np.minimum.accumulate(np.where(compute, position, count)[::-1])[::-1]
        after = np.where(following < count, following, -1)
        before = np.where(compute & (last(exchange) > last(compute)), last(compute), -1)
        same_after, same_before = op[after] == op, op[before] == op
        return cls(
            np.where(same_before & (before >= 0), before, -1),
            np.where(same_after & (after >= 0), after, -1),
            exchange,
        )

    def repeated(self, times: np.ndarray) -> _Order:
        """The same of steps that stand there so many times, one behind the other."""
        first = np.cumsum(times) - times
        before, after = (
            np.where(one >= 0, first[one], -1).repeat(times) for one in (self.before, self.after)
        )
        return _Order(before, after, self.exchange.repeat(times))

    def at_receivers(self, busy: np.ndarray) -> np.ndarray:
        """Shares of busy tiles; of exchanges, of the step that computes with what they bring."""
        receivers = np.where(self.exchange & (self.after >= 0), busy[self.after], busy)
        return np.minimum(busy, receivers)

    def bringing(self, computing: np.ndarray) -> np.ndarray:
        """Mask of exchanges that bring what these steps compute with."""
        mask: np.ndarray = self.exchange & (self.after >= 0) & computing[self.after]
        return mask

    def partial_sums(self, vertices: np.recarray[Any, Any]) -> np.ndarray:
        """Mask of steps that add up what other tiles have added up or multiplied, and bring it."""
        made = vertices.sums | vertices.product
        adding = vertices.sums & (self.before >= 0) & made[self.before]
        mask: np.ndarray = adding | self.bringing(adding)
        return mask


def beyond_starting(cycles: np.ndarray, *kinds: np.ndarray) -> np.ndarray:
    """Cycles of steps beyond what starting one of its kind takes: int64; 0 of none of ``kinds``."""
    beyond = np.zeros_like(cycles)
    for of_kind in kinds:
        start = int(np.quantile(cycles[of_kind], SHORTEST)) if of_kind.any() else 0
        beyond[of_kind] = np.maximum(0, cycles[of_kind] - start)
    return beyond


def weight_operators(report: Report, variables: pd.DataFrame) -> np.ndarray:
    """Ids of operators that read and write nothing but what is like a weight, and their own."""
    uses = report.file.table(records.Use)
    if not len(uses["op"]):
        return np.zeros(0, dtype=np.int64)
    tensors = variables[~variables["role"].isin((Role.TEMPORARY, Role.PROGRAM))]
    is_listed = np.isin(uses["variable"], tensors.index)
    used = variables.loc[uses["variable"][is_listed]]
    count = np.bincount(uses["op"][is_listed])
    alike = np.bincount(uses["op"][is_listed], used["like_weight"].to_numpy(), minlength=len(count))
    return np.flatnonzero((count > 0) & (alike == count))


def _accumulating(report: Report, variables: pd.DataFrame) -> np.ndarray:
    """Ids of operators that read or write accumulators of gradients."""
    uses = report.file.table(records.Use)
    accumulators = variables.index[variables["role"] == Role.ACCUMULATOR]
    ops: np.ndarray = np.unique(uses["op"][np.isin(uses["variable"], accumulators)])
    return ops


def _of_whole_numbers(report: Report, variables: pd.DataFrame) -> list[int]:
    """Ids of operators on what no weight, buffer or input of floats has a part in, as positions."""
    uses = report.file.table(records.Use)
    used = variables[["role", "dtype", "op"]].reindex(uses["variable"])
    floats = used["role"].isin(_FROM_OUTSIDE) & used["dtype"].isin((_SINGLE, _HALF))
    halving: dict[int, bool] = {}
    for op, maker, is_float in zip(uses["op"].tolist(), used["op"], floats, strict=True):
        read = maker != op and halving.get(maker, True)  # a maker comes before its readers
        halving[op] = halving.get(op, False) or is_float or read
    return [op for op, halves in halving.items() if not halves]


def growing(report: Report, variables: pd.DataFrame) -> pd.DataFrame:
    """`variables_alike` with ``grows`` ("weights", "samples", "products", "rest") and ``single``.

    ``grows``: with what; ``single``: the bytes that halve in float16.
    """
    role = variables["role"]
    product_ops = report.ops.index[is_product(report.ops["aten"])]
    of_product = (role == Role.TEMPORARY) & variables["op"].isin(product_ops)
    per_sample = role.isin(_PER_SAMPLE) & ~variables["like_weight"]
    weights = variables["like_weight"] | (role == Role.WEIGHT)
    grows = np.select(
        [of_product, per_sample, weights], ["products", "samples", "weights"], default="rest"
    )
    stays_single = role.isin((Role.ACCUMULATOR, Role.OPTIMISER_STATE))
    as_large = stays_single | of_product | (role == Role.PROGRAM)
    is_single = variables["dtype"].isin((_SINGLE, "")) & ~as_large
    return variables.assign(grows=grows, single=variables["bytes"].where(is_single, 0))


def growth_of_bytes(grows: pd.Series[str], samples: float) -> pd.Series[float]:
    """How many times as large bytes are with micro-batches ``samples`` times larger."""
    times = {"samples": samples, "products": samples ** GROWTHS[AS_PRODUCTS]}
    return grows.map({"weights": 1.0, "rest": 1.0, **times})


def estimated(costs: Costs, sizes: Sizes, half: bool, samples: float = 1.0) -> Costs:
    """Costs with Blocks in float16 (``half``) and micro-batches ``samples`` times larger."""
    if not half and samples == 1:
        return costs
    rate = 0.5 if half else 1.0
    moved = samples * rate
    return replace(
        costs,
        cycles=scaled_cycles(costs.cycles, sizes.steps, samples, half),
        memory=_memory(costs.memory, sizes.nbytes, samples, half),
        stash=costs.stash.scaled(moved),
        streams=estimated_streams(costs.streams, sizes, samples, half),
        cuts=_cuts(costs.cuts, moved, rate),
        samples=round(costs.samples * samples),
        measured=False,
    )


def growth_of_code(half: bool, samples: float) -> float:
    """How many times as much code there may be on a tile (docs/advice.md#estimates)."""
    doublings = abs(log2(samples))
    return float(_FIRST ** min(1.0, doublings) * _MORE_CODE ** (max(0.0, doublings - 1) + half))


def growth_of_work(growth: np.ndarray, busy: np.ndarray, samples: float) -> np.ndarray:
    """How many times as long steps work with micro-batches ``samples`` times larger.

    ``growth``: of `GROWTHS`; ``busy``: share of the tiles, of which idle ones take more first.
    """
    times: np.ndarray = np.power(samples, np.array(GROWTHS))[growth]
    if samples > 1:
        times = np.maximum(1.0, times * np.where(growth == STAYS, 1.0, busy))
    return times


def _growth(steps: Steps, samples: float, bound: int) -> np.ndarray:
    """`growth_of_work`, of products' rows at the peak; ``bound``: of `scaled_cycles`.

    A product that sums over the samples has more of the same rows, which take what they took. At a
    bound all grows as the samples do or, of what is planned anew, only what takes the peak.
    """
    if (bound == SLOWEST and samples > 1) or (bound == QUICKEST and samples < 1):
        return np.where(steps.growth == STAYS, 1.0, samples)
    share = np.where(steps.sums_samples & (not bound), 1.0, steps.at_peak)
    growth = 1 + (growth_of_work(steps.growth, steps.busy, samples) - 1) * share
    if bound:
        few = (steps.busy < _FEW_TILES) & (samples < 1)  # each has as little as a tile may have
        growth = np.where(few | (steps.planned & (steps.at_peak == 1)), 1.0, growth)
        growth[steps.of_rows & (samples > 1)] = 0.0
    return growth


def scaled_cycles(
    cycles: BlockCycles, steps: Steps, samples: float, half: bool, bound: int = 0
) -> BlockCycles:
    """Cycles of `estimated`; ``bound``: of `BOUNDS`, the slowest or the quickest they may be."""
    growth = _growth(steps, samples, bound)
    before = steps.fixed + steps.beyond
    in_half = steps.in_half * ~(steps.in_groups & (bound == QUICKEST))
    after = steps.fixed + (in_half if half else 1.0) * growth * steps.beyond
    blocks = len(cycles.forward)

    def times(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        old, new = (
            np.bincount(steps.block[chosen], of_step[chosen], blocks) for of_step in (before, after)
        )
        ratio = np.where(old > 0, new / np.maximum(1, old), 1.0)
        scaled: np.ndarray = np.rint(values * ratio).astype(np.int64)
        return scaled

    forward = steps.direction == Direction.FORWARD
    again = forward & ~steps.moves
    return replace(
        cycles,
        forward=times(cycles.forward, forward),
        backward=times(cycles.backward, steps.direction == Direction.BACKWARD),
        **{name: times(getattr(cycles, name), again) for name in RUN_AGAIN},
    )


def _memory(memory: BlockMemory, sizes: pd.DataFrame, samples: float, half: bool) -> BlockMemory:
    growth = growth_of_bytes(sizes["grows"], samples)
    nbytes = sizes["bytes"] - (sizes["single"] / 2 if half else 0)
    after = (growth * nbytes).groupby([sizes["block"], sizes["always_live"]]).sum()
    before = sizes["bytes"].groupby([sizes["block"], sizes["always_live"]]).sum()
    ratio = (after / before.clip(lower=1)).to_dict()

    def times(values: np.ndarray, always: int) -> np.ndarray:
        factor = np.array([ratio.get((block, always), 1.0) for block in range(values.shape[-2])])
        scaled: np.ndarray = np.ceil(values * factor[:, None]).astype(np.int64)
        return scaled

    rate = 0.5 if half else 1.0
    moved = samples * rate
    carried = np.where(memory.carried.is_tied, rate, moved)[:, None] * memory.carried.nbytes
    return replace(
        memory,
        always=times(memory.always, 1),
        peak=times(memory.peak, 0),
        peak_of_backward=times(memory.peak_of_backward, 0),
        peak_if_again=times(memory.peak_if_again, 0)
        if len(memory.peak_if_again)
        else memory.peak_if_again,
        peak_interleaved=times(memory.peak_interleaved, 0),
        region0=replace(memory.region0, growth=growth_of_code(half, samples)),
        saved=np.ceil(memory.saved * moved).astype(np.int64),
        carried=replace(memory.carried, nbytes=np.ceil(carried).astype(np.int64)),
    )


def estimated_streams(
    streams: HostStreams, sizes: Sizes, samples: float, half: bool
) -> HostStreams:
    """Streams with micro-batches ``samples`` times larger, in float16 (``half``)."""
    single = sizes.float32_shares if half else {"in": 0.0, "out": 0.0}
    less_in, less_out = (samples * (1 - single[way] / 2) for way in ("in", "out"))

    def times(cycles: np.ndarray, factor: float) -> np.ndarray:
        scaled: np.ndarray = np.ceil(cycles * factor).astype(np.int64)
        return scaled

    return replace(
        streams,
        input_bytes=times(streams.input_bytes, less_in),
        stream_in=times(streams.stream_in, less_in),
        stream_out=times(streams.stream_out, less_out),
        load=times(streams.load, less_in),
        unload=times(streams.unload, less_out),
    )


def _cuts(cuts: Cuts, moved: float, rate: float) -> Cuts:
    """Bytes over a cut, activations and gradients times ``moved``, weights times ``rate``.

    Tied weights that travel keep their size whatever the samples.
    """
    tied = np.zeros_like(cuts.ahead)
    for (home, *readers), nbytes in zip(cuts.ties.blocks, cuts.ties.nbytes, strict=True):
        tied[home : max(readers)] += nbytes
    ahead, back = (
        np.maximum(0, values - tied) * moved + np.minimum(values, tied) * rate
        for values in (cuts.ahead, cuts.back)
    )
    ties = replace(cuts.ties, nbytes=tuple(round(nbytes * rate) for nbytes in cuts.ties.nbytes))
    ahead, back = np.ceil(ahead).astype(np.int64), np.ceil(back).astype(np.int64)
    skips = tuple(
        tuple(replace(one, nbytes=round(one.nbytes * moved)) for one in way) for way in cuts.skips
    )
    tiles = cuts.tiles
    if tiles.size:
        tiles = tiles * [ahead / np.maximum(1, cuts.ahead), back / np.maximum(1, cuts.back)]
    return Cuts(ahead, back, ties, (skips[0], skips[1]), tiles)

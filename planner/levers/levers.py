"""The effect of levers on the costs of a profile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log2, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.estimates import (
    BOUNDS,
    Sizes,
    estimated,
    scaled_cycles,
    variables_alike,
)
from ipuscope.planner.costs.host_streams import HostStreams
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.without_blocks import with_a_block
from ipuscope.planner.levers.settings import STATES, Levers
from ipuscope.planner.predict.many_splits import assignment_cycles
from ipuscope.planner.predict.memory_verdict import Answer, Verdict, summary
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import (
    Assignment,
    Prediction,
    memory_of,
    memory_of_ipu,
    what_if,
)
from ipuscope.profiler import analysis
from ipuscope.profiler.enums import Role
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd

_MOST_ESTIMATES = 2  # in memory at a time
LEAST_RETURNED = 64  # bytes: a loss is not worth a word
_OTHER_CODE = {"half", "micro_batch", "split"}  # levers with which operators need other code
_PRODUCTS = r"^aten\.(?:mm|addmm|bmm|matmul|linear)\b"
# Of a tile, by each doubling of the micro-batch: error of the estimates (docs/advice.md#estimates)
_DOUBT_OF_MEMORY = 0.12
_ON_CHIP, _OFF_CHIP, _IN_PARTS = STATES


@dataclass(frozen=True)
class Outlook:
    """Speed over all replicas, memory, and why it would not run."""

    total: int  # cycles of a weight update
    samples_per_second: float
    memory: tuple[Verdict, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Basis:
    """A profile as the levers need it. ``surely``: what is too close to call does not fit."""

    can_split = True  # another split can be predicted

    report: Report
    costs: Costs
    surely: bool = False
    _estimates: dict[tuple[bool, float], Costs] = field(default_factory=dict, repr=False)
    _memory: dict[Levers, tuple[Verdict, ...]] = field(default_factory=dict, repr=False)
    _totals: dict[Levers, int] = field(default_factory=dict, repr=False)
    _too_full: list[int] = field(default_factory=list, repr=False)
    _parts: dict[tuple[int, int], tuple[BlockMemory, Costs]] = field(
        default_factory=dict, repr=False
    )
    # what a plan's search found, by levers and samples of an update
    plans: dict[tuple[Levers, int], Any] = field(default_factory=dict, repr=False)
    _last: dict[Levers, Costs] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, report: Report) -> Basis:
        """The basis of a profile; a model without Blocks counts as one Block (`without_blocks`).

        ValueError if the profile has no costs to predict from (`Costs.from_report`).
        """
        report = with_a_block(report)
        costs = Costs.from_report(report)
        profiled(costs)
        return cls(report, costs)

    @property
    def keeps_state(self) -> bool:
        """Whether there is optimiser state that could be stored elsewhere."""
        return bool(self.costs.memory.state.any())

    def cycles_with(self, levers: Levers) -> int:
        """Cycles of a weight update, whatever the memory."""
        if levers not in self._totals:
            costs, assignment = self.costs_with(levers), self.assignment_with(levers)
            self._totals[levers] = assignment_cycles(costs, assignment)
        return self._totals[levers]

    def outlook(self, levers: Levers) -> Prediction | Outlook:
        """The prediction with the levers pulled."""
        prediction = what_if(self.costs_with(levers), self.assignment_with(levers))
        return replace(prediction, given_memory=self.memory_with(levers))

    @cached_property
    def sizes(self) -> Sizes:
        """Tensors that grow and shrink with the micro-batch and precision."""
        return Sizes(self.report, variables_alike(self.report))

    @cached_property
    def present(self) -> Assignment:
        """The split as profiled."""
        return profiled(self.costs)

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.report.target.num_replicas

    @property
    def turn(self) -> str:
        """A device iteration, in words."""
        return "a weight update" if self.costs.training else "a device iteration"

    @property
    def micro_batch(self) -> int:
        """Samples of one replica's micro-batch."""
        return max(1, int(number(self.report.meta, "micro_batch", 1)))

    @property
    def written_buffers(self) -> dict[str, Any]:
        """Names and rows of buffers that the forward writes: replicas would not agree on them."""
        written = self.report.meta.get("written_buffers")
        return written if isinstance(written, dict) else {}

    @cached_property
    def one_size(self) -> str:
        """Why micro-batches of another size would not compute the same; "" where they do."""
        variables = self.report.usage.variables_with("role", "shape", "op")
        used = variables[variables["shape"].str.len() > 2]

        def shapes(of: pd.Series[bool]) -> list[list[int]]:
            return [json.loads(one) for one in used.loc[of, "shape"].unique()]

        inputs, weights = (shapes(used["role"] == role) for role in (Role.INPUT, Role.WEIGHT))
        first = {shape[0] for shape in inputs}
        if len(first) > 1:
            rows = " and ".join(map(str, sorted(first)))
            return f"inputs have {rows} rows, so that no row is a sample"
        for name, rows in self.written_buffers.items():
            if rows == self.micro_batch:
                return f"buffer {name}, which the model writes, has a row for each sample"
        kinds, norms = self.report.ops["aten"], self.report.meta.get("batch_norms")
        if norms is None:  # a profile of before, or an imported one
            norms = kinds.drop_duplicates().str.contains("batch_norm").any()
        if self.costs.training and norms:
            return "batch norms take their statistics over it"
        others = {size for shape in (*weights, *(one[1:] for one in inputs)) for size in shape}
        products = shapes(used["op"].isin(kinds.index[kinds.str.contains(_PRODUCTS)]))
        if any([one, one] in products for one in first - others - {1}):
            return "its samples meet in a tensor that grows with their square"
        return ""

    @property
    def state(self) -> str:
        """Where optimiser state is stored: one of `STATES`."""
        name = "TensorLocations.locationOptimizer.replicatedTensorSharding"
        if self.replicas > 1 and self.report.options.get(name) is True:
            return _IN_PARTS
        return _OFF_CHIP if self.costs.offload else _ON_CHIP

    @cached_property
    def returned(self) -> float:
        """Share of the data sent to the host that is not a loss."""
        tensors = analysis.host_tensors(self.report)
        out = tensors.loc[tensors["way"] == "out", "bytes"]
        return float(out[out >= LEAST_RETURNED].sum() / max(1, out.sum()))

    @cached_property
    def shared_state(self) -> float:
        """Share of optimiser state in tensors large enough to be kept in parts."""
        variables = self.report.usage.variables_with("role", "shape", "bytes")
        states = variables[variables["role"] == Role.OPTIMISER_STATE]
        large = states["bytes"][large_enough(states["shape"])]
        return float(large.sum() / max(1, states["bytes"].sum()))

    def bounds(self, levers: Levers) -> tuple[float, ...]:
        """Samples a second at the least and most, by what the planner may make of other samples."""
        rates = []
        for costs in (self.costs_with(levers, bound) for bound in BOUNDS):
            total = assignment_cycles(costs, self.assignment_with(levers))
            rates.append(costs.samples * costs.micro_batches * costs.machine.clock_hz / total)
        return tuple(rates)

    def costs_with(self, levers: Levers, bound: int = 0) -> Costs:
        """The costs with the levers pulled, except the choices of stages (`assignment_with`)."""
        ratio = levers.micro_batch / self.micro_batch if levers.micro_batch else 1.0
        costs = self._estimated(bool(levers.half), ratio)
        if bound:
            of = self.costs.cycles, self.sizes.steps, ratio, bool(levers.half), bound
            costs = replace(costs, cycles=scaled_cycles(*of))
        if levers.micro_batches:
            costs = costs.of_micro_batches(levers.micro_batches)
        if levers.replicas:
            split = levers.split or self.present
            costs = costs.on_replicas(levers.replicas, max(split.ipus) + 1)
        if levers.recompute is not None:  # for the last stage; the others have their choice
            costs = replace(costs, recompute=levers.recompute)
        if levers.outputs:
            costs = replace(costs, streams=outputs_of(costs, levers.outputs, self.returned))
        if levers.overlap:
            streams = costs.streams.beside_compute(costs.training)
            costs = replace(costs, streams=streams, pipelined=False)
        if levers.state == _IN_PARTS and self.state != _IN_PARTS:
            costs = self._in_parts(costs)
        return costs

    def same_costs_with(self, levers: Levers) -> Costs:
        """`costs_with`, and for the levers of the last call the same object, with its tables."""
        if levers not in self._last:
            self._last.clear()  # each has bytes of all Blocks and tiles
            self._last[levers] = self.costs_with(levers)
        return self._last[levers]

    def _in_parts(self, costs: Costs) -> Costs:
        """The costs with state in parts; arrays that differ in them are made once."""
        key = id(costs.memory), costs.replicas
        if self._parts.get(key, (None,))[0] is not costs.memory:
            while len(self._parts) >= _MOST_ESTIMATES:
                self._parts.pop(next(iter(self._parts)))
            self._parts[key] = costs.memory, _in_parts(costs, self.shared_state)
        parts = self._parts[key][1]
        return replace(costs, memory=parts.memory, cycles=parts.cycles, measured=False)

    def memory_with(self, levers: Levers) -> tuple[Verdict, ...]:
        """Whether each IPU fits; computed once for levers that do not differ in memory."""
        those = _memory_levers(levers)
        if those not in self._memory:
            answers = memory_of(self.costs_with(those), self.assignment_with(those))
            if not _OTHER_CODE & {*those.pulled}:  # code that is too large stays so
                answers = tuple(replace(one, exact=one.exact or one.of_code) for one in answers)
            self._memory[those] = answers
        return self._memory[those]

    def fits(self, levers: Levers) -> bool:
        """Whether each IPU fits, or is too close to call.

        Asks first the IPU that was fullest when it last did not fit: mostly it is that one again.
        """
        those = _memory_levers(levers)
        if those not in self._memory and self._too_full:
            costs, assignment = self.costs_with(those), self.assignment_with(those)
            if memory_of_ipu(costs, assignment, self._too_full[-1]).answer is Answer.OVER:
                return False
        answers = self.memory_with(levers)
        over = [one for one in answers if one.answer is Answer.OVER]
        if over:
            self._too_full.append(min(over, key=lambda one: one.free).ipu)
        return not over and (not self.surely or surely_fit(answers, self.doubt_of_memory(levers)))

    def doubt_of_memory(self, levers: Levers) -> float:
        """Share of a tile by which its bytes may be more than estimated with the levers."""
        if levers.micro_batch:
            return _DOUBT_OF_MEMORY * max(1.0, abs(log2(levers.micro_batch / self.micro_batch)))
        return _DOUBT_OF_MEMORY if levers.overlap else 0.0

    def _estimated(self, half: bool, ratio: float) -> Costs:
        if not half and ratio == 1:
            return self.costs
        if (half, ratio) not in self._estimates:
            if len(self._estimates) >= _MOST_ESTIMATES:  # each has bytes of all Blocks and tiles
                self._estimates.pop(next(iter(self._estimates)))
            self._estimates[half, ratio] = estimated(self.costs, self.sizes, half, ratio)
        return self._estimates[half, ratio]

    def assignment_with(self, levers: Levers) -> Assignment:
        """The split, and how its stages save memory."""
        assignment = levers.split or self.present
        ways = assignment.choices or self.costs.choices_of(assignment.starts)
        if levers.recompute is not None:
            ways = tuple(replace(way, recompute=levers.recompute) for way in ways)
        if levers.state:
            ways = tuple(replace(way, offload=levers.state == _OFF_CHIP) for way in ways)
        return replace(assignment, choices=ways)


def surely_fit(ipus: Sequence[Verdict], doubt: float) -> bool:
    """Whether all IPUs fit, ``doubt`` (`Basis.doubt_of_memory`) included."""
    return all(one.answer is Answer.FITS and one.free >= doubt * one.limit for one in ipus)


def memory_in_words(ipus: Sequence[Verdict], doubt: float) -> str:
    """Whether all IPUs fit, in words; ``doubt``: `Basis.doubt_of_memory`."""
    worst = min(ipus, key=lambda one: one.free)
    if has_open_code(ipus):
        return f"IPU {worst.ipu}: its code did not fit: compile to know"
    outgrowing = next((one for one in ipus if one.open_code), None)
    if outgrowing is not None and worst.free >= 0:
        return f"IPU {outgrowing.ipu}: its code may outgrow its room: compile to know"
    if worst.answer is Answer.FITS and not surely_fit((worst,), doubt):
        return f"IPU {worst.ipu}: within {doubt:.0%} of full: compile to know"
    return summary(ipus)


def has_open_code(ipus: Sequence[Verdict]) -> bool:
    """Whether code was too large, and what it is with other operators only a compile tells."""
    worst = min(ipus, key=lambda one: one.free)
    return worst.answer is Answer.CLOSE and worst.of_code


def _memory_levers(levers: Levers) -> Levers:
    """The levers on which memory depends."""
    return levers.without("micro_batches").without("replicas").without("outputs").without("overlap")


LEAST_SHARDED = 8192  # elements: PopART by default shards no smaller tensor


def elements(shape: str) -> int:
    """The number of elements of a tensor, from its shape in a profile."""
    return prod(json.loads(shape)) if shape else 0


def large_enough(shapes: pd.Series[str]) -> np.ndarray:
    """Which tensors PopART keeps in parts by default, by their shapes: bool."""
    by_shape = {shape: elements(shape) >= LEAST_SHARDED for shape in shapes.unique()}
    mask: np.ndarray = shapes.map(by_shape).to_numpy(dtype=bool)
    return mask


def outputs_of(costs: Costs, outputs: str, returned: float) -> HostStreams:
    """Streams with other outputs; ``returned``: share of the output bytes that is not a loss."""
    streams = replace(costs.streams, out_once=costs.training or costs.streams.out_once)
    if outputs != "loss":
        return streams
    left = (streams.stream_out * (1 - returned)).astype(np.int64)
    return replace(streams, stream_out=np.maximum(left, streams.stream_out > 0))


def _in_parts(costs: Costs, shared: float) -> Costs:
    """Each replica keeps and updates its part of state: an estimate, except the bytes."""
    part = 1 - shared * (costs.replicas - 1) / costs.replicas
    memory = replace(
        costs.memory,
        state=np.ceil(costs.memory.state * part).astype(np.int64),
        state_once=np.ceil(costs.memory.state_once * part).astype(np.int64),
    )
    update = np.ceil(costs.cycles.update * part).astype(np.int64)
    return replace(
        costs, memory=memory, cycles=replace(costs.cycles, update=update), measured=False
    )

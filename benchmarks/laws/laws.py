"""The laws. Each describes in words how a case breaks it, and returns nothing if it holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from benchmarks.laws.cases import FLOAT, HALF, KINDS, Case, larger, plan_of, spec_of
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.layouts import MIN_BYTES_PER_TILE, linear
from ipu_exec.lowering.plan import Compute, Exchange, Plan
from ipu_exec.machine import Machine

CHEAPER = 0.10  # a larger problem may cost so much less: grains of splits
SLOWER = 0.20  # more tiles may cost so much more
PHASE = 300  # cycles: a sync and the latency of an exchange
BY_ROWS = ("sum", "softmax", "layer norm")
MAPPED = (*BY_ROWS, "relu", "exp")
READ_BYTES_PER_CYCLE = 16 + 8  # of a tile: two loads and a store a cycle


@dataclass(frozen=True)
class Broken:
    """A law broken by a case, and by how much."""

    law: str
    case: Case
    said: str


def floating_point_bound(case: Case, machine: Machine, random_: random.Random) -> str:
    """Never faster than all units of all tiles can multiply, counting 2 operations each."""
    if not KINDS[case.kind].multiplies:
        return ""
    plan = plan_of(case, machine)
    target = machine.target
    macs = target.macs_fp16 if case.dtype == HALF else target.macs_fp32
    least = plan.flops / (2 * macs * machine.tiles)
    took = plan_cycles(plan, machine)
    return f"{took:,} cycles, {least:,.0f} at least" if took < least else ""


def byte_bound(case: Case, machine: Machine, random_: random.Random) -> str:
    """Never faster than a tile reads and writes its part, nor than an exchange brings it."""
    spec, plan = spec_of(case), plan_of(case, machine)
    written = sum(out.nbytes for out in spec.outputs if out is not None)
    least = written / machine.tiles / READ_BYTES_PER_CYCLE
    took = plan_cycles(plan, machine)
    if took < least:
        return f"{took:,} cycles, {least:,.0f} at least to write {written:,} bytes"
    for step in plan.steps:
        if isinstance(step, Exchange):
            rate = machine.target.exchange_bytes_per_cycle * (1 + step.shared_bus)
            bound = int(step.bytes_in.max()) / rate
            if plan_cycles(replace(plan, steps=(step,)), machine) < bound:
                return f"{step.name} is faster than its {int(step.bytes_in.max()):,} bytes"
    return ""


def _used(case: Case, machine: Machine) -> int:
    """The number of tiles that a linearly mapped tensor occupies: one per 128 bytes."""
    item = 2 if case.dtype == HALF else 4
    return int((linear(prod(case.extents), item, machine.tiles).elements > 0).sum())


def comparable(case: Case, more: Case, machine: Machine) -> bool:
    """Whether the vendor's own rules leave the larger of two cases to cost no less.

    A small tensor lies on a tile for each 128 bytes ([PL, lib/poputil/TileMapping.cpp]): a larger
    one has more tiles to work. Rows that are cut take an exchange that others do without, and how
    a reduction is done (its stages, whether workers share an output's elements) follows from
    counts, not from cycles; poplibs' measured reductions are as dear as that says. And a table
    with more lookups may be copied, which the planner does only where it gains much.
    """
    if case.kind in MAPPED and _used(case, machine) != _used(more, machine):
        return False
    return done_alike(case, machine, more, machine)


def done_alike(case: Case, machine: Machine, other: Case, there: Machine) -> bool:
    """Whether two plans match in kind: vertices, steps, cut rows, workers that share outputs."""
    first, second = plan_of(case, machine), plan_of(other, there)
    if KINDS[case.kind].multiplies:
        return first.note.partition(":")[0] == second.note.partition(":")[0]
    if first.note != second.note:
        return False
    if case.kind not in (*BY_ROWS, "column sum"):
        return True
    if [step.name for step in first.steps] != [step.name for step in second.steps]:
        return False
    if cuts_rows(case, machine) or cuts_rows(other, there):
        return False
    return few_rows(case, machine) == few_rows(other, there)


def _planned(case: Case, machine: Machine) -> int:
    """Cycles without what poplin's estimate, by which a plan is chosen, has not or has otherwise.

    A last group of channels is copied with its padding (docs/cycles.md#copies), and a bias is added
    to results as they lie: a tile with few rows of many groups takes longer.
    """
    plan, others = plan_of(case, machine), ("/pad inputs", "/add bias")
    steps = tuple(step for step in plan.steps if not step.name.endswith(others))
    return plan_cycles(replace(plan, steps=steps), machine)


def few_rows(case: Case, machine: Machine) -> bool:
    """Whether the fullest tile has fewer rows than workers."""
    item = 2 if case.dtype == HALF else 4
    most = int(linear(prod(case.extents), item, machine.tiles).elements.max())
    return most < machine.target.workers * case.extents[-1]


def cuts_rows(case: Case, machine: Machine) -> bool:
    """Whether some row of a reduction lies on several tiles.

    Poputil's linear mapping deals out grains of 8 bytes, whatever the rows are ([PL,
    lib/poputil/TileMapping.cpp], mapTensorLinearly), and rows that are cut have partial results to
    exchange: of the vendor's own, too, 15 columns cost more than 16.
    """
    if case.kind not in BY_ROWS:
        return False
    item = 2 if case.dtype == HALF else 4
    shares = linear(prod(case.extents), item, machine.tiles).elements
    return bool((shares % case.extents[-1]).any())


def no_cheaper_when_larger(case: Case, machine: Machine, random_: random.Random) -> str:
    """With one extent increased or doubled, the cost falls by at most 10 %.

    Only cases that the vendor's rules treat alike are compared (`comparable`).
    """
    axis = random_.randrange(len(case.extents))
    size = case.extents[axis]
    more = larger(case, axis, random_.choice((1, max(1, size // 2), size)))
    if not comparable(case, more, machine):
        return ""
    before, after = (_planned(one, machine) for one in (case, more))
    plans = plan_of(case, machine), plan_of(more, machine)
    slack = _unplanned(*plans) if KINDS[case.kind].multiplies else 0
    least = before * (1 - CHEAPER) - slack
    return f"{before:,} cycles, {more} {after:,}" if after < least else ""


def _unplanned(first: Plan, second: Plan) -> int:
    """Cycles by which the estimates may err that choose the plans of two products.

    They have no phase's sync and latency ([PL, lib/poplin/ConvModel.cpp],
    addExchangeCycleEstimates): as many as one of the plans has more than the other, or one.
    """
    phases = [sum(isinstance(step, Exchange) for step in plan.steps) for plan in (first, second)]
    return PHASE * max(1, abs(phases[0] - phases[1]))


def no_slower_on_more_tiles(case: Case, machine: Machine, random_: random.Random) -> str:
    """On all tiles it takes at most 20 % longer than on some."""
    few = random_.randrange(machine.tiles // 8, machine.tiles)
    fewer = replace(machine, tiles=few)
    if not done_alike(case, machine, case, fewer):
        return ""
    some, every = (_planned(case, one) for one in (fewer, machine))
    if KINDS[case.kind].multiplies:
        some += _unplanned(plan_of(case, fewer), plan_of(case, machine))
    return (
        f"{some:,} cycles on {few} tiles, {every:,} on all" if every > some * (1 + SLOWER) else ""
    )


def no_slower_in_half(case: Case, machine: Machine, random_: random.Random) -> str:
    """fp16 takes no longer than fp32, where both have the same tiles.

    A tensor of less than 128 bytes a tile lies on half as many in fp16: poputil's linear mapping
    counts bytes ([PL, lib/poputil/TileMapping.cpp], mapTensorLinearly), so the vendor's own fp16 is
    slower there. What has a fixed part (casts of results to fp16) may add that, and a vertex that
    sums halves takes two cycles more to store its floats ([PL,
    lib/popops/reduction/CycleEstimationFunctions.cpp], cyclesLoopPost): up to 1 % here. Poolings
    of halves keep 16 channels together where that costs up to a third more ([PL,
    lib/popnn/PoolPlan.cpp]); in fp32 they prefer fewer.
    """
    spec = spec_of(case)
    least = min(one.elements for one in (*spec.operands, *spec.outputs) if one is not None)
    if least * 2 < MIN_BYTES_PER_TILE * machine.tiles:
        return ""
    half, whole = (_planned(replace(case, dtype=kind), machine) for kind in (HALF, FLOAT))
    casts = sum(
        int(step.cycles.max(initial=0))
        for step in plan_of(replace(case, dtype=HALF), machine).steps
        if isinstance(step, Compute) and "ast" in step.name.rpartition("/")[2]
    )
    most = (4 / 3 if case.kind == "pooling" else 1.01) * whole + casts
    return f"{half:,} cycles, {whole:,} in fp32" if half > most else ""


def memory_holds_the_tensors(case: Case, machine: Machine, random_: random.Random) -> str:
    """What lies on tiles is all elements of each operand that was placed and of each result."""
    spec, plan = spec_of(case), plan_of(case, machine)
    wished = [(spec.operands[index], layout) for index, layout in plan.input_layouts]
    results = [
        (out, layout)
        for out, layout in zip(spec.outputs, plan.output_layouts, strict=True)
        if out is not None and layout is not None
    ]
    for operand, layout in (*wished, *results):
        if int(layout.bytes.sum()) < operand.nbytes:
            return f"{int(layout.bytes.sum()):,} bytes of {operand.nbytes:,} lie somewhere"
    return ""


def what_is_received_was_sent(case: Case, machine: Machine, random_: random.Random) -> str:
    """Every exchange sends nothing that nobody receives, and receives nothing that was not sent.

    Data for several tiles is sent once.
    """
    for step in plan_of(case, machine).steps:
        if isinstance(step, Exchange):
            sent, received = int(step.bytes_out.sum()), int(step.bytes_in.sum())
            if sent > received or (received > 0 and sent * prod((machine.tiles,)) < received):
                return f"{step.name}: {sent:,} bytes sent, {received:,} received"
    return ""


Law = Callable[[Case, Machine, random.Random], str]
LAWS: dict[str, Law] = {
    "never faster than the units": floating_point_bound,
    "never faster than the memory": byte_bound,
    "larger is never cheaper": no_cheaper_when_larger,
    "more tiles are never slower": no_slower_on_more_tiles,
    "fp16 is never slower": no_slower_in_half,
    "tensors have room": memory_holds_the_tensors,
    "received as sent": what_is_received_was_sent,
}


def check(case: Case, machine: Machine, seed: int) -> list[Broken]:
    """All laws that a case breaks, as a list."""
    broken = []
    for name, law in LAWS.items():
        if said := law(case, machine, random.Random(seed)):
            broken.append(Broken(name, case, said))
    return broken

"""Convolutions at the same time, on tiles of their own: multi-convolution, ``planType`` parallel.

As poplin shares out the tiles ([PL, lib/poplin/ConvPlan.cpp], getParallelMultiPlan): the largest
convolution is planned first, on all tiles but those reserved for the others, and gets the fewest on
which it takes no longer than that, but for ``cycleBackOff`` times the number of others; then from
the smallest on each the fewest on which it takes no longer than the longest so far; the second
largest what is left. Poplin compares step by step; here it is the whole of each.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.operator_info import Arguments, describe
from ipu_exec.lowering.plan import Compute, Exchange, OpSpec, Plan
from ipu_exec.lowering.products.conv import unread_by_gradients
from ipu_exec.lowering.registry import find, lowering
from ipu_exec.machine import Machine

_BUS = 2  # tiles that share an exchange bus are never parted


@lowering("poplin.multi_conv", "poplin.multi_conv_backward", convolution=True)
def multi_conv(spec: OpSpec, machine: Machine) -> Plan:
    """Several convolutions, or gradients, in the same compute sets; ``spec.args`` lists theirs."""
    settings: dict[str, Any] = dict(spec.kwargs)
    specs = _specs(spec)
    machines = [
        replace(
            machine,
            proportion=settings["proportions"][k] or machine.proportion,
            partials=settings["partials"][k] or machine.partials,
            dithering=(
                machine.dithering if settings["dithering"][k] is None else settings["dithering"][k]
            ),
        )
        for k in range(len(specs))
    ]
    shares = share_tiles(specs, machines, settings["reserved_tiles"], settings["back_off"])
    plans, notes, first = [], [], 0
    for conv, on, tiles in zip(specs, machines, shares, strict=True):
        plans.append(_plan(conv, replace(on, first=first, part=tiles)))
        notes.append(f"tiles {first}-{first + tiles - 1}: {plans[-1].note}")
        first += tiles
    return _merge(specs, plans, "; ".join(notes))


def _specs(spec: OpSpec) -> list[OpSpec]:
    """The convolutions as operators of their own."""
    name = (
        "aten.convolution_backward.default"
        if spec.name.endswith("backward")
        else "aten.convolution.default"
    )
    each = len(spec.outputs) // len(spec.args)
    return [
        OpSpec(name, args, (), spec.outputs[k * each : (k + 1) * each])
        for k, args in enumerate(spec.args)
    ]


def _plan(spec: OpSpec, machine: Machine) -> Plan:
    return find(spec.name)(spec, machine)


def share_tiles(
    specs: list[OpSpec], machines: list[Machine], reserved: int, back_off: float
) -> list[int]:
    """Tiles of each convolution; they sum to the machine's."""

    def taken(k: int, tiles: int) -> int:
        return plan_cycles(_plan(specs[k], replace(machines[k], part=tiles)), machines[k])

    def fewest(k: int, most: int, limit: float) -> int:
        """The least number of tiles on which it takes no longer; all where that takes longer."""
        if taken(k, most) > limit:
            return most
        groups = range(1, -(-most // _BUS))
        few = bisect_left(groups, True, key=lambda count: taken(k, _BUS * count) <= limit)
        return min(most, _BUS * (1 + few))

    count, left = len(specs), machines[0].tiles
    reserved = reserved if left >= count * reserved else max(1, left // count)
    sizes = [_plan(spec, on).flops for spec, on in zip(specs, machines, strict=True)]
    *smaller, second, largest = sorted(range(count), key=lambda k: sizes[k])
    shares = [0] * count
    most = left - reserved * (count - 1)
    limit = taken(largest, most) * (1 + back_off * (count - 1))
    shares[largest] = fewest(largest, most, limit)
    left -= shares[largest]
    for position, k in enumerate(smaller):
        shares[k] = fewest(k, left - reserved * (len(smaller) - position), limit)
        limit = max(limit, taken(k, shares[k]))
        left -= shares[k]
    shares[second] = left
    return shares


def _merge(specs: list[OpSpec], plans: list[Plan], note: str) -> Plan:
    """One plan whose steps are those of all, as many at once as are of one kind."""
    # the plan with the most steps ahead says whether to exchange or to compute next
    steps: list[Compute | Exchange] = []
    done = [0] * len(plans)
    places: list[list[int]] = [[] for _ in plans]  # of each plan's steps among the merged ones
    while any(done[k] < len(plan.steps) for k, plan in enumerate(plans)):
        longest = max(range(len(plans)), key=lambda k: len(plans[k].steps) - done[k])
        kind = type(plans[longest].steps[done[longest]])
        advancing = [
            k
            for k, plan in enumerate(plans)
            if done[k] < len(plan.steps) and type(plan.steps[done[k]]) is kind
        ]
        name = plans[longest].steps[done[longest]].name.partition("/")[2] or "convolve"
        steps.append(_join(f"multi_conv/{name}", [plans[k].steps[done[k]] for k in advancing]))
        for k in advancing:
            places[k].append(len(steps) - 1)
            done[k] += 1
    temporaries, wishes, outputs, last_reads, at = [], [], [], [], 0
    for spec, plan, place in zip(specs, plans, places, strict=True):
        temporaries += [
            replace(temporary, first=place[temporary.first], last=place[temporary.last])
            for temporary in plan.temporaries
        ]
        wishes += [(at + index, layout) for index, layout in plan.input_layouts]
        outputs += list(plan.output_layouts)
        last_reads += [(at + index, place[step]) for index, step in plan.last_reads]
        ended = {index for index, _ in plan.last_reads}
        last_reads += [
            (at + index, end)
            for index in range(len(spec.operands))
            for end in place[-1:]
            if index not in ended
        ]
        at += len(spec.operands)
    constants = [plan.constants for plan in plans if plan.constants is not None]
    return Plan(
        tuple(steps),
        tuple(temporaries),
        tuple(outputs),
        tuple(wishes),
        sum(constants[1:], constants[0]) if constants else None,
        tuple(last_reads),
        note,
    )


def _join(name: str, steps: list[Any]) -> Compute | Exchange:
    """Steps of one kind as one: what each does on its tiles, after what others do there."""
    if isinstance(steps[0], Compute):
        vertices = tuple(vertex for step in steps for vertex in step.vertices)
        return Compute(
            name, _sum(step.cycles for step in steps), vertices, sum(step.flops for step in steps)
        )
    return Exchange(
        name,
        _sum(step.bytes_in for step in steps),
        _sum(step.bytes_out for step in steps),
        _sum(step.fragments for step in steps),
        all(step.shared_bus for step in steps),
    )


def _sum(vectors: Any) -> np.ndarray:
    return np.sum(list(vectors), axis=0)


def _unread_by_gradients(convolutions: Arguments) -> tuple[int, ...]:
    """Of the gradient, input and weight of each convolution, given each one's arguments."""
    each = 3
    return tuple(
        index * each + position
        for index, arguments in enumerate(convolutions)
        for position in unread_by_gradients(arguments)
    )


describe("poplin.multi_conv_backward", unread=_unread_by_gradients)

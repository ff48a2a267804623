"""How often predictions surprise a user, on random shapes and without the laws' exceptions.

`benchmarks.laws.laws` leaves out what the vendor's own rules explain; here nothing is left out, so
that a change of the planner shows in the rates over the same seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.laws.cases import FLOAT, HALF, Case, drawn, larger, plan_of
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.machine import Machine

CHEAPER = 1.02  # a larger operator, more tiles or half precision may cost so much more or less
CLIFF = 1.2  # one more element may cost so many times as much, besides its share
KERNEL = 4  # of a convolution's extents: rows and columns


def _cost(case: Case, machine: Machine) -> int:
    return plan_cycles(plan_of(case, machine), machine)


def _ratio(dear: int, cheap: int) -> float:
    return dear / max(cheap, 1)


def larger_is_cheaper(case: Case, machine: Machine, draw: random.Random) -> float:
    """Cycles over those of the same case with one extent half as large again or doubled."""
    axis = draw.randrange(len(case.extents))
    size = case.extents[axis]
    more = larger(case, axis, draw.choice((max(1, size // 2), size)))
    return _ratio(_cost(case, machine), _cost(more, machine))


def more_tiles_are_slower(case: Case, machine: Machine, draw: random.Random) -> float:
    """Cycles on all tiles over those on some."""
    few = replace(machine, tiles=draw.randrange(machine.tiles // 8, machine.tiles))
    return _ratio(_cost(case, machine), _cost(case, few))


def half_is_slower(case: Case, machine: Machine, draw: random.Random) -> float:
    """Cycles in fp16 over those in fp32."""
    half, whole = (_cost(replace(case, dtype=dtype), machine) for dtype in (HALF, FLOAT))
    return _ratio(half, whole)


def one_more_is_dear(case: Case, machine: Machine, draw: random.Random) -> float:
    """Cycles with one extent larger by one, over those without and what the extent grows by."""
    axis = draw.randrange(len(case.extents))
    growth = 1 + 1 / case.extents[axis]
    if case.kind == "convolution" and axis == KERNEL:
        growth *= growth
    return _ratio(_cost(larger(case, axis, 1), machine), _cost(case, machine)) / growth


Rate = Callable[[Case, Machine, random.Random], float]
RATES: dict[str, tuple[Rate, float]] = {
    "a larger operator is cheaper": (larger_is_cheaper, CHEAPER),
    "more tiles are slower": (more_tiles_are_slower, CHEAPER),
    "half is slower than float": (half_is_slower, CHEAPER),
    "one more element is dear": (one_more_is_dear, CLIFF),
}


def table(cases: int, seed: int, kinds: list[str], machine: Machine, worst: int = 0) -> list[str]:
    """Lines of a Markdown table: for each rate and kind, how many of ``cases`` are beyond it.

    ``worst``: so many of the worst cases follow for each rate and kind.
    """
    lines = ["| surprise | kind | cases | beyond | worst |", "| --- | --- | ---: | ---: | ---: |"]
    notes = []
    for name, (rate, most) in RATES.items():
        sums = [0, 0, 0.0]
        for kind in kinds:
            source = random.Random(f"{kind} {seed}")
            drawn_cases = [drawn(kind, source) for _ in range(cases)]
            found = [
                (rate(case, machine, random.Random(f"{name} {seed} {index}")), case)
                for index, case in enumerate(drawn_cases)
            ]
            beyond = sorted((one for one in found if one[0] > most), key=lambda one: -one[0])
            most_of_kind = max(ratio for ratio, _ in found)
            lines.append(f"| {name} | {kind} | {cases} | {len(beyond)} | {most_of_kind:.2f} |")
            sums = [sums[0] + cases, sums[1] + len(beyond), max(sums[2], most_of_kind)]
            notes += [f"{name}: {case}: {ratio:.2f}" for ratio, case in beyond[:worst]]
        lines.append(f"| {name} | all | {sums[0]} | {sums[1]} | {sums[2]:.2f} |")
    return lines + notes

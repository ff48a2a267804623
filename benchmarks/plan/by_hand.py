"""What an expert would try by hand on 4 IPUs, at the samples that the script has: each compiled.

``python -m benchmarks.plan --by-hand lstm resnet-50`` (``all``) prints the best that fits of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import ipu_exec as poptorch
from benchmarks.plan.more_models import any_model
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.engine import Compiles
from ipuscope.planner.mappings import Key, Mapping, StagePlan
from ipuscope.profiler.units import per_second

IPUS, MICRO_BATCHES = 4, 16
HOME = (0, 1, 2, 3, 0)  # the head beside the embedding
# first Blocks of the stages behind the first
_CUTS: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "lstm": [((2,), (0, 1)), ((3,), (0, 1)), ((1, 3), (0, 1, 0)), ((1, 2, 3), (0, 1, 2, 3))],
    "gnn": [((3,), (0, 1)), ((4,), (0, 1)), ((2, 3, 4), (0, 1, 2, 3))],
    "resnet-50": [((at,), (0, 1)) for at in (7, 8, 9, 10)] + [((4, 8, 12), (0, 1, 2, 3))],
    "vit-s16": [((7,), (0, 1)), ((8,), (0, 1)), ((4, 7, 10), (0, 1, 2, 3))],
    "mlp-mixer": [((6,), (0, 1)), ((5,), (0, 1)), ((3, 6, 8), (0, 1, 2, 3))],
    "t5-small": [
        *(((1, 5, 9, 13), HOME), ((2, 6, 10, 13), HOME), ((1, 6, 9, 12), HOME)),
        *(((7,), (0, 1)), ((4, 7, 10), (0, 1, 2, 3))),
    ],
    "bert-base": [
        *(((1, 5, 9, 13), HOME), ((1, 4, 8, 13), HOME), ((2, 5, 9, 13), HOME)),
        *(((7,), (0, 1)), ((3, 6, 10), (0, 1, 2, 3))),
    ],
}
NAMES = tuple(_CUTS)
_ONE_SIZE = ("resnet-50",)  # batch norms


def write(names: Sequence[str]) -> None:
    """Print a row for each model: the best that fits, what it is, and how many were compiled."""
    print("| model | best by hand | its mapping | compiles |\n| --- | ---: | --- | ---: |")
    for name in names:
        rate, mapping, count = _best(name)
        cells = (
            per_second(rate),
            f"{mapping}, {mapping.state}, recomputing: {mapping.recomputation}",
        )
        print(f"| {name} | {' | '.join(cells)} | {count} |", flush=True)


def _best(name: str) -> tuple[float, Mapping, int]:
    example = any_model(name)
    model = example.module.train()
    options = poptorch.Options()
    options.Training.gradientAccumulation(MICRO_BATCHES)
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimiser)
    call = training.first_call(*example.inputs(example.micro_batch * MICRO_BATCHES))
    engine = Compiles(Captured(call, IPUS), IPUS)
    blocks = engine.names(Key(1, example.micro_batch))
    sizes = [example.micro_batch] if name in _ONE_SIZE else range(1, call.samples + 1)
    every = [one for size in sizes for one in _mappings(name, blocks, call.samples, size)]
    came = [one.obtained for one in engine.settle(every)]
    fits = [(came.cycles, one) for one, came in zip(every, came, strict=True) if not came.problem]
    cycles, best = min(fits, key=lambda one: one[0])
    return call.samples * engine.target.clock_hz / cycles, best, len(every)


def _mappings(name: str, blocks: Sequence[str], samples: int, size: int) -> Iterator[Mapping]:
    """One stage and the cuts, on all IPUs, with a micro-batch of this size."""
    for starts, ipus in [((), (0,)), *_CUTS[name]]:
        replicas = IPUS // len(set(ipus))
        each, left = divmod(samples, replicas * size)
        if left or not each or (starts and each < 2 * len(ipus) - 1):
            continue
        edges = (0, *starts, len(blocks))
        for again in (False, True):
            stages = tuple(
                StagePlan(
                    ipu, tuple(blocks[edges[k] : edges[k + 1]]), again if k < len(starts) else None
                )
                for k, ipu in enumerate(ipus)
            )
            if again and not starts:
                stages = (StagePlan(0, tuple(blocks), True),)
            for in_parts in {False, replicas > 1}:
                yield Mapping(1, replicas, stages, size, each, 0.0, in_parts)

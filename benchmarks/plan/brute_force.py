"""Every mapping of a small model, compiled: what a plan has to equal.

    python -m benchmarks.plan --brute-force 20

draws random models, plans each and compiles every mapping there is: t, p and r, splits,
micro-batches, recomputation and the place of optimiser state stage by stage, and state in parts on
the replicas. Where there are more than ``--most``, so many of them are drawn at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any

import torch

import ipu_exec
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.engine import Compiles
from ipu_exec.planning.first_call_plan import Asked, plan_call, question_of
from ipu_exec.session.call_plan import FirstCall
from ipuscope.planner.mappings import Key, Mapping, Obtained, Plan, StagePlan
from ipuscope.planner.mappings.compile_search import allows
from ipuscope.planner.mappings.compile_waves import keys_of
from ipuscope.planner.mappings.mapping import attached
from ipuscope.profiler.timeline import closed_forms


class Layers(torch.nn.Module):
    """Linear layers of given widths, each one a Block, with a mean square as loss."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for number, layer in enumerate(self.layers):
            with ipu_exec.Block(f"B{number}"):
                x = torch.relu(layer(x))
                if number == len(self.layers) - 1:
                    x = x.square().mean()
        return x


@dataclass(frozen=True)
class Every:
    """All mappings with the results of their compiles."""

    obtained: dict[Mapping, Obtained]

    def best(self) -> tuple[float, Mapping]:
        """The fewest cycles per sample of the mappings that run, and which mapping has them."""
        running = {one: came for one, came in self.obtained.items() if not came.problem}
        return min(
            ((came.cycles / one.samples, one) for one, came in running.items()),
            key=lambda pair: pair[0],
        )


def first_call(
    model: torch.nn.Module,
    samples: int,
    micro_batch: int,
    width: int,
    optimiser: str = "adam",
    shared: bool = False,
) -> FirstCall:
    """A call of such a model in training. ``shared``: its tensors may be, by several IPUs."""
    options = ipu_exec.Options().showCompilationProgressBar(False)
    if shared:
        options.tensorSharding(1, {"layers.*": "colwise_gather_output"})
    options.Training.gradientAccumulation(samples // micro_batch)
    makers = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    executor = ipu_exec.trainingModel(model, options, makers[optimiser](model.parameters(), lr=0.1))
    return executor.first_call(torch.zeros(samples, width))


def call_in_phases(
    widths: Sequence[int], samples: int, pipeline: int, replicas: int = 1, proportion: float = 0.6
) -> FirstCall:
    """A call of such a model in phases of so many stages, a Block each, all of it off the chip."""
    blocks = [f"B{number}" for number in range(len(widths) - 1)]
    phases = []
    for begin in range(0, len(blocks), pipeline):
        names = blocks[begin : begin + pipeline]
        stages = (ipu_exec.Stage(name).ipu(ipu) for ipu, name in enumerate(names))
        phases.append(ipu_exec.Phase(*stages))
    options = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*phases))
    options.Training.gradientAccumulation(samples // replicas)
    in_parts = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
    in_parts.useReplicatedTensorSharding()
    options.TensorLocations.setWeightLocation(in_parts).setOptimizerLocation(in_parts)
    options.setAvailableMemoryProportion({f"IPU{ipu}": proportion for ipu in range(pipeline)})
    model = Layers(widths)
    executor = ipu_exec.trainingModel(model, options, torch.optim.Adam(model.parameters()))
    return executor.first_call(torch.zeros(samples, widths[0]))


def every_mapping(key: Key, blocks: tuple[str, ...], ipus: int, batch: int) -> Iterator[Mapping]:
    """The mappings of a key, one stage per IPU."""
    for stages in range(1, min(len(blocks), ipus // key.shards) + 1):
        for replicas in range(1, ipus // (key.shards * attached(stages)) + 1):
            each, rest = divmod(batch, key.micro_batch * replicas)
            least = closed_forms.pipeline_stages(stages, True) if stages > 1 else 1
            wrong_parts = key.in_parts not in (0, replicas)
            if rest or each < least or (each > 1) != key.accumulates or wrong_parts:
                continue
            for split in every_split(blocks, stages):
                yield Mapping(
                    key.shards,
                    replicas,
                    split,
                    key.micro_batch,
                    each,
                    key.proportion,
                    bool(key.in_parts),
                )


def every_split(blocks: tuple[str, ...], stages: int) -> Iterator[tuple[StagePlan, ...]]:
    """The splits, with every way for each stage to save memory."""
    ways = [*product((False, True), repeat=2)]
    for cuts in combinations(range(1, len(blocks)), stages - 1):
        edges = (0, *cuts, len(blocks))
        for chosen in product(ways, repeat=stages):
            if chosen[-1][0]:  # the last stage has nothing to run again
                continue
            yield tuple(
                StagePlan(
                    k, blocks[edges[k] : edges[k + 1]], again if k < stages - 1 else None, off
                )
                for k, (again, off) in enumerate(chosen)
            )


def compile_all(call: FirstCall, asked: Asked, most: int = 0, seed: int = 0) -> Every:
    """Compile every mapping that the question allows; if they are more than ``most``, so many."""
    captured = Captured(call, asked.ipus)
    question = question_of(call, captured.samples, asked)
    engine = Compiles(captured, asked.ipus, keep=False)
    keys = keys_of(question)
    in_parts = [
        Key(key.shards, key.micro_batch, key.proportion, replicas, key.accumulates)
        for key in keys
        for replicas in range(2, asked.ipus + 1)
    ]
    blocks = tuple(block.name for block in captured.graph(keys[0]).blocks)
    wanted = [
        mapping
        for key in (*keys, *in_parts)
        for mapping in every_mapping(key, blocks, asked.ipus, question.global_batch)
    ]
    allowed = [one for one in wanted if allows(question, one)]
    if 0 < most < len(allowed):
        allowed = random.Random(seed).sample(allowed, most)
    return Every({one.mapping: one.obtained for one in engine.settle(allowed)})


@dataclass(frozen=True)
class Case:
    """A random model and the question asked about it."""

    widths: tuple[int, ...]
    samples: int
    micro_batches: tuple[int, ...]
    ipus: int
    optimiser: str
    shared: bool = False
    fixed: tuple[str, ...] = ()

    def call(self) -> FirstCall:
        """The first call of its model."""
        first = self.micro_batches[0]
        model = Layers(self.widths)
        samples, width = self.samples, self.widths[0]
        return first_call(model, samples, first, width, self.optimiser, self.shared)

    def asked(self, **more: Any) -> Asked:
        """The question."""
        return Asked(self.ipus, 0, self.micro_batches, (0.6,), self.fixed, keep=False, **more)

    def plan(self, **more: Any) -> Plan:
        """The planner's answer."""
        return plan_call(self.call(), self.asked(**more))


def random_case(
    seed: int, blocks: int = 4, ipus: int = 4, shared: bool = False, fixed: tuple[str, ...] = ()
) -> Case:
    """A model of at most so many Blocks, on at most so many IPUs.

    ``shared``: t is a dimension; ``fixed``: what must be so, as ``--fix`` takes it.
    """
    draw = random.Random(seed)
    count = draw.randint(2, blocks)
    widths = tuple(draw.choice((32, 64, 128, 256, 512)) for _ in range(count + 1))
    samples = draw.choice((16, 24, 32))
    sizes = [size for size in (1, 2, 4, 8) if samples % size == 0]
    return Case(
        widths,
        samples,
        tuple(draw.sample(sizes, 2)),
        draw.randint(2, ipus),
        draw.choice(("adam", "sgd")),
        shared,
        fixed,
    )

"""How far predicted bytes of other splits are from compiled ones.

``python -m benchmarks.rebalance.memory_errors`` compiles each model with as many Blocks a stage
everywhere, and again with random other splits. From the first profile the fullest tile of each IPU
of the others is predicted. A line a model has the errors, predicted over compiled;
`ipuscope.planner.predict.memory_verdict` takes its margins from the most below, and above.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import ipu_exec
from benchmarks.rebalance.__main__ import compiled, profile
from examples.models import build, split
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if

CASES = (
    ("vit-b16", 4, 16),
    ("resnet-50", 4, 16),
    ("bert-base", 4, 16),
    ("gpt2-small", 4, 16),
    ("bert-large", 8, 32),
)
_SPLITS = 3  # of each model
_FAR = 2  # Blocks by which a cut moves at most


def errors(name: str, stages: int, accumulation: int, folder: Path) -> list[float]:
    """Predicted over compiled bytes of the fullest tile, less 1, of each IPU of other splits."""
    example = build(name)
    example.module.half()
    first = compiled(example, split(example, stages), stages, accumulation)
    costs = Costs.from_report(profile(first, folder / name)).with_tile_bytes(1 << 40)
    random, found = np.random.default_rng(0), list[float]()
    begins = np.flatnonzero(np.diff(costs.stage, prepend=-1))
    for number in range(_SPLITS):
        moved = begins[1:] + random.integers(-_FAR, _FAR + 1, stages - 1)
        starts = (0, *np.unique(np.clip(moved, 1, len(costs) - 1)).tolist())
        other = Assignment(starts, tuple(range(len(starts))))
        placed = ipu_exec.PipelinedExecution(
            *(
                ipu_exec.Stage(*costs.names[a : b + 1]).ipu(k)
                for k, (a, b) in enumerate(other.spans(len(costs)))
            )
        )
        again = compiled(example, placed, stages, accumulation)
        report = profile(again, folder / f"{name} {number}")
        predicted = what_if(costs, other).memory
        obtained = [int(report.tiles(ipu)["total"].max()) for ipu in range(len(starts))]
        found += [one.nbytes / was - 1 for one, was in zip(predicted, obtained, strict=False)]
    return found


def main() -> None:
    """Measure and print."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = errors(*case, Path(folder))
        print(
            f"{case[0]} on {case[1]} IPUs, {len(found)} of them: {min(found):+.1%} to"
            f" {max(found):+.1%}, mean {np.mean(found):+.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()

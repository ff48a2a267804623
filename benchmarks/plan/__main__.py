"""Plans held against every mapping of random small models, each compiled.

python -m benchmarks.plan --brute-force 20 --blocks 4 --ipus 4
"""

from __future__ import annotations

import argparse
import time
import warnings
from itertools import pairwise

from benchmarks.plan.brute_force import compile_all, random_case


def main() -> int:
    """Exit with the number of models for which a compile was better than the plan."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--brute-force", type=int, default=10, metavar="N", help="models")
    parser.add_argument("--blocks", type=int, default=4, help="of a model, at the most")
    parser.add_argument("--ipus", type=int, default=4, help="at the most")
    parser.add_argument("--seed", type=int, default=100, help="of the first model")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| seed | Blocks | IPUs | mappings | plan | best of all | plan's CPU s | all's CPU s |")
    print("| ---: | ---: | ---: | ---: | --- | --- | ---: | ---: |")
    worse = 0
    for seed in range(args.seed, args.seed + args.brute_force):
        worse += _compared(seed, args.blocks, args.ipus)
    return worse


def _compared(seed: int, blocks: int, ipus: int) -> bool:
    """Print a model's row and return whether some mapping is better than the plan."""
    case = random_case(seed, blocks, ipus)
    times = [time.process_time()]
    best = case.plan().best
    times.append(time.process_time())
    every = compile_all(case.call(), case.asked())
    times.append(time.process_time())
    least, mapping = every.best()
    came = best.obtained
    own = came.cycles / best.mapping.samples if came is not None else float("inf")
    cells = (
        *(seed, len(case.widths) - 1, case.ipus, len(every.obtained), best.mapping, mapping),
        *(f"{after - before:.1f}" for before, after in pairwise(times)),
    )
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return own > least * (1 + 1e-9)


if __name__ == "__main__":
    raise SystemExit(main())

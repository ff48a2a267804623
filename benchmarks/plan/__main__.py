"""Plans held against every mapping of random small models, and against public configurations.

python -m benchmarks.plan --brute-force 20 --blocks 4 --ipus 4
    every mapping compiled
python -m benchmarks.plan --public bert-large-16 resnet-50-16
    what Graphcore's examples have, compiled in full, and the plan; without names, all of them
python -m benchmarks.plan --two-workers bert-large
    what two workers leave of the time of a plan, by the CPU time of each process
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.plan import by_hand, evidence
from benchmarks.plan.brute_force import Case, compile_all, random_case
from benchmarks.plan.public import PUBLIC
from benchmarks.plan.two_workers import BERT_LARGE, measure
from ipu_exec.errors import Error
from ipu_exec.planning.first_call_plan import Asked, plan_call
from ipuscope.planner.mappings import Mapping
from ipuscope.profiler.units import per_second


def main() -> int:
    """Exit with the number of models for which a compile was better than the plan."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--brute-force", type=int, default=10, metavar="N", help="models")
    parser.add_argument(
        "--public", nargs="*", metavar="NAME", help=f"of {', '.join(PUBLIC)} (default: all)"
    )
    parser.add_argument("--budget", type=float, default=0.0, help="seconds of a plan")
    parser.add_argument("--blocks", type=int, default=4, help="of a model, at the most")
    parser.add_argument("--ipus", type=int, default=4, help="at the most")
    parser.add_argument("--seed", type=int, default=100, help="of the first model")
    parser.add_argument("--shared", action="store_true", help="t is a dimension, too")
    parser.add_argument("--most", type=int, default=0, help="mappings compiled, drawn at random")
    parser.add_argument("--fix", action="append", default=[], help="what must be so, as p=4")
    parser.add_argument("--two-workers", metavar="NAME", help="CPU time, of a public model's plan")
    parser.add_argument(
        "--evidence",
        nargs="+",
        metavar="NAME",
        help=f"rows of docs/plan.md, of {', '.join(evidence.SCRIPTS)} (all)",
    )
    parser.add_argument(
        "--by-hand",
        nargs="+",
        metavar="NAME",
        help=f"what an expert tries on 4 IPUs, of {', '.join(by_hand.NAMES)} (all)",
    )
    parser.add_argument("--on", type=int, nargs="+", default=evidence.IPUS, help="IPUs of the rows")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are made at a time")
    args = parser.parse_args()
    if args.evidence:
        names = evidence.SCRIPTS if "all" in args.evidence else args.evidence
        evidence.write(names, args.on, args.jobs)
        return 0
    warnings.simplefilter("ignore")
    if args.by_hand:
        by_hand.write(by_hand.NAMES if "all" in args.by_hand else args.by_hand)
        return 0
    if args.two_workers is not None:
        return _two_workers(args.two_workers)
    if args.public is not None:
        return _held_against(args.public or [name for name in PUBLIC if name != "tiny-4"], args)
    print("| seed | Blocks | IPUs | mappings | plan | best of all | plan's CPU s | all's CPU s |")
    print("| ---: | ---: | ---: | ---: | --- | --- | ---: | ---: |")
    worse = 0
    for seed in range(args.seed, args.seed + args.brute_force):
        case = random_case(seed, args.blocks, args.ipus, args.shared, tuple(args.fix))
        worse += _compared(seed, case, args.most)
    return worse


def _two_workers(name: str) -> int:
    """Print what two workers leave of the time of a plan."""
    public = BERT_LARGE if name == "bert-large" else PUBLIC[name]
    alone, two, plan = measure(public.call, public.ipus)
    print(
        f"{public.name}: {plan.compiles} compiles, alone {alone.cpu:.1f} s of CPU"
        f" ({alone.clock:.1f} s by the clock); with two workers {two.path:.1f} s, a core each, and"
        f" {two.cpu:.1f} s of CPU in all ({two.clock:.1f} s by the clock):"
        f" {two.path / alone.path:.2f} of the time ({two.clock / alone.clock:.2f} by the clock)"
    )
    return 0


def _held_against(names: Sequence[str], args: argparse.Namespace) -> int:
    """Print a row for each public configuration; the number that are better than the plan."""
    print(
        "| model | IPUs | public mapping | samples/s | plan | samples/s | gain | compiles | CPU s |"
    )
    print("| --- | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |")
    worse = 0
    for name in names:
        public = PUBLIC[name]
        began = time.process_time()
        try:
            plan = plan_call(public.call(), Asked(public.ipus, budget=args.budget))
        except Error as error:
            print(f"| {public.name} | {public.ipus} | {error} | | | | | | |", flush=True)
            continue
        spent = time.process_time() - began
        own, best = plan.own, plan.best
        runs = own is not None and own.runs
        gain = f"{best.rate / own.rate - 1:+.1%}" if own is not None and runs else ""
        rate = "" if own is None else f"{per_second(own.rate)}" if runs else own.obtained.problem
        cells = (
            *(public.name, public.ipus, own.mapping if own is not None else "", rate),
            *(_in_full(best.mapping), f"{per_second(best.rate)}", gain),
            *(plan.compiles + plan.cached, f"{spent:.0f}"),
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        for line in (*plan.why, *plan.left_out):
            print(f"  {line}", file=sys.stderr, flush=True)
        worse += runs and best.rate < own.rate
    return worse


def _in_full(mapping: Mapping) -> str:
    """The mapping, where its state is, and its memory proportions."""
    return f"{mapping}, {mapping.state}, {mapping.memory_proportion}"


def _compared(seed: int, case: Case, most: int) -> bool:
    """Print a model's row and return whether some mapping is better than the plan."""
    times = [time.process_time()]
    best = case.plan().best
    times.append(time.process_time())
    every = compile_all(case.call(), case.asked(), most, seed)
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

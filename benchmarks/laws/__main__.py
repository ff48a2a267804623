"""``python -m benchmarks.laws``: hold random cases against the laws and list what breaks them.

python -m benchmarks.laws                        # 200 cases of each kind
python -m benchmarks.laws --cases 2000 --kind softmax --seed 7
python -m benchmarks.laws --rates --cases 100 # how often a user is surprised
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from benchmarks.laws.cases import KINDS, drawn
from benchmarks.laws.laws import LAWS, check
from benchmarks.laws.rates import table
from ipu_exec.machine import TARGETS, Machine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=200, help="of each kind (%(default)s)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind")
    parser.add_argument("--target", choices=TARGETS, default="mk2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rates", action="store_true", help="count surprises, leaving out none")
    parser.add_argument("--worst", type=int, default=0, help="with --rates: name so many of each")
    args = parser.parse_args()
    target = TARGETS[args.target]
    machine, broken = Machine(target, target.tiles), []
    if args.rates:
        kinds = args.kind or list(KINDS)
        print("\n".join(table(args.cases, args.seed, kinds, machine, args.worst)))
        return 0
    start = time.process_time()
    for kind in args.kind or KINDS:
        source = random.Random(f"{kind} {args.seed}")
        for index in range(args.cases):
            broken += check(drawn(kind, source), machine, index)
    for one in broken:
        print(f"{one.law}: {one.case}: {one.said}")
    counts = Counter((one.law, one.case.kind) for one in broken)
    for law in LAWS:
        said = ", ".join(f"{kind} {count}" for (of, kind), count in counts.items() if of == law)
        print(f"{law}: {said or 'kept'}", file=sys.stderr)
    held = args.cases * len(args.kind or KINDS)
    print(f"{held} cases in {time.process_time() - start:.1f} s of CPU", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

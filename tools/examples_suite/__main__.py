"""Compile the applications of graphcore/examples on IPUscope, and say what came of each.

``python -m tools.examples_suite CHECKOUT`` starts each row of applications.toml in its folder under
``ipu-run --compile-only``, on data that is generated, in the environment that has the libraries
which the applications ask for. It goes on where it stopped: ``--outcomes`` names the file that says
what is done. ``--page`` prints docs/graphcore-examples.md of it, without running.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path

from tools.examples_suite.page import page
from tools.examples_suite.running import Application, Outcome, applications, run


def main() -> int:
    """Run the applications or print the page; 1 if one ends at what is not said to be theirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="of graphcore/examples")
    parser.add_argument("names", nargs="*", help="of applications, or parts of them")
    parser.add_argument("--outcomes", type=Path, default=Path("graphcore-examples.jsonl"))
    parser.add_argument("--libraries", type=Path, action="append", default=[], help="on PYTHONPATH")
    parser.add_argument("--seconds", type=int, default=600, help="for each application")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--page", action="store_true", help="print the page; run nothing")
    args = parser.parse_intermixed_args()
    chosen = [
        one
        for one in applications()
        if not args.names or any(part.lower() in one.name.lower() for part in args.names)
    ]
    done = _read(args.outcomes)
    if args.page:
        print(page([(one, done.get(one.name)) for one in chosen], datetime.date.today()))
        return int(any(_left(one, done.get(one.name)) for one in chosen))
    for one in chosen:
        if args.again or one.name not in done:
            outcome = run(one, args.checkout.resolve(), args.libraries, args.seconds)
            done[one.name] = outcome
            with args.outcomes.open("a") as rows:
                rows.write(json.dumps({"name": one.name, **vars(outcome)}) + "\n")
            print(f"{one.verdict(outcome):12} {one.name}: {outcome.last}", flush=True)
    return int(any(_left(one, done.get(one.name)) for one in chosen))


def _read(path: Path) -> dict[str, Outcome]:
    """The last outcome of each application."""
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else iter(())
    return {row.pop("name"): Outcome(**row) for row in rows}


def _left(one: Application, outcome: Outcome | None) -> bool:
    return outcome is None or one.verdict(outcome) == "undecided"


if __name__ == "__main__":
    sys.exit(main())

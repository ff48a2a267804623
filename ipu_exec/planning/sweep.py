"""`ipu-run --sweep`: an ``ipu-run --with`` and a profile for each combination, and a table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from ipu_exec.errors import Error
from ipu_exec.script_levers import parse


def sweep(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Compile every combination; 1 where one failed. Error where a combination makes no sense."""
    settings = [_values(text) for text in args.sweep]
    combinations = [
        ",".join(f"{name}={value}" for name, value in pairs) for pairs in product(*settings)
    ]
    for combination in combinations:
        parse(combination, "--sweep")
    from ipuscope.planner.levers.compile_again import compile_again
    from ipuscope.profiler.analysis.runs import runs, settings_of
    from ipuscope.profiler.provenance import Provenance

    folder = Path(args.profile_dir or "sweep")
    made = Provenance(target=args.target or "", lenient=bool(args.lenient))

    def compiled(levers: str) -> tuple[Path | None, str]:
        return compile_again(words, folder / levers.replace("/", "_"), made, "", levers)

    profiles = []
    with ThreadPoolExecutor(args.workers or 1) as pool:
        for number, (levers, (profile, why)) in enumerate(
            zip(combinations, pool.map(compiled, combinations), strict=True), 1
        ):
            profiles += [profile] if profile else []
            result = why or "compiled"
            print(f"{number} of {len(combinations)}: {levers}: {result}", file=sys.stderr)
    if not profiles:
        return 1
    table, _ = runs(profiles)
    shown = settings_of(table).assign(
        cycles=table["cycles"].map("{:,}".format),
        samples_per_second=table["samples_per_second"].map("{:,.2f}".format).replace("nan", ""),
        fullest_bytes=table["fullest_bytes"].map("{:,}".format),
        memory=["fits" if fits else "out of memory" for fits in table["fits"]],
    )
    print(shown.to_string(index=False))
    place = shlex.quote(str(folder))
    print(
        f"{len(profiles)} profiles are in {folder}: ipu-report runs {place} lists them,"
        f" ipu-report view {place} draws them",
        file=sys.stderr,
    )
    return int(len(profiles) < len(combinations) or not table["fits"].all())


def _values(text: str) -> list[tuple[str, str]]:
    name, _, values = text.partition("=")
    name = name.replace("_", "-") if "." not in name else name
    if not values:
        raise Error(f"--sweep {text!r}: write NAME=VALUE,VALUE, such as micro-batch=1,2,4")
    return [(name, value) for value in values.split(",")]

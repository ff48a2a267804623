"""Profiles read through our own ``pva`` by the importer, compared with the originals by table.

``python -m tools.round_trip`` compiles each example of `examples.models`, tiny, for training on two
IPUs and for inference, imports it, and prints what differs (docs/how-to/real-profiles.md). With
paths it takes these profiles. Status 1 if anything does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import Report, open_report, pva
from ipuscope.profiler.file import records
from ipuscope.profiler.pva.import_profile import import_profile

_MEMORY = ["total_excluding_gaps", "always_live", "not_always_live_peak"]
_AT_WORK = ["tile_balance", "active_tiles"]
_OF_COSTS = {"cycles": ("forward", "backward", "update"), "cuts": ("ahead", "back")}
_OF_OP = ("direction", "module", "file", "line")


def differences(own: Report, other: Report) -> Iterator[str]:
    """How an imported profile differs from its original, in what the vendor's model has."""
    if own.target != other.target:
        yield f"target: {own.target} and {other.target}"
    yield from _operators(own, other)
    yield from _program(own, other)
    yield from _memory(own, other)
    yield from _time(own, other)
    yield from _costs(own, other)


def _operators(own: Report, other: Report) -> Iterator[str]:
    ops, again = (one.ops.sort_values("popart_name") for one in (own, other))
    if ops["popart_name"].tolist() != again["popart_name"].tolist():
        yield f"operators: {len(ops)} and {len(again)}"
        return
    for name in _OF_OP:
        if ops[name].tolist() != again[name].tolist():
            yield f"operators: {name}"
    steps = own.file.table(records.Step)  # code that operators share is the first one's
    shares = steps["op"][(steps["code"] >= 0) & (steps["code"] != steps["id"])]
    if not len(shares) and ops["cycles"].tolist() != again["cycles"].tolist():
        yield "operators: cycles"


def _program(own: Report, other: Report) -> Iterator[str]:
    named = pva.openReport(own.path).compilation.livenessProgramSteps
    theirs = Counter((one.program.name, one.program.type.name) for one in named)
    steps = other.program_steps()
    again = Counter(zip(steps["name"], steps["type"], strict=True))
    joint = {kind for _, kind in again - theirs} <= {records.SYNC, records.GLOBAL_EXCHANGE}
    if theirs - again or not joint:  # a joint step is one there, and one of each IPU here
        yield f"program steps: {len(named)} and {len(steps)}"
    for ipu in range(own.target.ipus_per_replica):
        steps_of = [one.program_steps(ipu) for one in (own, other)]
        compute = [one[one["type"] == records.ON_TILE_EXECUTE][_AT_WORK] for one in steps_of]
        if not np.array_equal(*compute):
            yield f"program steps: tiles at work on IPU {ipu}"


def _memory(own: Report, other: Report) -> Iterator[str]:
    for ipu in range(own.target.ipus_per_replica):
        if not np.array_equal(own.tiles(ipu)[_MEMORY], other.tiles(ipu)[_MEMORY]):
            yield f"memory: tiles of IPU {ipu}"
        live = [set(map(bytes, one.liveness_map(ipu))) for one in (own, other)]
        if not live[0] <= live[1]:  # joint steps are of all IPUs here: more rows, none larger
            yield f"memory: live bytes by step on IPU {ipu}"
        totals = [
            one.variables[one.variables["ipu"] == ipu].groupby("name")["bytes"].sum().to_dict()
            for one in (own, other)
        ]
        if totals[0] != totals[1]:
            yield f"variables: bytes by name on IPU {ipu}"


def _time(own: Report, other: Report) -> Iterator[str]:
    if own.runs["cycles"].tolist() != other.runs["cycles"].tolist():
        yield "runs: cycles"
        return
    for run in own.runs["run"].tolist():
        spent = [one.cycle_proportions(run) for one in (own, other)]
        for frame in spent:  # libpva counts a wait as time of an external sync
            frame["external sync"] += frame.pop("idle")
        if not np.array_equal(*spent):
            yield f"runs: cycles by kind of run {run}"


def _costs(own: Report, other: Report) -> Iterator[str]:
    """Costs of Blocks, which debug contexts of ours state, and what they predict."""
    if not len(own.blocks):
        return
    costs, again = (Costs.from_report(one) for one in (own, other))
    for part, names in _OF_COSTS.items():
        for name in names:
            values = [getattr(getattr(one, part), name).tolist() for one in (costs, again)]
            if values[0] != values[1]:
                yield f"{part} of Blocks: {name}"
    # what a tile sends over a cut, libpva does not say
    linked = replace(costs, cuts=replace(costs.cuts, tiles=again.cuts.tiles))
    present = Assignment.of(costs.stage.tolist(), costs.ipus)
    totals = [what_if(one, present).total for one in (linked, again)]
    if totals[0] != totals[1]:
        yield f"cycles of the profiled split: {totals[0]:,} and {totals[1]:,}"


def compiled(name: str, training: bool, folder: Path) -> Path:
    """The profile of a tiny example, on two IPUs."""
    import ipu_exec
    from examples.models import build, split

    example = build(name, tiny=True)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
    options.showCompilationProgressBar(False).setExecutionStrategy(split(example, 2))
    if not training:
        options.deviceIterations(4)
        model = ipu_exec.inferenceModel(example.module.eval(), options)
        model.compile(*example.inputs(4 * example.micro_batch))
        return folder / "inference" / "profile.pop"
    options.Training.gradientAccumulation(8)
    optimizer = ipu_exec.optim.AdamW(example.module.parameters(), lr=0.1)
    model = ipu_exec.trainingModel(example.module, options, optimizer)
    model.compile(*example.inputs(8 * example.micro_batch))
    return folder / "training" / "profile.pop"


def round_trip(path: Path, folder: Path) -> list[str]:
    """What differs after a profile was imported."""
    import_profile(pva, path, folder / "imported.pop")
    with open_report(path) as own, open_report(folder / "imported.pop") as other:
        return list(differences(own, other))


def main() -> int:
    """Print a line a profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profiles", nargs="*", type=Path)
    asked = parser.parse_args().profiles
    from examples.models import NAMES

    wrong = 0
    for name in map(str, asked or NAMES):
        for training in (True,) if asked else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(name) if asked else compiled(name, training, Path(folder))
                found = round_trip(path, Path(folder))
            wrong += bool(found)
            kind = "" if asked else ", training" if training else ", inference"
            print(f"{name}{kind}: {'; '.join(found) or 'the same'}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

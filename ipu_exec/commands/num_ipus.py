"""The mapping that `ipu-run --num-ipus` chooses: the fastest by the profile of one compile."""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from ipu_exec.commands.program import NOTHING_WRAPPED, WARNING, Program
from ipu_exec.errors import Error
from ipu_exec.option_groups.engine_options import PROPOSE_VARIABLE
from ipu_exec.script_levers import asked
from ipu_exec.session.proposed_blocks import script_lines
from ipuscope.profiler.units import count, per_second
from ipuscope.waiting import EVERY_VARIABLE, PROGRESS_LINE, Say, waiting

if TYPE_CHECKING:
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.levers.levers import Basis
    from ipuscope.planner.mappings import Plan

_MOST_LINES = 8  # of a compile's error that are repeated
_MOST_BLOCK_LINES = 24  # a line a Block; with more Blocks, a line a stage


def placement_for(ipus: int, program: Program, arguments: Sequence[str], alone: bool) -> str:
    """The path of a placement of the script's Blocks, or layers, on that many IPUs.

    The file lasts as long as this process. ``alone``: no other instance shares its replicas. Error
    if the script does not compile or nothing fits.
    """
    from ipuscope.planner.advice.relief import way_to_fit
    from ipuscope.planner.levers.levers import Basis
    from ipuscope.planner.mappings.plan_file import save
    from ipuscope.planner.search.refusal import nearest_in_words
    from ipuscope.profiler import ProfileError, open_report

    folder = tempfile.TemporaryDirectory(prefix="ipu-run-")
    atexit.register(folder.cleanup)
    profile = _compiled(ipus, program, arguments, folder.name)
    try:
        with (
            waiting(f"ipu-run: the quickest mapping onto {ipus} IPUs") as say,
            open_report(profile) as report,
        ):
            basis = Basis.of(report)
            costs, modules = basis.costs, tuple(report.options.get("proposedBlocks", ()))
            try:
                made = replace(_chosen(basis, ipus, alone, say), modules=modules)
            except ValueError as error:
                near = nearest_in_words(costs, range(ipus))
                words = f"{error}{near}. {way_to_fit(report, ipus)}"
                raise Error(f"--num-ipus {ipus}: {words}") from error
    except (ValueError, ProfileError) as error:
        raise Error(f"--num-ipus {ipus}: {error}") from error
    again = shlex.join(["ipu-run", "--tune", str(ipus), *program.words, *arguments])
    for line in _choice_lines(costs, made, ipus, again):
        print(line, file=sys.stderr)
    return str(save(made, os.path.join(folder.name, "placement.json")))


def _chosen(basis: Basis, ipus: int, alone: bool, say: Say) -> Plan:
    """The mapping that the profile promises most of; the training stays what the script has.

    So do a micro-batch over which batch norms take their statistics, replicas that are the
    script's or of several instances, and what ``--with`` says.
    """
    from ipu_exec.machine import target
    from ipu_exec.planning.engine import RingsOnTarget
    from ipuscope.planner.levers.registry import cuts
    from ipuscope.planner.mappings.from_profile import best_by_profile

    levers, report = asked(), basis.report
    every_n = "EveryN" in str(report.options.get("outputMode"))
    fixed: dict[str, Any] = {}
    if basis.costs.replicas > 1 or not alone or every_n or levers.micro_batches:
        fixed["r"] = basis.costs.replicas
    if every_n or levers.micro_batches:
        fixed["accumulation"] = basis.costs.micro_batches
    if levers.recompute:
        fixed["recompute"] = levers.recompute == "yes"
    if levers.state:
        fixed["state"] = levers.state == "off-chip"
    norms = basis.costs.training and report.ops["aten"].str.contains("batch_norm").any()
    sizes = [] if norms or levers.micro_batch else [size for size, _ in cuts(basis, 1)]
    rings = RingsOnTarget(target(report.target.name))
    return best_by_profile(basis, ipus, rings, sizes, fixed, lambda news: say(news.what))


def _compiled(ipus: int, program: Program, arguments: Sequence[str], folder: str) -> str:
    """The path of the profile of a compile of the script, with so many stages' Blocks."""
    child = "import sys; from ipu_exec.commands.run import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", child, "--compile-only", "--profile-dir", folder]
    # What this process imports from where, its child does too, wherever it was started.
    here = os.pathsep.join([path for path in sys.path if path])
    environment = {
        **os.environ,
        "PYTHONPATH": here,
        PROPOSE_VARIABLE: str(ipus),
        EVERY_VARIABLE: "1",
    }
    with (
        waiting("ipu-run: the Blocks' costs") as say,
        subprocess.Popen(
            [*command, *program.words, *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process,
    ):
        say("running the script")
        stderr = _relayed(process, say)
    for kind in ("training", "inference"):
        path = os.path.join(folder, kind)
        if os.path.isdir(path):
            return path
    if NOTHING_WRAPPED in stderr:
        raise Error(f"--num-ipus {ipus}: {program} {NOTHING_WRAPPED}")
    why = _last_words(stderr) or "it compiled no model"
    raise Error(f"--num-ipus {ipus}: {program} left no profile to choose stages by: {why}")


def _relayed(process: subprocess.Popen[str], say: Say) -> str:
    """A compile's standard error; its progress, and what `ipu-run` reports, is passed on."""
    lines, told = [], False
    assert process.stderr is not None
    for line in process.stderr:
        progress = PROGRESS_LINE.fullmatch(line.rstrip())
        if progress is not None:
            say(progress.group(1))
            continue
        lines.append(line)
        told = line.startswith(WARNING) or (told and line in f"{NOTHING_WRAPPED}\n")
        if told:
            print(line, end="", file=sys.stderr)
    return "".join(lines)


def _last_words(stderr: str) -> str:
    """The message of an exception behind its traceback, whose lines are indented."""
    backwards = reversed(stderr.strip().splitlines())
    last = takewhile(lambda line: not line.startswith(" "), backwards)
    return "\n".join(reversed([*islice(last, _MOST_LINES)]))


def _choice_lines(costs: Costs, made: Plan, ipus: int, again: str) -> Iterator[str]:
    """The choice, what only a compile knows of it, and the script lines for it."""
    from ipuscope.planner.predict.memory_verdict import Answer

    best, mapping, own = made.best, made.best.mapping, costs.samples // costs.replicas
    stages = " | ".join(", ".join(stage.blocks) for stage in mapping.stages)
    turn = "a weight update" if costs.training else "a device iteration"
    yield (
        f"ipu-run: on {count(ipus, 'IPU')}: {stages} ({mapping}: {best.cycles:,} cycles {turn},"
        f" {per_second(best.rate)} samples/s predicted)"
    )
    used = mapping.attached // (mapping.shards * (mapping.replicas if costs.replicas > 1 else 1))
    if used < ipus:
        free = f"{count(ipus - used, 'IPU')} {'is' if ipus - used == 1 else 'are'} free"
        yield f"ipu-run: {free}: no mapping onto more is quicker, by the costs of this one compile"
    if best.memory != Answer.FITS:
        yield f"ipu-run: memory: {best.memory}. {again} compiles before it chooses"
    elif mapping.micro_batch != own or (mapping.accumulation == 1) != (costs.micro_batches == 1):
        yield (
            f"ipu-run: these are estimates, by a profile of micro-batch {own} x"
            f" {costs.micro_batches}: {again} compiles before it chooses"
        )
    ties = costs.cuts.ties
    for one in ties.parted([stage.ipu for stage in mapping.stages for _ in stage.blocks]):
        weight = f"{ties.names[one]} travels between IPUs: {ties.nbytes[one]:,} bytes"
        yield f"ipu-run: the tied weight {weight}"
    ipus_of = [stage.ipu for stage in mapping.stages]
    for stage, ipu in enumerate(ipus_of):
        if ipu in ipus_of[:stage]:
            names = ", ".join(ties.names)
            tied = f", with the tied weight {names}" if names else ""
            yield f"ipu-run: stage {stage} is on IPU {ipu} again{tied}: quicker so"
    if made.modules:
        yield from _script_lines(made, costs.training)


def _script_lines(made: Plan, training: bool) -> Iterator[str]:
    """The lines that give a script without Blocks this mapping."""
    mapping = made.best.mapping
    blocks = list(made.blocks)
    ipus_of = [stage.ipu for stage in mapping.stages for _ in stage.blocks]
    what = "these lines put them into the script"
    if len(blocks) > _MOST_BLOCK_LINES:
        what = f"it has {len(blocks)} parts to begin one, of which these lines begin the stages"
        blocks = [stage.blocks[0] for stage in mapping.stages]
        ipus_of = [stage.ipu for stage in mapping.stages]
    elif len(mapping.stages) == 1:
        what, blocks, ipus_of = "one IPU has all its layers, and these lines the rest", [], []
    yield f"ipu-run: the model names no Blocks; {what}, before it is wrapped (model: your module):"
    lines = [*script_lines(blocks, ipus_of, mapping.accumulation, training)]
    lines += [f"options.replicationFactor({mapping.replicas})"] * (mapping.replicas > 1)
    yield from (f"  {line}" for line in lines or ["(none)"])

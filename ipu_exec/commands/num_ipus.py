"""The placement that `ipu-run --num-ipus` chooses: the fastest by the profile of a compile."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from ipu_exec.commands.program import NOTHING_WRAPPED, WARNING, Program
from ipu_exec.errors import Error
from ipu_exec.option_groups.engine_options import PROPOSE_VARIABLE
from ipu_exec.session.proposed_blocks import script_lines
from ipuscope.profiler.timeline import closed_forms
from ipuscope.waiting import EVERY_VARIABLE, PROGRESS_LINE, Say, waiting

if TYPE_CHECKING:
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.search.split_search import Split

_MOST_LINES = 8  # of a compile's error that are repeated
_MOST_BLOCK_LINES = 24  # a line a Block; with more Blocks, a line a stage


def placement_for(ipus: int, program: Program, arguments: Sequence[str]) -> str:
    """The path of a placement of the script's Blocks, or layers, on that many IPUs.

    The file lasts as long as this process. Error if the script does not compile or nothing fits.
    """
    from ipuscope.planner.advice.relief import way_to_fit
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.search.near_fits import or_close
    from ipuscope.planner.search.refusal import nearest_in_words
    from ipuscope.profiler import ProfileError, open_report

    folder = tempfile.TemporaryDirectory(prefix="ipu-run-")
    atexit.register(folder.cleanup)
    profile = _compiled(ipus, program, arguments, folder.name)
    try:
        with (
            waiting(f"ipu-run: the quickest split onto {ipus} IPUs"),
            open_report(profile) as report,
        ):
            costs = Costs.from_report(report)
            modules = list(report.options.get("proposedBlocks", ()))
            if modules and len(costs) < ipus:
                raise Error(f"--num-ipus {ipus}: {_too_few_parts(costs)}")
            try:
                split = or_close(costs, lambda on_tiles: quickest(on_tiles, ipus))
            except ValueError as error:
                near = nearest_in_words(costs, range(ipus), levers=True)
                raise Error(
                    f"--num-ipus {ipus}: {error}{near}. {way_to_fit(report, ipus)}"
                ) from error
    except (ValueError, ProfileError) as error:
        raise Error(f"--num-ipus {ipus}: {error}") from error
    if split.prediction.problems:
        problems = "; ".join(split.prediction.problems)
        raise Error(f"--num-ipus {ipus}: {problems}{_more_samples(costs, ipus)}")
    path = os.path.join(folder.name, "placement.json")
    _write(path, costs, split, modules)
    for line in _choice_lines(costs, split, ipus, modules):
        print(line, file=sys.stderr)
    return path


def _too_few_parts(costs: Costs) -> str:
    """Why a model without Blocks has too few to begin any, and what to write."""
    parts = ", ".join(costs.names)
    return (
        f"the model names no Blocks, and has {len(costs)} parts that could be one: {parts}. Take at"
        f" most {len(costs)} IPUs, or make a large part several modules that are called one after"
        " another (a recurrent layer of several layers is one module)"
    )


def _more_samples(costs: Costs, ipus: int) -> str:
    """What to do about too few micro-batches for the stages; "" where they are enough."""
    least = closed_forms.pipeline_stages(ipus, costs.training)
    if not costs.pipelined or costs.micro_batches >= least:
        return ""
    fewer = max(
        count
        for count in range(1, ipus + 1)
        if closed_forms.pipeline_stages(count, costs.training) <= max(1, costs.micro_batches)
    )
    return (
        f". The samples of a call make no more: give it {least}, or a multiple of that, or take"
        f" --num-ipus {fewer}. Where an input is not a batch of samples (the edges of a graph),"
        " only options.setExecutionStrategy(poptorch.ShardedExecution()) goes without micro-batches"
    )


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


def quickest(costs: Costs, ipus: int) -> Split:
    """The fastest split onto that many IPUs, one stage each or with one that comes back.

    `ipu-report rebalance`'s search: nothing that overflows while another fits; ValueError if
    none.
    """
    from ipuscope.planner.search.split_search import best_split, quickest_split, returning

    lists = [tuple(range(ipus)), *returning(ipus, costs)]
    try:
        return quickest_split(costs, lists)
    except ValueError:
        return best_split(costs, ipus)  # why one stage an IPU does not fit, or cannot run


def travelling(costs: Costs, split: Split) -> list[tuple[str, int]]:
    """The tied weights that Blocks on several IPUs read: names, and bytes."""
    assignment, ties = split.prediction.assignment, costs.cuts.ties
    ipu_of = [assignment.ipus[stage] for stage in assignment.stage_of(len(costs))]
    weights = zip(ties.names, ties.nbytes, ties.blocks, strict=True)
    return [
        (name, nbytes)
        for name, nbytes, blocks in weights
        if len({ipu_of[block] for block in blocks}) > 1
    ]


def _write(path: str, costs: Costs, split: Split, modules: Sequence[str]) -> None:
    from ipuscope.planner.predict.what_if import placement_file

    content = placement_file(costs, split.prediction.assignment)
    content.pop("accumulation", None)  # a call's samples stay as many: they are cut into more
    content["proposed"] = {"modules": list(modules), "micro_batches": costs.micro_batches}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def _choice_lines(costs: Costs, split: Split, ipus: int, modules: Sequence[str]) -> Iterator[str]:
    """The choice, and the script lines for it."""
    from ipuscope.planner.predict.memory_verdict import Answer

    assignment = split.prediction.assignment
    spans = assignment.spans(len(costs))
    stages = " | ".join(", ".join(costs.names[first : last + 1]) for first, last in spans)
    total = split.prediction.total
    turn = "a weight update" if costs.training else "a device iteration"
    yield f"ipu-run: on {ipus} IPUs: {stages} ({total:,} cycles {turn} predicted)"
    fullest = min(split.prediction.memory, key=lambda one: one.free)
    if fullest.answer is not Answer.FITS:
        yield (
            f"ipu-run: the memory of IPU {fullest.ipu} is {fullest}. ipu-run --tune {ipus} also"
            " tries other micro-batches, replicas and recomputation"
        )
    for name, nbytes in travelling(costs, split):
        yield f"ipu-run: the tied weight {name} travels between IPUs: {nbytes:,} bytes"
    for stage, ipu in enumerate(assignment.ipus):
        if ipu in assignment.ipus[:stage]:
            names = ", ".join(costs.cuts.ties.names)
            tied = f", with the tied weight {names}" if names else ""
            yield f"ipu-run: stage {stage} is on IPU {ipu} again{tied}: quicker so"
    if not modules:
        return
    ipu_of = [assignment.ipus[stage] for stage in assignment.stage_of(len(costs))]
    chosen = list(range(len(costs)))
    what = "these lines put them into the script"
    if len(chosen) > _MOST_BLOCK_LINES:
        chosen = list(assignment.starts)
        what = f"it has {len(costs)} parts to begin one, of which these lines begin the stages"
    yield f"ipu-run: the model names no Blocks; {what}, before it is wrapped (model: your module):"
    blocks, ipus_of = [costs.names[k] for k in chosen], [ipu_of[k] for k in chosen]
    lines = script_lines(blocks, ipus_of, costs.micro_batches, costs.training)
    yield from (f"  {line}" for line in lines)

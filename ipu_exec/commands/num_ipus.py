"""`ipu-run --num-ipus`: the script's own plan onto so many IPUs, made before it runs."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_exec.commands.program import NOTHING_WRAPPED, WARNING, Program
from ipu_exec.errors import Error
from ipu_exec.option_groups.engine_options import KEEP_VARIABLE
from ipu_exec.session.proposed_blocks import script_lines
from ipuscope.profiler.provenance import LIGHTNING
from ipuscope.profiler.units import count, per_second
from ipuscope.waiting import EVERY_VARIABLE, PROGRESS_LINE, Say, waiting

if TYPE_CHECKING:
    from ipuscope.planner.mappings import Plan

_MOST_LINES = 8  # of a plan's error that are repeated
_MOST_BLOCK_LINES = 24  # a line a Block; with more Blocks, a line a stage
_CHILD = "import sys; from ipu_exec.commands.run import main; sys.exit(main(sys.argv[1:]))"


def placement_for(ipus: int, program: Program, arguments: Sequence[str], alone: bool) -> str:
    """The path of the plan of the script's Blocks, or layers, onto that many IPUs.

    It is what ``ipu-run --plan`` finds, but that outputs, replicas and micro-batches stay which the
    script or ``--with`` names. The file lasts as long as this process. ``alone``: no other instance
    shares its replicas. Error if the script does not compile or nothing fits.
    """
    from ipuscope.planner.mappings import PlanError, load

    folder = tempfile.TemporaryDirectory(prefix="ipu-run-")
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "placement.json"
    _plan(ipus, program, arguments, file, alone)
    try:
        made = load(file)
    except PlanError as error:
        raise Error(f"--num-ipus {ipus}: {error}") from error
    for line in _choice_lines(made, ipus):
        print(line, file=sys.stderr)
    return str(file)


def _plan(ipus: int, program: Program, arguments: Sequence[str], file: Path, alone: bool) -> None:
    """Have a process of its own plan the script's first call, and write the plan."""
    command = [sys.executable, "-c", _CHILD, "--plan", str(ipus), "--write", str(file)]
    # What this process imports from where, its child does too, wherever it was started.
    here = os.pathsep.join([path for path in sys.path if path])
    keep = "alone" if alone else "instances"
    environment = {**os.environ, "PYTHONPATH": here, KEEP_VARIABLE: keep, EVERY_VARIABLE: "1"}
    with (
        waiting(f"ipu-run: the quickest mapping onto {count(ipus, 'IPU')}") as say,
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
    if process.returncode == 0 and file.is_file():
        return
    if NOTHING_WRAPPED in stderr:
        raise Error(f"--num-ipus {ipus}: {program} {NOTHING_WRAPPED}")
    why = _last_words(stderr) or f"{program} called no wrapped model"
    raise Error(f"--num-ipus {ipus}: {why.removeprefix('ipu-run: --plan: ')}")


def _relayed(process: subprocess.Popen[str], say: Say) -> str:
    """A plan's standard error; its progress, and what `ipu-run` reports, is passed on."""
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


def _choice_lines(made: Plan, ipus: int) -> Iterator[str]:
    """The choice, and the script lines for it."""
    best, mapping = made.best, made.best.mapping
    stages = " | ".join(", ".join(stage.blocks) for stage in mapping.stages)
    how = "compiled" if best.off is not None else f"predicted; memory: {best.memory}"
    yield (
        f"ipu-run: on {count(ipus, 'IPU')}: {stages} ({mapping}: {per_second(best.rate)} samples/s"
        f" {how}, the best of {count(made.compiles + made.cached, 'compile')})"
    )
    if mapping.attached < ipus:
        yield (
            f"ipu-run: no quicker mapping was found onto more than {count(mapping.attached, 'IPU')}"
        )
    yield from (f"ipu-run: {note}" for note in made.notes)
    if made.modules:
        yield from _script_lines(made, made.question.training)


def _script_lines(made: Plan, training: bool) -> Iterator[str]:
    """The lines that give a script without Blocks this mapping."""
    from ipuscope.planner.levers.script_lines import in_lightning, location_line

    mapping = made.best.mapping
    blocks = list(made.blocks)
    ipus_of = [stage.ipu for stage in mapping.stages for _ in stage.blocks]
    what = "these lines put them into the script"
    if len(blocks) > _MOST_BLOCK_LINES:
        what = f"{len(blocks)} of its parts may begin one, and these lines begin the stages"
        blocks = [stage.blocks[0] for stage in mapping.stages]
        ipus_of = [stage.ipu for stage in mapping.stages]
    elif len(mapping.stages) == 1:
        what, blocks, ipus_of = "one IPU has all its layers, and these lines the rest", [], []
    yield f"ipu-run: the model names no Blocks; {what}, before it is wrapped (model: your module):"
    lines = [*script_lines(blocks, ipus_of, mapping.accumulation, training)]
    lines += [f"options.replicationFactor({mapping.replicas})"] * (mapping.replicas > 1)
    if shares := mapping.proportions:
        by_ipu = {f"IPU{ipu}": share for ipu, share in sorted(shares.items())}
        lines.append(f"options.setAvailableMemoryProportion({json.dumps(by_ipu)})")
    if mapping.in_parts or mapping.state == "off chip":
        lines += location_line("in-parts" if mapping.in_parts else "off-chip").splitlines()
    if mapping.again:
        lines.append('options._Popart.set("autoRecomputation", 1)  # RecomputationType.Standard')
    shown = in_lightning(lines) if made.trainer == LIGHTNING else lines
    yield from (f"  {line}" for line in shown)
    some = mapping.recomputation != "none" and not mapping.again
    if some or "off chip in" in mapping.state:
        yield "ipu-run: some stages also recompute or keep state off the chip: --tune writes how"

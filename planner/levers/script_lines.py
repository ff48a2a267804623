"""The lines of a script for the place of optimiser state and for its stages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.settings import IO_TILES
from ipuscope.planner.predict.what_if import Assignment

LINE = 72  # characters: with a margin it fits a terminal
_INDENT = "    "
_FEW_STAGES = 16  # up to here each has a line of its own
_WHOLE_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]*)(?![0-9])")


def location_line(state: str) -> str:
    """The statement that keeps optimiser state "on-chip", "off-chip" or "in-parts"."""
    call = (
        "useReplicatedTensorSharding(True)"
        if state == "in-parts"
        else f"useOnChipStorage({state == 'on-chip'})"
    )
    settings = f"poptorch.TensorLocationSettings().{call}"
    return f"options.TensorLocations.setOptimizerLocation(\n{_INDENT}{settings}\n)"


def overlap_lines(training: bool) -> str:
    """The statements that let I/O tiles move inputs and outputs beside other iterations."""
    several = "options.deviceIterations(2)  # or more\n" * training
    return (
        "options.setExecutionStrategy(poptorch.ShardedExecution())\n"
        f"options.outputMode(poptorch.OutputMode.All)\n{several}"
        f"options.TensorLocations.numIOTiles({IO_TILES})\n"
        "loop = poptorch.OverlapMode.OverlapDeviceIterationLoop\n"
        "x = poptorch.set_overlap_for_input(x, loop)  # each input, first in forward\n"
        "return poptorch.set_overlap_for_output(y, loop)  # each output"
    )


_IN_LIGHTNING = (
    (r"options\.Training\.gradientAccumulation\((\d+)\)", r"Trainer(accumulate_grad_batches=\1)"),
    (r"options\.deviceIterations\((\d+)\)", r"IPUStrategy(device_iterations=\1)"),
    (r"poptorch\.DataLoader\(options, (.*)\)", r"DataLoader(\1)"),
    (r"model\.half\(\).*", 'Trainer(precision="16-true")'),
)


def in_lightning(lines: Sequence[str]) -> tuple[str, ...]:
    """Statements for a PopTorch script, as they are for one whose loop is Lightning's."""
    for pattern, there in _IN_LIGHTNING:
        lines = [re.sub(f"^{pattern}$", there, line) for line in lines]
    options = any(line.startswith("options.") for line in lines)
    return (*lines, *["Trainer(strategy=IPUStrategy(training_opts=options))"] * options)


def stages_line(costs: Costs, assignment: Assignment) -> str:
    """The Stage list of a split, in lines of at most `LINE` characters except for longer names."""
    spans = zip(assignment.spans(len(costs)), assignment.ipus, strict=True)
    named = [(tuple(costs.names[first : last + 1]), ipu) for (first, last), ipu in spans]
    if len(named) > _FEW_STAGES:
        stages = list(_folded(named))
    else:
        stages = [_stage(list(map(repr, names)), str(ipu)) for names, ipu in named]
    kind = "PipelinedExecution" if costs.pipelined else "ShardedExecution"
    call = f"options.setExecutionStrategy(poptorch.{kind}("
    line = f"{call}{', '.join(stages)}))"
    if len(line) <= LINE:
        return line
    below = "\n".join(f"{stage}," for stage in stages)
    return f"{call}\n{textwrap.indent(below, _INDENT)}\n))"


def _folded(stages: Sequence[tuple[tuple[str, ...], int]]) -> Iterator[str]:
    """Stages as arguments of a strategy; those numbered like their IPUs as one."""
    at = 0
    while at < len(stages):
        count, names = _numbered(stages[at:])
        first = stages[at][1]
        loop = f"for ipu in range({first}, {first + count})"
        one = _stage(names, "ipu") if names else ""
        line = f"*({one} {loop})"
        if "\n" in line or len(line) > LINE - len(_INDENT) - 1:
            below = textwrap.indent(f"{one}\n{loop}", _INDENT)
            line = f"*(\n{below}\n)"
        if count > len(line.splitlines()):
            yield line
            at += count
        else:
            yield _stage(list(map(repr, stages[at][0])), str(first))
            at += 1


def _numbered(stages: Sequence[tuple[tuple[str, ...], int]]) -> tuple[int, list[str]]:
    """How many of the first stages have names that a formula over ``ipu`` gives; the formulas.

    The IPUs are consecutive, and each number in a name rises or falls evenly with them.
    """
    if len(stages) < 2:
        return 1, []
    texts, numbers = zip(*(_parts(names) for names, _ in stages[:2]), strict=True)
    base = stages[0][1]
    if texts[0] != texts[1] or len(numbers[0]) != len(numbers[1]):
        return 1, []
    steps = [then - now for now, then in zip(*numbers, strict=True)]
    count = 1
    for names, ipu in stages[1:]:
        due = [now + count * step for now, step in zip(numbers[0], steps, strict=True)]
        if ipu != base + count or _parts(names) != (texts[0], due):
            break
        count += 1
    formulas = [
        _linear(step, now - step * base) for step, now in zip(steps, numbers[0], strict=True)
    ]
    filled = iter(formulas)
    return count, [
        f"f{''.join(text + (next(filled) if at else '') for text, at in parts)!r}"
        for parts in texts[0]
    ]


def _parts(names: Sequence[str]) -> tuple[list[list[tuple[str, bool]]], list[int]]:
    """Names as text and whether a number follows; the numbers. A leading zero makes it text."""
    texts, numbers = [], []
    for name in names:
        numerals = list(_WHOLE_NUMBER.finditer(name))
        starts = [0, *(one.end() for one in numerals)]
        ends = [*(one.start() for one in numerals), len(name)]
        pieces = [
            name[a:b].replace("{", "{{").replace("}", "}}")
            for a, b in zip(starts, ends, strict=True)
        ]
        texts.append([(piece, at < len(numerals)) for at, piece in enumerate(pieces)])
        numbers += [int(one[0]) for one in numerals]
    return texts, numbers


def _linear(step: int, offset: int) -> str:
    """The f-string expression for ``step * ipu + offset``."""
    if not step:
        return str(offset)
    times = "ipu" if step == 1 else f"{step} * ipu"
    sign = "-" if offset < 0 else "+"
    return f"{{{times}{f' {sign} {abs(offset)}' if offset else ''}}}"


def _stage(names: Sequence[str], ipu: str) -> str:
    """A stage of Blocks, whose names and IPU are expressions."""
    line = f"poptorch.Stage({', '.join(names)}).ipu({ipu})"
    room = LINE - len(_INDENT) - 1
    if len(line) <= room:
        return line
    below = "\n".join(f"{row}," for row in _rows(names, room - len(_INDENT) - 1))
    return f"poptorch.Stage(\n{textwrap.indent(below, _INDENT)}\n).ipu({ipu})"


def _rows(words: Sequence[str], room: int) -> list[str]:
    """Words with commas between them, in rows of at most ``room`` characters."""
    rows = [words[0]]
    for word in words[1:]:
        longer = f"{rows[-1]}, {word}"
        if len(longer) <= room:
            rows[-1] = longer
        else:
            rows.append(word)
    return rows

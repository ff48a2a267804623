"""A plan on the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from ipu_exec.planning.terminal import show, tuned
from ipuscope.planner.mappings import Obtained, StagePlan
from ipuscope.profiler.provenance import LIGHTNING
from tests.planner.test_plan_file import plan


def test_on_80_columns_nothing_is_cut() -> None:
    best, *others = plan().candidates
    counts = (1, *[2] * 9, *[1] * 6)
    stages = tuple(
        StagePlan(ipu, tuple(f"B{ipu}.{number}" for number in range(count)))
        for ipu, count in enumerate(counts)
    )
    many = replace(best, mapping=replace(best.mapping, stages=stages))
    console = Console(width=80, file=io.StringIO())
    came = Obtained(problem="[/a.py:92]")
    others = [replace(others[0], obtained=came), *others[1:]]
    long = f"{'of a sentence there are so many words ' * 6}{'-'.join('7' * 60)}"
    shown = replace(
        plan(), candidates=(many, *others), why=(long,), notes=(f"[x] {long}",), left_out=(long,)
    )
    show(shown, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed
    wide = Console(width=160, file=io.StringIO())
    show(shown, wide)
    prose = [line for line in wide.file.getvalue().splitlines() if "a sentence" in line]  # type: ignore[attr-defined]
    assert 80 < max(map(len, prose)) <= 100
    lines = printed.splitlines()
    split = "-".join("7" * 60)  # a word is whole, so that it can be copied
    assert {line.strip() for line in lines if len(line) > 80} == {split}
    head = printed[: printed.index("─")]
    assert all(words in head for words in ("samples", "accumu-", "lation", "KiB"))  # not folded
    assert "1-9x2" in printed and "[/a.py:92]" in wide.file.getvalue()
    said = " ".join(printed.split())
    assert all(words in said for words in (f"- {long}", f"- [x] {long}", f"tried: {long}"))
    assert all(line.startswith(("- ", "  ")) for line in lines if "a sentence" in line)


def test_a_trainer_is_told_its_own_lines() -> None:
    halved = replace(plan(), levers="half,outputs=loss,overlap")
    ours, its = (
        "\n".join(tuned([one], ["run"])) for one in (halved, replace(halved, trainer=LIGHTNING))
    )
    assert "write: model.half()" in ours and "Trainer" not in ours
    assert "OutputMode.Final" not in ours and ours.count("outputMode") == 1  # overlap's, All
    assert 'write: Trainer(precision="16-true")' in its
    assert its.endswith("write: Trainer(strategy=IPUStrategy(training_opts=options))")


def test_what_the_script_has_already_is_not_advised() -> None:
    said, already = (
        "\n".join(tuned([replace(plan(), overlaps=on)], ["run"])) for on in (False, True)
    )
    assert "--allow half,outputs,overlap plans\nwith half" in said
    assert "--allow half,outputs plans\nwith half" in already and "host I/O" not in already

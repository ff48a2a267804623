"""What is repeated: groups of what is built alike, and why some take longer than the median."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.analysis import regions as of
from ipuscope.profiler.analysis.regions import BY, regions
from ipuscope.reports.cli import main
from ipuscope.viewer.figures.peak import spread
from ipuscope.viewer.figures.theme import LIGHT
from ipuscope.viewer.figures.units import Clock

_STEP = ("stage", "direction", "op", "cause", "name", "times", "cycles")


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Four layers on four stages: the last computes longer, and its stage loads a weight."""
    rows = []
    for at in range(4):
        rows.append((at, "forward", at, "compute", f"layer.{at}/mm", 8, 100 + 20 * (at == 3)))
        rows.append((at, "forward", at, "exchange on chip", f"layer.{at}/mm/in", 8, 50))
        rows.append((at, "forward", -1, "copy between IPUs", f"to {at}", 8, 10))
    rows.append((3, "forward", -1, "streaming memory", "w/load", 8, 40))
    steps = pd.DataFrame(rows, columns=pd.Index(_STEP))
    names = [f"layer{at}" for at in range(4)]
    monkeypatch.setattr(of, "cycles_by_step", lambda report: steps)
    monkeypatch.setattr(of, "equal_blocks", lambda report: dict.fromkeys(names, "layer0"))
    ops = pd.DataFrame(
        {"block_name": names, "file": "/home/me/bert.py", "line": 12, "module": names}
    ).assign(direction="forward", aten="aten.mm", flops=1)
    blocks = pd.DataFrame({"name": names, "stage": range(4)})
    return SimpleNamespace(ops=ops, blocks=blocks, runs=[0])


def test_a_slow_block_is_said_with_the_step_that_makes_it_slow(layers: Any) -> None:
    for by in ("block", "line", "module"):
        found = regions(layers, by)
        assert found.groups[["count", "least", "median", "most"]].values.tolist() == [
            [4, 150, 150.0, 170]
        ]
        assert found.things["name"].iloc[0] == "bert.py:12 in layer3" if by == "line" else "layer3"
        assert found.slow["why"].tolist() == [
            "compute, 20 cycles more than in layer1; most in layer.3/mm"
        ]
    assert set(regions(layers, "line").groups["group"]) == {"bert.py:12 in layer0"}


def test_modules_of_one_pattern_that_do_other_work_are_not_compared(layers: Any) -> None:
    layers.ops = layers.ops.assign(flops=[1, 1, 2, 2])
    found = regions(layers, "module")
    assert found.groups[["group", "count"]].values.tolist() == [["layer0", 2], ["layer2", 2]] or (
        found.groups[["group", "count"]].values.tolist() == [["layer2", 2], ["layer0", 2]]
    )
    assert found.slow["name"].tolist() == ["layer3"]


def test_stages_have_their_transfers_and_the_largest_cause_is_said(layers: Any) -> None:
    found = regions(layers, "stage")
    assert found.things["cycles"].tolist() == [220, 160, 160, 160]
    (why,) = found.slow["why"]
    assert why.startswith("streaming memory, 40") and why.endswith(
        "most in w/load, of which stage 1 has none"
    )
    assert found.words.endswith("; 1 slower than their group's median.")


def test_micro_batches_last_from_their_first_task_to_the_end_of_their_last(demo: Path) -> None:
    with open_report(demo / "training") as report:
        tasks = report.tasks(0, iteration=0).query("micro_batch >= 0 and kind != 'idle'")
        found = regions(report, "micro-batch").things
        for number, own in tasks.groupby("micro_batch"):
            (cycles,) = found.loc[found["name"] == f"micro-batch {number}", "cycles"]
            assert cycles == own["end"].max() - own["start"].min()
        middle = float(found["cycles"].sort_values().iloc[(len(found) - 1) // 2])
        assert ((found["why"] != "") == (found["cycles"] > 1.001 * middle)).all()
        figure = spread(regions(report, "micro-batch"), Clock(1e9), LIGHT)
        assert len(figure.data[0]["x"]) == len(found)


def test_the_command_compares_and_refuses_what_there_is_not(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for by in BY:
        assert main(["ops", "--alike", by, str(demo / "training")]) == 0
    said = capsys.readouterr().out
    assert "10 in 1 group are built alike" in said and "waits" in said
    with open_report(demo / "training") as report, pytest.raises(ValueError, match="'tile'"):
        regions(report, "tile")
    for by in BY:
        assert not len(regions(SimpleNamespace(runs=[]), by).things), "without a schedule"

"""The examples of pods compile and fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ipu_exec as poptorch
from examples import bert_large_pod16, gpt3_175b
from ipuscope.profiler import analysis, open_report
from ipuscope.reports import cli
from ipuscope.reports.cli import pod as pod_command


def test_gpt3_over_shards_stages_and_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt3_175b.main(["--pod", "16", "--tiny", "--layers", "4", "--profile-dir", str(tmp_path)])
    report = open_report(tmp_path / "training" / "profile.pop")
    assert report.meta["tensor_sharding"] == 4
    assert (report.target.ipus_per_replica, report.target.num_replicas) == (2, 2)
    # embedding, four parts of each layer, norm, two halves of the head
    assert len(report.stages) == 1 + 4 * 4 + 1 + 2
    assert {"enter forward", "enter backward"} <= set(report.bodies["task"])
    ipus = analysis.pod(report)
    assert analysis.alike_ipus(report) == 8 and len(ipus) == 16
    assert list(ipus["shard"]) == [0, 1, 2, 3] * 4
    assert list(ipus["machine"]) == sorted([0, 1, 2, 3] * 4)
    assert list(ipus["replica"]) == [0] * 8 + [1] * 8
    assert list(ipus["ipu"][:8]) == [0] * 4 + [1] * 4
    assert (ipus.groupby("ipu")[["busy", "memory", "link_bytes"]].nunique() == 1).all(axis=None)
    capsys.readouterr()
    assert cli.main(["pod", "--by", "links", str(tmp_path / "training")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 to a stage (t), 2 in a pipeline (p), 2 replicas (r)" in said and "r1 p1" in said


def fullest(model: poptorch.PoplarExecutor) -> np.ndarray:
    """Bytes of the fullest tile of each IPU."""
    return np.array([int(of_ipu.total.max()) for of_ipu in model.executable.tile_bytes])


def vectors(model: poptorch.PoplarExecutor) -> int:
    """How many vectors over tiles the steps of its program have."""
    steps = [step for body in model.executable.tree.bodies for step in body.steps]
    moved = [(step.tile_cycles, step.bytes_in, step.bytes_out) for step in steps]
    return len({id(one) for step in moved for one in step if one is not None})


def test_gpt3_with_96_layers_fits() -> None:
    """Its tiles from those of 4 and 6 layers, which have all that 96 have.

    An IPU has the same part of two layers in every phase, and of a phase only what the phase
    needs: its peaks are those of any phase, of the embedding's or of the head's. What more layers
    add to a tile are calls of the same code, alike for each layer.
    """
    few, more = (gpt3_175b.main(["--pod", "256", "--layers", layers]) for layers in ("4", "6"))
    a_layer = (fullest(more) - fullest(few)) / 2
    assert (a_layer >= 0).all() and (a_layer < 100).all()
    limit = few.executable.target.bytes_per_tile
    assert (fullest(few) + 92 * a_layer < limit).all()
    assert vectors(few) == vectors(more)  # equal layers share theirs
    few.destroy()
    more.destroy()


@pytest.mark.parametrize(("stages", "off_chip"), [(4, True), (8, False)])
def test_bert_large_fits_a_pod16(stages: int, off_chip: bool) -> None:
    """At its real size. With eight stages all state is on the chips."""
    model = bert_large_pod16.main(["--pipeline", str(stages)])
    executable = model.executable
    assert executable.overflow is None and executable.attached_ipus == stages
    assert executable.attached_ipus * executable.options.replicas == 16
    state = [one for one in executable.variables if one.role == "optimiser state"]
    assert state and all(one.always_live != off_chip for one in state)
    model.destroy()


def test_racks_stand_below_each_other_where_lines_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = pd.DataFrame({"machine": [0], **{f"rack {rack}": ["r0 p0"] for rack in range(4)}})
    heads = [[column.title for column in table.columns] for table in pod_command.maps(lines)]
    assert heads == [["machine", "rack 0", "rack 1"], ["machine", "rack 2", "rack 3"]]
    monkeypatch.setenv("COLUMNS", "200")
    assert len(pod_command.maps(lines)) == 1

"""The examples of pods compile, at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import bert_large_pod16, gpt3_175b
from profiler import analysis, open_report
from reports import cli


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


def test_bert_over_four_and_eight_stages(tmp_path: Path) -> None:
    for stages, off_chip in ((4, True), (8, False)):
        folder = tmp_path / str(stages)
        words = ["--tiny", "--pipeline", str(stages), "--profile-dir", str(folder)]
        bert_large_pod16.main(words)
        report = open_report(folder / "training" / "profile.pop")
        assert report.target.num_ipus == 16 and report.target.ipus_per_replica == stages
        state = report.variables[report.variables["role"] == "optimiser state"]
        assert bool(state["always_live"].all()) is not off_chip

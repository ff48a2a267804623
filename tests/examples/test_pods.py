"""The examples of pods compile, at toy size."""

from __future__ import annotations

from pathlib import Path

from examples import bert_large_pod16, gpt3_175b
from profiler import open_report


def test_gpt3_over_shards_stages_and_replicas(tmp_path: Path) -> None:
    gpt3_175b.main(["--pod", "16", "--tiny", "--layers", "4", "--profile-dir", str(tmp_path)])
    report = open_report(tmp_path / "training" / "profile.pop")
    assert report.meta["tensor_sharding"] == 4
    assert (report.target.ipus_per_replica, report.target.num_replicas) == (2, 2)
    assert len(report.stages) == 3 + 3 * 4  # embedding, three parts of each layer, norm, head


def test_bert_over_four_and_eight_stages(tmp_path: Path) -> None:
    for stages, off_chip in ((4, True), (8, False)):
        folder = tmp_path / str(stages)
        words = ["--tiny", "--pipeline", str(stages), "--profile-dir", str(folder)]
        bert_large_pod16.main(words)
        report = open_report(folder / "training" / "profile.pop")
        assert report.target.num_ipus == 16 and report.target.ipus_per_replica == stages
        state = report.variables[report.variables["role"] == "optimiser state"]
        assert bool(state["always_live"].all()) is not off_chip

"""The map of a pod: where its IPUs lie, and what each of them does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipuscope.profiler import analysis, open_report


def test_an_ipu_of_the_profile_does_what_its_tasks_say(demo: Path) -> None:
    report = open_report(demo)
    loads = analysis.loads(report).set_index("ipu")
    moved = analysis.movement(report).set_index(["ipu", "kind"])
    for ipu, row in loads.iterrows():
        tasks = report.tasks(iteration=0, ipu=ipu)
        waits = tasks.loc[tasks["task"] == "idle", "cycles"].sum()
        assert row["busy"] == pytest.approx(1 - waits / tasks["cycles"].sum())
        over_links = moved.loc[(ipu, "global exchange")]
        assert row["link_bytes"] == over_links["bytes_in"] + over_links["bytes_out"]
        fullest = report.tiles(ipu)["total"].max()
        assert row["memory"] == fullest / report.target.bytes_per_tile


def test_ipus_lie_replica_by_replica(demo: Path) -> None:
    report = open_report(demo)
    ipus, target = analysis.pod(report), report.target
    assert len(ipus) == target.num_ipus * analysis.shards_of(report)
    assert np.array_equal(ipus["machine"], ipus["number"] // 4)
    assert list(ipus["ipu"]) == list(range(target.ipus_per_replica)) * target.num_replicas
    assert analysis.alike_ipus(report) == target.num_replicas


def test_links_carry_what_is_copied(demo: Path) -> None:
    report = open_report(demo)
    links = analysis.link_loads(report)
    stages = links[links["between"] == "stages"]
    moved = analysis.movement(report)
    received = moved.loc[moved["kind"] == "global exchange", "bytes_in"].sum()
    assert stages["bytes"].sum() == pytest.approx(received, rel=0.01)  # tiles get whole words
    assert (stages["source"] != stages["target"]).all() and (stages["way"] == "in a machine").all()
    cycles = report.pipeline_cycles()["end"].max()
    rate = report.meta["link_bytes_per_cycle"]
    assert links["busy"].to_numpy() == pytest.approx(links["bytes"].to_numpy() / rate / cycles)
    assert links["busy"].is_monotonic_decreasing

"""The map of a pod: where its IPUs lie, and what each of them does."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipu_exec import Options, trainingModel
from ipuscope.profiler import analysis, open_report
from ipuscope.profiler.file.reader import find_profile
from ipuscope.reports.cli import main
from tests.models import mean_square


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


def test_a_ring_sends_both_ways_round(tmp_path: Path) -> None:
    """So that none of its links carries more than its rate."""
    options = Options(autoreport=True, autoreport_dir=str(tmp_path)).replicationFactor(4)
    model = mean_square(torch.nn.Linear(512, 512))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainingModel(model, options, sgd).compile(torch.ones(4, 512))
    with open_report(tmp_path) as report:
        slices = analysis.link_slices(report)
        edges = np.linspace(slices["start"].min(), slices["end"].max(), 101)
        assert 0.5 < analysis.link_traffic(report, slices, edges).max() <= 1


def test_links_over_time_are_what_sql_and_the_command_say(demo: Path, capsys: Any) -> None:
    report = open_report(demo)
    links, end = analysis.link_loads(report), int(report.tasks(iteration=0)["end"].max())
    edges = np.linspace(0, end, 33)
    share = analysis.link_traffic(report, analysis.link_slices(report), edges)
    overlap = "max(0.0, min(e.start + e.cycles, {}) - max(e.start, {})) / e.cycles"
    parts = ", ".join(
        f"sum(m.bytes * {overlap.format(high, low)})"
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    )
    sql = (
        f"SELECT m.source, m.target, {parts} FROM execution_steps e JOIN moved_tensors m"
        " ON m.step = e.step WHERE e.run = 0 AND e.iteration = 0 AND m.target = e.ipu"
        " AND m.source >= 0 AND m.source != m.target GROUP BY 1, 2"
    )
    sent = {row[:2]: row[2:] for row in sqlite3.connect(find_profile(demo)).execute(sql)}
    rate = report.meta["link_bytes_per_cycle"] * end / 32
    for row, (source, target) in enumerate(zip(links["source"], links["target"], strict=True)):
        assert share[row] * rate == pytest.approx(np.array(sent[source, target]), abs=1)
    assert main(["pod", "--by", "links", "--json", str(find_profile(demo))]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    busy = np.array([one["busy"] for one in printed["traffic"]])
    assert busy == pytest.approx(share.ravel()) and busy.any()

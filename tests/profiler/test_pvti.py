"""Host activity recorded as in libpvti's tutorial, in profiles and in files of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest

from ipuscope.profiler import ProfileWriter, open_report, pva, pvti
from ipuscope.profiler.analysis.host_clock import host_lanes, host_timeline
from ipuscope.profiler.file import records
from ipuscope.reports import chrome_trace
from tests.paths import ROOT
from tests.synthetic import synthetic_profile


@pytest.fixture
def recorder(monkeypatch):
    """A recorder that is still empty."""
    fresh = pvti.Recorder()
    monkeypatch.setattr(pvti, "recorder", fresh)
    return fresh


def test_tracepoints_nest_a_thread_at_a_time(recorder):
    channel = pvti.createTraceChannel("training")
    assert pvti.createTraceChannel("training") is channel and pvti.checkTraceChannel(channel)
    with pvti.Tracepoint(channel, "epoch"):
        pvti.Tracepoint.begin(channel, "batch")
        pvti.Tracepoint.event(channel, "loaded")
        other = threading.Thread(target=pvti.instrument_fn(channel)(sum), args=([],))
        other.start()
        other.join()
        pvti.Tracepoint.end(channel, "batch")
    of = {event.label: event for event in recorder.events}
    assert of["batch"].parent == of["epoch"].id and of["loaded"].parent == of["batch"].id
    assert of["sum"].parent == of["epoch"].parent == -1
    assert of["sum"].thread != of["epoch"].thread
    assert of["loaded"].start_us == of["loaded"].end_us
    assert of["epoch"].start_us <= of["batch"].start_us <= of["batch"].end_us
    assert of["batch"].end_us <= of["epoch"].end_us
    with pytest.raises(ValueError, match="no tracepoint 'epoch'"):
        pvti.Tracepoint.end(channel, "epoch")


def test_a_disabled_channel_keeps_nothing(recorder):
    channel = pvti.createTraceChannel("quiet")
    pvti.disableTraceChannels([channel])
    with pvti.Tracepoint(channel, "epoch"):
        assert not pvti.checkTraceChannel(channel)
    pvti.enableTraceChannels([channel])
    pvti.Tracepoint.event(channel, "kept")
    assert [event.label for event in recorder.events] == ["kept"]


def test_methods_graphs_and_heatmaps(recorder):
    class Loader:
        def load(self, count):
            return count + 1

    loader, channel = Loader(), pvti.createTraceChannel("data")
    pvti.instrument(loader, ["load"], channel)
    assert loader.load(2) == 3
    assert recorder.events[0].label.endswith("Loader.load")
    pvti.Graph("Loss", "nats").addSeries("training").add(0.5)
    pvti.HeatmapDouble("weights", [0, 1, 2], "2^x").add([0.5, 1.5, 1.7, 9.0])
    points = [(row.graph, row.series, row.value) for row in recorder.values]
    assert points == [
        ("Loss", "training", 0.5),
        ("weights", "0 to 1", 1.0),
        ("weights", "1 to 2", 3.0),
    ]
    with pytest.raises(ValueError, match="edges"):
        pvti.HeatmapDouble("none", [1.0])


def test_open_trace_puts_calls_into_the_events_that_they_ran_in(tmp_path):
    path = tmp_path / "profile.pop"
    with ProfileWriter(path) as writer:
        with open_report(synthetic_profile(tmp_path / "known.pop")) as known:
            writer.add([known.target, records.Trace(0, 1, 10, *[np.zeros(0, np.int64)] * 6)])
        writer.add([records.Run(0, "run 0", 0, 0, 120, 150)])
        writer.add([records.HostEvent(1, 0, 7, 8, "train", "batch", 110, 160)])
        writer.add([records.HostEvent(0, -1, 7, 8, "train", "epoch", 100, 200)])
        writer.add([records.HostEvent(2, -1, 7, 9, "data", "load", 90, 300)])
        writer.publish()
    (process,) = pva.openTrace(path).processes
    assert process.pid == 7
    shown = {thread.tid: thread.events for thread in process.threads}
    (epoch,) = shown[8]
    (batch,) = epoch.children()
    (load,) = shown[9]
    calls = [event.label for event in (*batch.children(), *load.children())]
    assert (epoch.label, epoch.duration, batch.label, calls) == ("epoch", 100, "batch", ["run 0"])
    frame = open_report(path).host_events
    assert frame["label"].tolist() == ["load", "epoch", "batch"]


SCRIPT = """
import libpvti as pvti, poptorch, torch
channel = pvti.createTraceChannel("application")
options = poptorch.Options().showCompilationProgressBar(False)
model = poptorch.inferenceModel(torch.nn.Linear(4, 4), options)
for epoch in range(2):
    with pvti.Tracepoint(channel, f"Epoch:{epoch}"):
        for _ in range(2):
            model(torch.zeros(1, 4))
"""


def test_a_script_under_ipu_run_has_host_and_ipu_on_one_timeline(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = "import sys; from ipu_exec.commands.run import main; sys.exit(main())"
    options = {"enable": "true", "directory": str(tmp_path / "host")}
    subprocess.run(
        [sys.executable, "-c", run, "--autoreport", str(tmp_path), str(script)],
        cwd=ROOT,
        env={**os.environ, "PVTI_OPTIONS": json.dumps(options)},
        check=True,
    )
    report = open_report(tmp_path / "inference")
    events = report.host_events
    assert events["label"].tolist() == ["Epoch:0", "Epoch:1"]
    first = events.iloc[0]
    inside = report.runs["host_start_us"] >= first["start_us"]
    assert (inside & (report.runs["host_end_us"] <= first["end_us"])).all()
    ((thread,),) = [one.threads for one in pva.openTrace(report.path).processes]
    assert [event.label for event in thread.events] == ["Epoch:0", "Epoch:1"]
    assert [call.label for call in thread.events[0].children()] == report.runs["name"].tolist()
    (file,) = (tmp_path / "host").glob("*.pvti")
    ((alone,),) = [one.threads for one in pva.openTrace(file).processes]
    assert [event.label for event in alone.events] == ["Epoch:0", "Epoch:1"]


def test_host_and_ipus_are_on_one_timeline(tmp_path):
    """Calls last as long as on the IPUs, and the host's time between them is unchanged.

    What happened during a call stays within it.
    """
    path = tmp_path / "profile.pop"
    with open_report(synthetic_profile(tmp_path / "known.pop", runs=2)) as known:
        cycles, hz = known.runs["cycles"].tolist(), known.target.clock_hz
    with closing(sqlite3.connect(tmp_path / "known.pop")) as connection:
        connection.execute("UPDATE runs SET host_start_us = 1000, host_end_us = 5000 WHERE id = 0")
        connection.execute("UPDATE runs SET host_start_us = 5300, host_end_us = 9000 WHERE id = 1")
        events = [
            (0, -1, 1, 1, "train", "epoch", 900, 9100),
            (1, -1, 1, 2, "data", "load", 3000, 5100),
        ]
        marks = ", ".join("?" * 8)
        connection.executemany(f"INSERT INTO host_events VALUES ({marks})", events)
        connection.commit()
    (tmp_path / "known.pop").rename(path)
    first, second = (count / hz * 1e6 for count in cycles)
    with open_report(path) as report:
        lanes = host_lanes(report).set_index("label")
        shift = host_timeline(report).shift
        between = int(report.runs["start"].iloc[1] - report.runs["end"].iloc[0])
        all_events = list(chrome_trace.events(report, None, None, False))
    ends = lanes[["start_us", "end_us"]].round(3).to_dict("index")
    calls = [name for name in ends if name.startswith("run")]
    assert [ends[name]["start_us"] for name in calls] == [0, round(first + 300, 3)]
    assert ends["epoch"]["start_us"] == -100
    assert ends["epoch"]["end_us"] == round(first + 300 + second + 100, 3)
    assert ends["load"] == {"start_us": round(first / 2, 3), "end_us": round(first + 100, 3)}
    assert lanes["depth"].to_dict() == {"epoch": 0, "load": 0, **dict.fromkeys(calls, 1)}
    assert shift.tolist() == [0, round(300 * hz / 1e6) - between]
    slices = [one for one in all_events if one["ph"] == "X"]
    on_host = {one["name"]: one for one in slices if one["cat"] == "host"}
    on_ipus = {one["name"]: one for one in slices if one["cat"] == "call"}
    for name in calls:
        assert on_host[name]["ts"] == pytest.approx(on_ipus[name]["ts"], abs=2e-3)
        assert on_host[name]["dur"] == pytest.approx(on_ipus[name]["dur"], abs=2e-3)

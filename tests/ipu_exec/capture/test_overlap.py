"""Host I/O beside computing, from PopTorch's calls to the profile (PopTorch's own rules: its
test_overlapped_io.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipu_exec as poptorch
from ipu_exec import Error, OverlapMode
from ipu_exec.machine import HOST_LATENCY_SECONDS, STREAM_STEP_CYCLES, TARGETS
from ipu_exec.option_groups.engine_options import LEVERS_VARIABLE
from ipu_exec.planning.first_call_plan import plan_model
from ipuscope.planner.advice import advise
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import analysis, open_report, pva
from ipuscope.profiler.analysis.kinds import cycles_of_ipus
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report
from ipuscope.reports.chrome_trace import events
from ipuscope.reports.cli import doctor
from ipuscope.reports.text_timeline import timeline
from ipuscope.viewer.figures import trace
from ipuscope.viewer.figures.lanes import StepRows
from ipuscope.viewer.figures.lanes import lanes as lanes_of
from tests import closed_forms as formulas
from tests.models import model_of

MK2 = TARGETS["mk2"]
WIDTH, BATCH, IO = 512, 64, 32
DEEP = (0,) * 8  # layers enough to take longer than the transfers
INNER, LOOPS = OverlapMode.OverlapAccumulationLoop, OverlapMode.OverlapDeviceIterationLoop


class Net(torch.nn.Module):
    """Blocks of one layer each on the IPUs that are given.

    Inputs and outputs overlapped where a mode is.
    """

    def __init__(self, ipus: tuple[int, ...], mode: OverlapMode | None = None) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in ipus)
        self.ipus, self.mode = ipus, mode

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        if self.mode is not None:
            x, target = poptorch.set_overlap_for_input((x, target), self.mode)
        for index, (ipu, layer) in enumerate(zip(self.ipus, self.layers, strict=True)):
            with poptorch.Block(f"layer{index}", ipu_id=ipu):
                x = torch.relu(layer(x))
        with poptorch.Block(f"layer{len(self.ipus) - 1}"):
            loss = torch.nn.functional.mse_loss(x, target)
        if self.mode is not None:
            x, loss = poptorch.set_overlap_for_output((x, loss), self.mode)
        return x, loss


def options(
    strategy: Any = None, io_tiles: int = IO, accumulation: int = 4, iterations: int = 1
) -> poptorch.Options:
    opts = poptorch.Options().deviceIterations(iterations).outputMode(poptorch.OutputMode.All)
    opts.setExecutionStrategy(strategy or poptorch.ShardedExecution())
    opts.Training.gradientAccumulation(accumulation)
    if io_tiles:
        opts.TensorLocations.numIOTiles(io_tiles)
    return opts


def trained(
    chosen: poptorch.Options, mode: OverlapMode | None, ipus: tuple[int, ...] = (0, 0)
) -> Any:
    torch.manual_seed(0)
    model = Net(ipus, mode)
    executor = poptorch.trainingModel(model, chosen, torch.optim.SGD(model.parameters(), lr=0.1))
    samples = BATCH * chosen.batch_factor
    outputs = executor(torch.randn(samples, WIDTH), torch.randn(samples, WIDTH))
    return executor, outputs, model


def profiled(
    path: Path, chosen: poptorch.Options, mode: OverlapMode | None, ipus: tuple[int, ...] = (0, 0)
) -> Report:
    chosen.enableProfiling(str(path))
    trained(chosen, mode, ipus)
    return open_report(path / "training" / "profile.pop")


def test_what_is_overlapped_costs_what_the_closed_form_says_and_numbers_stay_the_same() -> None:
    plain, outputs, model = trained(options(), None)
    overlapped, others, same = trained(options(), INNER)
    assert all(torch.equal(a, b) for a, b in zip(outputs, others, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True)
    )

    costs = overlapped.executable.timeline.costs
    ((_, load),), ((_, unload),) = costs.load, costs.unload
    assert not costs.stream_in and not costs.stream_out
    inputs = 2 * WIDTH * BATCH * 4
    moved = (HOST_LATENCY_SECONDS + inputs / MK2.host_bytes_per_second) * MK2.clock_hz
    assert load == 2 * STREAM_STEP_CYCLES + int(np.ceil(moved))
    work = costs.forward[0] + costs.backward[0]
    assert (
        overlapped.executable.cycles_per_call
        == formulas.overlapped_cycles(work, load, unload, 4) + costs.update[0]
    )
    # one after the other, all of it: an exchange between I/O tiles and the others is what
    # overlapping costs besides
    before = plain.executable.timeline.costs
    apart = (
        before.forward[0] + before.backward[0] + before.stream_in[0][1] + before.stream_out[0][1]
    )
    assert plain.executable.cycles_per_call == 4 * apart + before.update[0]
    steps = [
        step
        for body in overlapped.executable.tree.bodies
        for step in body.steps
        if "I/O tiles" in step.name
    ]
    assert before.forward[0] + sum(step.cycles for step in steps) == costs.forward[0]


def test_io_tiles_hold_a_buffer_of_each_stream_and_compute_nothing() -> None:
    executor, *_ = trained(options(), INNER)
    executable = executor.executable
    buffers = [v for v in executable.variables if v.role == "stream buffer"]
    outputs = (WIDTH * BATCH + 1) * 4
    assert sorted(v.bytes for v in buffers) == [outputs, 2 * WIDTH * BATCH * 4]
    for buffer in buffers:
        assert buffer.always_live and not buffer.tile_bytes[:-IO].any()
        assert np.ptp(buffer.tile_bytes[-IO:]) <= 8, "evenly"
    for body in executable.tree.bodies:
        for step in body.steps:
            if step.type == records.ON_TILE_EXECUTE:
                assert len(step.tile_cycles) == MK2.tiles and not step.tile_cycles[-IO:].any()
    weights = [
        v
        for v in executable.variables
        if v.role in ("weight", "activation", "accumulator", "input")
    ]
    assert weights and not any(v.tile_bytes[-IO:].any() for v in weights)
    across, *_ = trained(options(iterations=2), LOOPS)
    more = [v for v in across.executable.variables if v.role == "stream buffer"]
    assert sum(v.bytes for v in more) == 2 * sum(v.bytes for v in buffers)


def test_fewer_tiles_compute_no_faster_and_all_are_in_the_profile() -> None:
    plain, *_ = trained(options(io_tiles=0), None)
    fewer, *_ = trained(options(io_tiles=192), None)
    assert fewer.executable.cycles_per_call >= plain.executable.cycles_per_call
    vectors = [
        s.tile_cycles
        for b in fewer.executable.tree.bodies
        for s in b.steps
        if s.tile_cycles is not None
    ]
    assert {v.shape for v in vectors} == {(MK2.tiles,)}
    assert not [v for v in fewer.executable.variables if v.role == "stream buffer"], (
        "nothing is overlapped"
    )


@pytest.mark.parametrize("on_chip", [True, False])
def test_state_in_parts_or_off_the_chip_keeps_off_io_tiles(on_chip: bool) -> None:
    chosen = options(accumulation=2).replicationFactor(4)
    location = (
        poptorch.TensorLocationSettings()
        .useOnChipStorage(on_chip)
        .useReplicatedTensorSharding(True)
    )
    chosen.TensorLocations.setWeightLocation(location).setOptimizerLocation(location)
    model = Net((0,), INNER)
    executor = poptorch.trainingModel(
        model, chosen, poptorch.optim.LAMB(model.parameters(), lr=1e-3)
    )
    samples = torch.randn(BATCH * chosen.batch_factor, WIDTH)
    executor.compile(samples, samples)
    kinds = set()
    for variable in executor.executable.variables:
        if variable.tile_bytes[-IO:].any():
            kinds.add(variable.role)
    assert kinds == {"program", "stream buffer"}
    assert any("/part" in variable.name for variable in executor.executable.variables)


def test_across_device_iterations_a_call_waits_for_its_first_input_and_last_output_only(
    tmp_path: Path,
) -> None:
    inner, *_ = trained(options(iterations=3), INNER, DEEP)
    loops, *_ = trained(options(iterations=3), LOOPS, DEEP)
    schedule, costs = loops.executable.timeline.schedule, loops.executable.timeline.costs
    assert (schedule.head, schedule.tail) == (costs.load[0][1], costs.unload[0][1])
    assert (
        loops.executable.cycles_per_call
        == schedule.head + 3 * schedule.total + schedule.tail
        < inner.executable.cycles_per_call
    )
    counters = loops.getPerfCounters()
    begun, done = counters["input"][0], counters["input_complete"][0]
    assert begun[0] == 0 and done[0] == pytest.approx(schedule.head / MK2.clock_hz)
    assert (
        sorted(begun) == begun
        and sorted(done) == done
        and all(a < b for a, b in zip(begun, done, strict=True))
    )
    left = counters["output_complete"][0]
    assert sorted(left) == left and left[-1] == pytest.approx(
        loops.executable.cycles_per_call / MK2.clock_hz
    )
    report = profiled(tmp_path, options(iterations=3), LOOPS, DEEP)
    assert report.runs["start"].tolist() == [schedule.head]


def test_options_that_do_not_allow_it_are_errors_with_poptorchs_words() -> None:
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    model = Net((0,), INNER)
    for change, words in (
        (
            lambda o: o.setExecutionStrategy(poptorch.PipelinedExecution()),
            r"Overlapped IO is not supported with poptorch\.PipelinedExecution\. If you are using"
            r" only one IPU, please "
            r"switch to poptorch\.ShardedExecution\.",
        ),
        (
            lambda o: o.TensorLocations._set(num_io_tiles=0),
            r"No IO tiles allocated\. You must allocate at least 32 IO tiles using "
            r"poptorch\.Options\(\)\.TensorLocations\.numIOTiles\.",
        ),
        (
            lambda o: o.outputMode(poptorch.OutputMode.Final),
            "Unsupported output mode for overlapped IO",
        ),
    ):
        chosen = options(accumulation=1)
        change(chosen)
        with pytest.raises(Error, match=words):
            poptorch.inferenceModel(model, chosen)(x, y)


def taken(x: torch.Tensor) -> torch.Tensor:
    return poptorch.set_overlap_for_input(x, INNER)


def given(x: torch.Tensor) -> torch.Tensor:
    return poptorch.set_overlap_for_output(x, INNER)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (
            lambda x: (x + 1, taken(x)),
            r"poptorch\.set_overlap_for_input must be the only op applied to an input\. This is not"
            r" the case for input 0 "
            r"to the model\.",
        ),
        (lambda x: (x, taken(x)), "must be the only op"),
        (
            lambda x: taken(x + 1),
            (
                r"poptorch\.set_overlap_for_input applied on a node which is not a tensor input to"
                r" the model\."
            ),
        ),
        (lambda x: taken(taken(x) + 1), "not a tensor input"),
        (lambda x: taken(taken(x)), "it is beside compute already"),
        (
            lambda x: [y := x + 1, given(y)],
            r"poptorch\.set_overlap_for_output cannot be used with a tensor that is returned"
            r" twice\. Please check all "
            r"returned tensors including those nested in tuples/lists\.",
        ),
        (
            lambda x: given(x) + 1,
            (
                r"poptorch\.set_overlap_for_output applied on a node which is not a tensor output"
                r" to the model\."
            ),
        ),
        (lambda x: given(taken(x) + 1).mean(), "not a tensor output"),
    ],
)
def test_marks_on_what_is_no_input_or_output_are_errors(forward: Any, words: str) -> None:
    with pytest.raises(Error, match=words):
        poptorch.inferenceModel(model_of(lambda self, x: forward(x)))(torch.ones(4))


def test_marked_outputs_may_be_used_besides() -> None:
    for forward in (
        lambda self, x: ((y := x + 1) + 1, given(y)),
        lambda self, x: [y := given(x + 1), y + 1],
    ):
        model = poptorch.inferenceModel(model_of(forward), options(accumulation=1))
        assert sorted(t.tolist() for t in model(torch.ones(1))) == [[2.0], [3.0]]


def test_a_pipeline_overlaps_where_the_ir_is_explicit_and_predictions_hold(tmp_path: Path) -> None:
    reports = {}
    for name, mode, ipus in (
        ("plain", None, (0, 0, 1)),
        ("now", INNER, (0, 0, 1)),
        ("other", INNER, (0, 1, 1)),
        ("loops", LOOPS, (0, 0, 1)),
        ("loops other", LOOPS, (0, 1, 1)),
    ):
        chosen = options(poptorch.PipelinedExecution(), accumulation=5, iterations=2)
        chosen._Popart.set("enableExplicitIR", True)
        reports[name] = profiled(tmp_path / name, chosen, mode, ipus)
    spent = {name: int(report.runs["cycles"][0]) // 2 for name, report in reports.items()}
    assert spent["loops"] < spent["now"] < spent["plain"]
    for name in ("now", "loops"):
        costs = Costs.from_report(reports[name])
        streams = costs.streams
        assert streams.load.any() and streams.unload.any() and not streams.stream_in.any()
        assert what_if(costs, Assignment.of([0, 0, 1], (0, 1))).total == spent[name]
        predicted = what_if(costs, Assignment.of([0, 1, 1], (0, 1))).total
        assert predicted == pytest.approx(
            spent[{"now": "other", "loops": "loops other"}[name]], rel=1e-3
        )


@pytest.mark.parametrize("pattern", list(poptorch.SyncPattern))
def test_sync_patterns_say_who_waits_for_the_host_and_predictions_know(
    pattern: poptorch.SyncPattern, tmp_path: Path
) -> None:
    opts = options(poptorch.PipelinedExecution(), io_tiles=0, accumulation=5)
    opts.syncPattern(pattern)
    report = profiled(tmp_path, opts, None, (0, 0, 1))
    total = int(report.runs["cycles"][0])
    assert what_if(Costs.from_report(report), Assignment.of([0, 0, 1], (0, 1))).total == total
    full = options(poptorch.PipelinedExecution(), io_tiles=0, accumulation=5)
    together = trained(full, None, (0, 0, 1))[0].executable.cycles_per_call
    assert total == together if pattern is poptorch.SyncPattern.Full else total < together


@pytest.mark.parametrize("name", ["defaultPrefetchBufferingDepth", "defaultBufferingDepth"])
def test_with_more_than_one_buffer_nobody_waits_for_the_host_to_turn_up(
    name: str, tmp_path: Path
) -> None:
    deep = options(io_tiles=0)
    deep._Popart.set(name, 3)
    report = profiled(tmp_path, deep, None)
    plain = trained(options(io_tiles=0), None)[0].executable.timeline.costs
    body = report.bodies[report.bodies["name"].str.contains("inputs from host")]
    saved = plain.stream_in[0][1] - int(body["cycles"].iloc[0])
    assert saved == pytest.approx(HOST_LATENCY_SECONDS * MK2.clock_hz, abs=1)
    assert Costs.from_report(report).streams.latency == 2 * STREAM_STEP_CYCLES  # begin and end
    off = options(io_tiles=0)
    off._Popart.set(name, 3)
    off._Popart.set("enablePrefetchDatastreams", False)
    assert trained(off, None)[0].executable.timeline.costs.stream_in == plain.stream_in


def test_pictures_show_io_tiles_beside_the_others(tmp_path: Path) -> None:
    report = profiled(tmp_path, options(accumulation=3), INNER)
    tasks, steps = report.tasks(0, iteration=0), report.steps(0, iteration=0)
    beside = tasks[tasks["kind"] == records.BESIDE]
    assert len(beside) == 6
    rest = tasks[tasks["kind"] != records.BESIDE]
    assert (rest["start"].to_numpy()[1:] == rest["end"].to_numpy()[:-1]).all()
    assert any(
        beside["start"].iloc[1] >= row.start and beside["start"].iloc[1] < row.end
        for row in rest.itertuples()
    )
    assert report.cycle_proportions(0)["total"][0] == report.runs["cycles"][0]
    assert 0 < analysis.waiting(report) < 1
    moved = analysis.movement(report)
    assert moved.loc[moved["kind"] == records.BESIDE, "bytes_in"].sum() == 3 * 2 * WIDTH * BATCH * 4

    cycles = report.pipeline_cycles(0, 0)
    executed = report.trace.executed(0, iteration=0)
    lanes = lanes_of(tasks, executed, cycles, report.stages)
    assert len(lanes.beside_rows.start) == 6
    kinds, spent = cycles_of_ipus(report)
    assert "host I/O" not in kinds and spent[0].sum() == lanes.end
    flat = trace.flat(StepRows.of(executed, [0]))
    assert flat.names == ("IPU 0", "I/O 0") and len(flat.rows.start) == len(steps)
    assert trace.flame(steps, tasks, report.ops["name"]).names[-1] == "I/O"
    text = ["".join(words for words, _ in line) for line in timeline(tasks, cycles, 90)]
    assert next(line for line in text if line.startswith("  I/O")).count("h") > 5
    assert doctor._time(report) == ""
    vendor = pva.openReport(str(report.path)).execution
    copies = [step for step in vendor.steps if step.program.type.name == "StreamCopyMid"]
    assert (
        len(copies) == 6
        and sum(step.ipus[0].dataIn for step in copies) == 3 * 2 * WIDTH * BATCH * 4
    )
    assert vendor.runs[0].cyclesByIpu == [
        report.runs["cycles"][0] - report.cycle_proportions(0)["idle"][0]
    ]
    threads = [e for e in events(report, 0, None, True) if e.get("tid") == 3 and e["ph"] == "X"]
    assert len(threads) == 6


def test_what_overlapping_promises_is_at_most_what_its_compile_saves(tmp_path: Path) -> None:
    """With a micro-batch an update, only device iterations give I/O something to run beside."""

    def chosen(tiles: int) -> poptorch.Options:
        return options(io_tiles=tiles, accumulation=1, iterations=4)

    before = profiled(tmp_path / "before", chosen(0), None)
    after = profiled(tmp_path / "after", chosen(IO), LOOPS)
    (insight,) = [one for one in insights(before) if one.change == {"with": "overlap"}]
    assert "numIOTiles(32)" in insight.code[0] and insight.estimate
    saved = analysis.pace(before).cycles - analysis.pace(after).cycles
    assert 0.8 * insight.gain_cycles <= saved <= insight.gain_cycles
    assert not [one for one in insights(after) if one.change == {"with": "overlap"}]


def test_the_lever_compiles_what_marks_in_the_forward_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked, _, _ = trained(options(accumulation=1, iterations=2), LOOPS)
    monkeypatch.setenv(LEVERS_VARIABLE, "overlap")
    model = Net((0, 0))
    chosen = options(poptorch.PipelinedExecution(), io_tiles=0, accumulation=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, chosen, optimizer)
    executor.compile(torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    assert executor.executable.timeline.costs == marked.executable.timeline.costs


def test_advice_prices_the_lever_as_its_compile_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the forward that runs again too, without a pipeline."""
    before = profiled(tmp_path / "before", options(io_tiles=0, accumulation=1), None)
    (advice,) = [one for one in advise(before).single if one.levers.overlap]
    assert advice.argument == "overlap" and advice.estimate
    after = profiled(tmp_path / "after", options(accumulation=1, iterations=2), LOOPS)
    rate = analysis.pace(after).samples_per_second
    assert abs(rate - advice.samples_per_second) <= advice.doubt
    assert not [one for one in advise(after).single if one.levers.overlap]
    again = options(accumulation=1, iterations=2)
    again._Popart.set("autoRecomputation", 1)
    recomputing = profiled(tmp_path / "again", again, LOOPS)
    costs = Costs.from_report(recomputing)
    assert what_if(costs, Assignment((0,), (0,))).total == analysis.pace(recomputing).cycles
    assert costs.recompute and costs.again_at_once(0, len(costs) - 1) > 0


def test_a_script_that_overlaps_is_planned_on_one_stage_a_replica() -> None:
    def planned(**more: Any) -> Any:
        inputs = (torch.randn(8, WIDTH), torch.randn(8, WIDTH))
        return plan_model(Net((0, 1), LOOPS), inputs, 2, options=options(), **more)

    assert {one.mapping.pipeline for one in planned(proportions=(0.6,)).candidates} == {1}
    with pytest.raises(Error, match="in a pipeline"):
        planned(fix=("p=2",))


@pytest.mark.parametrize("mode", [None, LOOPS])
def test_a_plan_offers_overlap_to_a_script_that_has_none(mode: OverlapMode | None) -> None:
    inputs = (torch.randn(8, WIDTH), torch.randn(8, WIDTH))
    made = plan_model(Net((0, 0), mode), inputs, 1, options=options(), proportions=(0.6,))
    assert made.best.shares["host"] > 0.05 and made.own is not None
    assert any("--allow overlap" in note for note in made.notes) == (mode is None)

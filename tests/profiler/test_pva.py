"""libpva's object model, compared with `Report` and used as programs for libpva use it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution
from ipu_exec.compiler.rows.profile_rows import rows
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler import ProfileError, ProfileWriter, open_report, pva
from ipuscope.profiler.file import records
from tests.models import Mnist, mnist_batch
from tests.paths import ROOT
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The profile of a model that was run twice, on two replicas."""
    options = (
        ipu_exec.Options()
        .deviceIterations(2)
        .showCompilationProgressBar(False)
        .replicationFactor(2)
    )
    options.Training.gradientAccumulation(8)
    options.setExecutionStrategy(PipelinedExecution("B1", "B2", "B3", "B4"))
    model = Mnist()
    optimizer = torch.optim.AdamW(model.parameters())
    executable = compile_step(model, mnist_batch(8), {}, options, optimizer, True)
    with ProfileWriter(tmp_path_factory.mktemp("pva") / "profile.pop") as writer:
        for batch in rows(executable):
            writer.add(batch)
        for run in range(2):
            writer.add([records.Run(run, f"run {run}", 0, run * executable.cycles_per_call, 5, 9)])
        return writer.publish()


@pytest.fixture(scope="module")
def plain(path):
    return open_report(path)


@pytest.fixture(scope="module")
def report(path):
    return pva.openReport(str(path), str(path.with_name("debug.cbor")))


def test_the_target_is_the_reports(report, plain):
    target, known = report.compilation.target, plain.target
    assert (
        target.type == pva.Target.Type.IpuModel and target.architecture == pva.IPU.Architecture.Ipu2
    )
    assert (target.numIPUs, target.numReplicas, target.ipusPerReplica) == (8, 2, 4)
    assert target.numTiles == 8 * target.tilesPerIpu == 8 * 1472
    assert target.tilesPerReplica == 4 * 1472
    assert (target.bytesPerTile, target.bytesPerIPU) == (638_976, 940_572_672)
    assert (
        target.totalMemory == 8 * target.bytesPerIPU
        and target.memoryPerReplica == 4 * target.bytesPerIPU
    )
    assert target.clockFrequency == known.clock_hz
    assert report.version.major == known_format(plain) and not report.version.isUnstableFormat
    assert report.poplarVersion.string.startswith("0.") and report.poplarVersion.packageHash == ""
    assert report.instrumentationSettings.compute.name == "Tile"
    assert len(report.compilation.ipus) == 8 and len(report.compilation.tiles) == target.numTiles


def known_format(plain):
    return plain.meta["format"]


# -- program ---


def test_programs_are_the_tree(report, plain):
    programs = report.compilation.programs
    tree = plain.program
    steps = plain.file.table(records.Step)
    first = dict(zip(steps["id"].tolist(), steps["program"].tolist(), strict=True))
    pairs = zip(steps["program"].tolist(), steps["code"].tolist(), strict=True)
    code = {program: first[step] for program, step in pairs}  # of the step that has the same code
    known = tree[[code.get(id, id) == id for id in tree["id"]]]
    assert len(known) < len(tree)
    assert [program._id for program in programs] == known["id"].tolist()
    types = Counter(program.type.name for program in programs)
    assert types == Counter(known["type"])
    for program in programs:
        wanted = tree[tree["parent"] == program._id]["id"].tolist()
        assert [child._id for child in program.children] == [code.get(id, id) for id in wanted]
    assert (
        len(set(programs)) == len(programs)
        and programs[3] == programs[3]
        and programs[3] != programs[4]
    )
    assert dict.fromkeys(programs, 1)[programs[5]] == 1
    names = {type(program).__name__ for program in programs}
    assert names >= {"OnTileExecuteProgram", "DoExchangeProgram", "StreamCopyMidProgram", "Program"}
    names = {program._id: program.name for program in programs}
    with closing(sqlite3.connect(plain.path)) as connection:
        assert dict(connection.execute("SELECT id, name FROM programs")) == names
        sets = dict(connection.execute("SELECT compute_set, name FROM compute_sets"))
    assert {
        compute_set.id: compute_set.name for compute_set in report.compilation.computeSets
    } == sets
    assert "conv1/Conv" in names.values() and "conv1/convolution" not in names.values()
    streams = {program.name for program in programs if "StreamCopy" in program.type.name}
    assert {name.split("/")[0] for name in streams} == {"copyFromHost", "copyToHost"}
    assert {program.name for program in programs if program.type == pva.Program.Type.Sync} == {
        "Internal",
        "External",
    }
    assert report.compilation.programs[-1] == programs[len(programs) - 1]
    with pytest.raises(IndexError, match="no entry"):
        programs[len(programs)]


def test_a_visitor_is_called_for_its_types_and_does_not_mind_the_others(report):
    class Visitor(pva.ProgramVisitor):
        def __init__(self, label):
            super().__init__()
            self.seen, self.label = Counter(), label

        def visitOnTileExecute(self, program):
            self.seen[type(program).__name__] += 1
            assert program.computeset.name == program.name

        def visitDoExchange(self, program):
            self.seen[type(program).__name__] += 1

    visitor = Visitor("all")
    for program in report.compilation.programs:
        program.accept(visitor)
    types = Counter(program.type for program in report.compilation.programs)
    assert visitor.seen["OnTileExecuteProgram"] == types[pva.Program.Type.OnTileExecute] > 50
    assert visitor.seen["DoExchangeProgram"] == types[pva.Program.Type.DoExchange] > 50
    assert sum(visitor.seen.values()) < len(report.compilation.programs)
    methods = [
        name.removeprefix("visit") for name in dir(pva.ProgramVisitor) if name.startswith("visit")
    ]
    assert set(methods) == set(pva.Program.Type.__members__)


def test_compute_sets_and_vertices_are_the_reports(report, plain):
    sets = report.compilation.computeSets
    steps = plain.program_steps()
    assert (
        report.compilation.graph.numComputeSets
        == len(sets)
        == len(plain.file.table(records.ComputeSet)["id"])
        < int((steps["type"] == "OnTileExecute").sum())
    )
    total, state = 0, 0
    for compute_set in sets:
        of_ipu = np.array(compute_set.estimatedCyclesByTile).reshape(8, -1)
        assert of_ipu[:4].tolist() == of_ipu[4:].tolist(), "replicas do the same"
        counts = [np.array(vertex.countByTile) for vertex in compute_set.vertices]
        assert all(
            vertex.count * 2 == count.sum()
            for vertex, count in zip(compute_set.vertices, counts, strict=True)
        )
        total += sum(int(count.sum()) for count in counts) // 2
        state += sum(vertex.type.size * vertex.count for vertex in compute_set.vertices)
    assert report.compilation.graph.numVertices == total > 10_000
    of_category = plain.variables.groupby("category")["bytes"].sum()
    assert state == of_category["vertexInstanceState"]
    for tile in (0, 700):
        category = report.compilation.tiles[tile].memory.category
        of_tile = plain.tile_vertices(0, tile)
        assert of_tile["state_bytes"].sum() == category.vertexInstanceState.total
        on_tile = sum(v.countByTile[tile] for one in sets for v in one.vertices)
        assert of_tile["count"].sum() == on_tile
    # of steps that run the same code only the first has a program in the list
    listed = steps["program"].isin([program._id for program in report.compilation.programs])
    step = steps[(steps["type"] == "OnTileExecute") & listed].iloc[7]
    program = next(p for p in report.compilation.programs if p._id == step["program"])
    ipu = int(step["ipu"])
    tiles = program.computeset.estimatedCyclesByTile[ipu * 1472 : (ipu + 1) * 1472]
    assert (
        tiles == plain.step_tiles(step["step"])["cycles"].tolist() and max(tiles) == step["cycles"]
    )
    kinds = plain.vertices(step["step"])
    assert {vertex.type.name: vertex.count for vertex in program.computeset.vertices} == dict(
        zip(kinds["vertex_type"], kinds["count"], strict=True)
    )


def test_code_of_programs_adds_up_to_no_more_than_the_tiles_have(report):
    control, exchange = np.zeros(8 * 1472, np.int64), np.zeros(8 * 1472, np.int64)
    for program in report.compilation.programs:  # each code once
        if not program.children:
            control += program.controlCodeByTile
        if program.type == pva.Program.Type.DoExchange:
            exchange += program.codeBytesByTile
            assert max(program.estimatedCyclesByTile) > 0
    categories = [tile.memory.category for tile in report.compilation.tiles]
    assert exchange.tolist() == [category.internalExchangeCode.total for category in categories]
    assert control.tolist() == [category.controlCode.total for category in categories]
    assert report.compilation.programs[0].controlCodeByTile == control.tolist(), (
        "children's are a program's own too"
    )


# -- memory ---


def test_tiles_hold_what_the_report_says(report, plain):
    for ipu in range(4):
        frame = plain.tiles(ipu)
        for group in (report.compilation.ipus[ipu], report.compilation.ipus[ipu + 4]):
            memory = [tile.memory for tile in group.tiles]
            assert [one.total.includingGaps for one in memory] == frame["total"].tolist()
            assert [one.total.excludingGaps for one in memory] == frame[
                "total_excluding_gaps"
            ].tolist()
            assert [one.alwaysLiveBytes for one in memory] == frame["always_live"].tolist()
            assert {one.overflowed.includingGaps for one in memory} == {0}
            packed = [one.alwaysLiveBytes + one.notAlwaysLiveBytes for one in memory]
            assert packed == frame["total_excluding_gaps"].tolist()
    tile = report.compilation.tiles[1472 + 5]
    assert tile.memory.total.includingGaps == plain.tiles(1)["total"][5]


def test_categories_add_up(report, plain):
    variables = plain.variables
    for name in (
        "vertexCode",
        "controlCode",
        "internalExchangeCode",
        "vertexInstanceState",
        "stack",
    ):
        wanted = int(variables[variables["category"] == name]["bytes"].sum())
        tiles = report.compilation.tiles[: 4 * 1472]
        assert sum(getattr(tile.memory.category, name).total for tile in tiles) == wanted > 0, name
    for tile in report.compilation.tiles[::97]:
        memory = tile.memory
        assert (
            sum(vertex.codeBytes for vertex in memory.vertices) == memory.category.vertexCode.total
        )
        category = memory.category.variable
        assert category.total == category.nonInterleaved.total + category.interleaved.total
        assert category.nonInterleaved.overlapped >= 0
        always = sum(
            getattr(memory.category, name).nonInterleaved.nonOverlapped
            for name in dir(memory.category)
        )
        assert always == memory.alwaysLiveBytes
    with pytest.raises(AttributeError, match="no category 'code'"):
        _ = report.compilation.tiles[0].memory.category.code


def test_liveness_is_the_reports(report, plain):
    steps = report.compilation.livenessProgramSteps
    assert len(steps) == len(plain.program_steps())
    known = report.compilation._model.tree["id"]
    at = {int(known[step.program._at]): index for index, step in enumerate(steps)}
    assert list(at) == sorted(at) and len(at) == len(steps)
    for ipu in range(4):
        live, own = plain.liveness(ipu), plain.program_steps(ipu)
        bytes_at = [steps[at[id]].notAlwaysLiveMemoryForIpu(ipu).bytes for id in own["program"]]
        assert bytes_at == live["not_always_live"].tolist()
        assert (
            steps[at[own["program"].iloc[3]]].notAlwaysLiveMemoryForIpu(ipu + 4).bytes
            == bytes_at[3]
        )
        grid = plain.liveness_map(ipu, tiles=slice(7, 8), what="not_always_live")[:, 0]
        tile = ipu * 1472 + 7
        assert [
            steps[at[id]].notAlwaysLiveMemoryForTile(tile).bytes for id in own["program"]
        ] == grid.tolist()
    for step in steps[::29]:
        of_ipus = [step.notAlwaysLiveMemoryForIpu(ipu) for ipu in range(4)]
        whole = step.notAlwaysLiveMemory
        assert (
            whole.bytes
            == sum(one.bytes for one in of_ipus)
            == sum(variable.size for variable in whole.variables)
        )
        on_tile = step.notAlwaysLiveMemoryForTile(3)
        assert on_tile.bytes == sum(variable.size for variable in on_tile.variables)
    assert report.compilation.tilesWithLivenessInfo == list(range(8 * 1472))


def test_what_always_lives_is_told_by_name_or_category(report):
    always = report.compilation.alwaysLiveVariables
    tiles = report.compilation.tiles[: 4 * 1472]
    assert sum(variable.size for variable in always) == sum(
        tile.memory.alwaysLiveBytes for tile in tiles
    )
    of_tile = {v.name: v.size for v in report.compilation.alwaysLiveVariablesForTile(700)}
    assert sum(of_tile.values()) == report.compilation.tiles[700].memory.alwaysLiveBytes
    code = (
        "vertexCode",
        "vertexInstanceState",
        "internalExchangeCode",
        "controlCode",
        "hostExchangeCode",
    )
    for name in code:
        assert of_tile[name] == getattr(report.compilation.tiles[700].memory.category, name).total
    assert "copyDescriptor" in of_tile, "a category is there even where nothing is in it"
    assert any(variable.name.startswith("conv1.weight") for variable in always)


def test_lowered_variables_are_the_pieces_of_variables(report, plain):
    brief = report.compilation.loweredVariables.allBriefVars
    assert not plain.variables.duplicated(["ipu", "name"]).any()
    by_variable, ids, by_tile = Counter(), set(), Counter()
    for variable in brief:
        by_variable[variable.name] += variable.bytes
        ids.add(variable.id)
        by_tile[variable.tileId] += 1
    assert len(ids) == len(brief)
    assert by_variable == plain.variables.groupby("name")["bytes"].sum().to_dict()
    for index in (0, 1, 12_345, len(brief) - 1):
        one = brief[index]
        assert one._id == index
        (same,) = [
            v for v in report.compilation.loweredVariables.forTile(one.tileId) if v._id == one.id
        ]
        assert (same.name, same.bytes, same) == (one.name, one.bytes, one)
    for tile in (0, 1472 * 3 + 9):
        of_tile = report.compilation.loweredVariables.forTile(tile)
        assert len(of_tile) == by_tile[tile]
        step = report.compilation.livenessProgramSteps[40]
        live = {entry: entry.size for entry in step.notAlwaysLiveMemoryForTile(tile).variables}
        pieces = {
            v.unloweredVar: v.bytes
            for v in of_tile
            if v.hasUnloweredVar and not v.alwaysLive and lives(v.equivalenceClass, 40)
        }
        assert pieces == live
    steps = len(report.compilation.livenessProgramSteps)
    (always,) = next(v for v in brief if v.alwaysLive).equivalenceClass.steps
    assert (always.start, always.end) == (0, steps)


def test_entries_by_index_are_those_of_a_walk(report):
    """In order and out of order, across the ends of variables and counting from the end."""
    entries = report.compilation.loweredVariables.allBriefVars
    walked = [entry for entry, _ in zip(entries, range(4_000), strict=False)]
    assert [entries[at] for at in range(4_000)] == walked
    for at in (3_999, 0, 1_471, 1_472, 2_000, 17):
        one, other = entries[at], walked[at]
        assert (one.id, one.bytes, one.tileId, one.name) == (
            other.id,
            other.bytes,
            other.tileId,
            other.name,
        )
        assert one.equivalenceClass == other.equivalenceClass
    assert entries[-1].id == len(entries) - 1
    assert report.compilation.loweredVariables.allBriefVars is entries


def lives(equivalence, step):
    return any(interval.start <= step < interval.end for interval in equivalence.steps)


# -- execution ---


def test_executed_steps_are_the_reports(report, plain):
    runs = report.execution.runs
    assert [run.name for run in runs] == ["run 0", "run 1"]
    assert (
        report.execution.totalCycles.total
        == report.execution.totalCycles
        == plain.runs["cycles"].sum()
    )
    assert len(report.execution.steps) == sum(len(run.steps) for run in runs)
    for number, run in enumerate(runs):
        frame = plain.steps(number)
        spent = [[0] * 8, frame.groupby("ipu")["cycles"].sum().tolist()]
        assert spent[1] == [plain.runs["cycles"][number]] * 4, "waiting is time of a step too"
        frame = frame[frame["step"] >= 0]
        moved = 0
        for step in run.steps:
            for ipu, part in enumerate(step.ipus):
                spent[0][ipu] += part.cycles
                assert (
                    part.activeCycles.cyclesTo.max - part.activeCycles.cyclesFrom.max == part.cycles
                )
                moved += part.dataIn
        assert spent[0] == spent[1] * 2
        sums = plain.program_steps().set_index("step")["bytes_in"]
        assert moved == 2 * int(sums.loc[frame["step"]].sum())
        microseconds = run.microseconds.end - run.microseconds.start
        assert microseconds == pytest.approx(
            plain.runs["cycles"][number] / plain.target.clock_hz * 1e6, abs=1
        )
    times = [
        (s.ipus[0].activeCycles.cyclesFrom.max, s.ipus[0].activeCycles.cyclesTo.max)
        for s in runs[0].steps
    ]
    assert max(to for _, to in times) - min(start for start, _ in times) <= plain.runs["cycles"][0]


def test_what_ipus_do_together_is_one_step(report, plain):
    """Programs look for the n-th global exchange to find where the pipeline is full."""
    steps = report.execution.runs[0].steps
    exchanges = [step for step in steps if step.program.type == pva.Program.Type.GlobalExchange]
    cycles = plain.pipeline_cycles(0)
    assert len(exchanges) == 2 * len(cycles), (
        "one a pipeline cycle, and one between the replicas before the update"
    )
    assert all(sum(part.cycles > 0 for part in step.ipus) >= 2 for step in exchanges[1:-1][:3])
    syncs = [
        s for s in steps if s.program.type == pva.Program.Type.Sync and s.program.name == "External"
    ]
    assert syncs and all(part.cycles > 0 for part in syncs[0].ipus)
    alone = next(step for step in steps if step.program.type == pva.Program.Type.OnTileExecute)
    assert sum(part.cycles > 0 for part in alone.ipus) == 2, "one IPU of each replica"
    idle = next(part for part in alone.ipus if part.cycles == 0)
    assert (
        idle.activeCycles.cyclesFrom.max
        == idle.activeCycles.cyclesTo.max
        == alone.allCycles.cyclesFrom.min
    )


def test_an_external_sync_lasts_as_long_as_its_ipu_waits(report, plain):
    """It does so on the machine, so programs that leave out syncs are left with work."""
    syncs = Counter()
    for step in report.execution.runs[0].steps:
        if step.program.type == pva.Program.Type.Sync and step.program.name == "External":
            parts = step.ipus[:4]
            assert len({part.activeCycles.cyclesTo.max for part in parts}) == 1
            assert sum(step.cyclesByTile) == 2 * 1472 * sum(part.cycles for part in parts)
            for ipu, part in enumerate(parts):
                syncs[ipu] += part.cycles
    kinds = plain.cycle_proportions(0)
    assert [syncs[ipu] for ipu in range(4)] == (kinds["idle"] + kinds["external sync"]).tolist()[:4]


def test_stages_cost_what_is_left_of_a_full_pipeline_cycle(report, plain):
    """This is how ``pva_utils`` of the vendor's automatic pipelining finds the slowest IPU.

    It adds up the steps between two exchanges of the full pipeline, without exchanges, syncs and
    streams.
    """
    cycles = full_pipeline_compute(report, plain)
    stages = plain.stages
    assert cycles == (stages["forward_cycles"] + stages["backward_cycles"]).tolist()
    assert int(np.argmax(cycles)) == int(stages["cycles"].idxmax())


def full_pipeline_compute(report, plain):
    """Compute cycles of each IPU of a replica, in a pipeline cycle in which all of them work."""
    steps = report.execution.runs[0].steps
    (at,) = np.flatnonzero(plain.pipeline_cycles(0)["phase"] == "steady")[:1]
    exchanges = [step for step in steps if step.program.type == pva.Program.Type.GlobalExchange]
    begin, end = exchanges[at - 1], exchanges[at]
    outside = {"GlobalExchange", "StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd"}
    left = [
        end.ipus[ipu].activeCycles.cyclesTo.max - begin.ipus[ipu].activeCycles.cyclesTo.max
        for ipu in range(4)
    ]
    for step in steps:
        external = step.program.type.name == "Sync" and step.program.name == "External"
        for ipu, part in enumerate(step.ipus[:4]):
            time = part.activeCycles
            between = (
                time.cyclesFrom.max >= begin.ipus[ipu].activeCycles.cyclesTo.max
                and time.cyclesTo.max <= end.ipus[ipu].activeCycles.cyclesTo.max
            )
            if between and (external or step.program.type.name in outside):
                left[ipu] -= part.cycles
    return left


def test_a_compute_step_says_what_its_tiles_did(report):
    for step in report.execution.runs[0].steps[:400]:
        tiles = np.array(step.cyclesByTile)
        assert len(tiles) == 8 * 1472
        for ipu, part in enumerate(step.ipus):
            own = tiles[ipu * 1472 : (ipu + 1) * 1472]
            if step.program.type == pva.Program.Type.OnTileExecute and part.cycles:
                busy = own[own > 0]
                assert own.max() <= part.cycles
                assert (
                    part.activeCycles.cyclesTo.min == part.activeCycles.cyclesFrom.min + busy.min()
                )
                assert part.tileBalance == pytest.approx(own.mean() / own.max())
                assert part.activeTileBalance == pytest.approx(busy.mean() / own.max())
                (compute_set,) = step.computeSets
                assert (
                    compute_set.cyclesByTile == compute_set.estimatedCyclesByTile == tiles.tolist()
                )
        if step.program.type != pva.Program.Type.OnTileExecute:
            assert step.computeSets == []


def test_blocks_of_a_tile_are_its_part_of_the_steps(report):
    blocks = report.execution.blocks(20)
    spent = sum(block.cyclesTo - block.cyclesFrom for block in blocks)
    assert spent == sum(step.cyclesByTile[20] for step in report.execution.steps)
    assert any(block.isStreamCopy for block in blocks)
    assert {(block.tile, block.isOverflow) for block in blocks} == {(20, False)}


def test_a_report_without_a_schedule_has_an_empty_execution(path, tmp_path):
    copy = tmp_path / "compiled.pop"
    with open_report(path) as known, ProfileWriter(copy) as writer:
        writer.add([known.target])
        writer.publish()
    empty = pva.openReport(copy)
    assert empty.execution.totalCycles.total == 0
    assert len(empty.execution.steps) == len(empty.execution.runs) == 0
    assert len(empty.compilation.livenessProgramSteps) == len(empty.compilation.programs) == 0
    assert list(pva.OperationAnalysis(empty).operations) == []
    assert list(empty.compilation.loweredVariables.allBriefVars) == []


# -- operations ---


def test_operations_say_where_they_come_from(report, plain):
    operations = pva.OperationAnalysis(report).operations
    named = [operation for operation in operations if operation.name]
    assert {operation.name for operation in named} == set(plain.ops["popart_name"])
    firsts = [o.firstStepIndex for o in operations if o.firstStepIndex >= 0]
    assert firsts == sorted(firsts)
    assert len({operation.name for operation in named}) == len(named)
    ids = {operation.debugContext.id for operation in operations}
    assert len(ids) == len(operations)
    for operation in named:
        context = operation.debugContext
        assert json.loads(context.layer)["layer"] == "popart"
        assert operation.replacedDebugContext == []
        (parent,) = context.parents
        about = json.loads(parent.json)
        assert about["layer"] == json.loads(parent.layer)["layer"] == "poptorch"
        assert about["op_name"] == operation.name and about["op_type"] in operation.name.split("/")
        assert about["torch_schema"].startswith("aten::")
    forward = next(operation for operation in named if operation.name == "conv1/Conv")
    assert json.loads(forward.debugContext.parents[0].json)["op_type"] == "Conv"
    assert json.loads(forward.debugContext.parents[0].json)["torch_schema"] == "aten::convolution"
    assert os.path.basename(forward.debugContext.location.fileName) == "models.py"
    line = (
        (ROOT / "tests" / "models.py")
        .read_text()
        .splitlines()[forward.debugContext.location.lineNumber - 1]
    )
    assert "self.conv1(x)" in line
    assert json.loads(forward.debugContext.json)["inputs"] == [
        "conv1.bias",
        "conv1.weight",
        "input.0",
        "input.0/stash",
    ]
    assert json.loads(forward.debugContext.json)["outputs"] == ["conv1/convolution:0"]


def test_every_step_is_in_one_operation(report):
    operations = pva.OperationAnalysis(report).operations
    ids = [program._id for operation in operations for program in operation.programs()]
    steps = report.compilation.livenessProgramSteps
    assert sorted(ids) == sorted(step.program._id for step in steps)
    for operation in operations:
        if operation.programs():
            first, last = steps[operation.firstStepIndex], steps[operation.lastStepIndex]
            assert (
                first.program == operation.programs()[0]
                and last.program == operation.programs()[-1]
            )
        else:
            assert operation.firstStepIndex == operation.lastStepIndex == -1
    nameless = [json.loads(one.debugContext.json)["name"] for one in operations if not one.name]
    assert any("inputs from host" in name for name in nameless)


def test_variables_of_programs_live_where_they_are_used(report):
    steps = report.compilation.livenessProgramSteps
    for at in range(0, len(steps), 13):
        for variable in list(steps[at].program.vars)[::1500]:
            assert lives(variable.equivalenceClass, at), (steps[at].program.name, variable.name)
    operation = next(o for o in pva.OperationAnalysis(report).operations if o.name == "conv1/Conv")
    names = {variable.name for variable in operation.vars}
    assert {"conv1.weight", "conv1.bias", "input.0", "conv1/convolution:0"} <= names
    assert "conv2.weight" not in names


# -- the rest ---


def test_objects_can_be_read_and_found_with_dir(report):
    report.listPrintLength(2)
    assert (
        "... " in repr(report.compilation.programs)
        and repr(report.compilation.programs).count("Program(") == 2
    )
    report.listPrintLength(10)
    words = repr(report)
    assert "numIPUs=8" in words and "run 1" in words
    for entry, names in (
        (
            report,
            {"compilation", "execution", "poplarVersion", "version", "instrumentationSettings"},
        ),
        (
            report.compilation,
            {"graph", "target", "tiles", "ipus", "programs", "computeSets", "loweredVariables"},
        ),
        (report.execution.steps[0], {"program", "cyclesByTile", "computeSets", "ipus"}),
        (report.compilation.tiles[0].memory.category, {"vertexCode", "constant", "copyDescriptor"}),
    ):
        assert names <= set(dir(entry))
        assert repr(entry)


def test_host_trace(path):
    ((thread,),) = [process.threads for process in pva.openTrace(path).processes]
    assert [(event.label, event.duration, event.children()) for event in thread.events] == [
        ("run 0", 4, []),
        ("run 1", 4, []),
    ]


def test_a_script_under_ipu_run_imports_it_as_pva(tmp_path):
    profile = synthetic_profile(tmp_path / "profile.pop")
    script = tmp_path / "client.py"
    script.write_text(
        "import pva, pva.pva_core, sys\nfrom pva import openReport, ProgramVisitor\nassert"
        " pva.pva_core.ExecutionStep is pva.ExecutionStep\nreport ="
        " openReport(sys.argv[1])\nprint(sum(step.ipus[0].cycles for step in"
        " report.execution.steps))\n"
    )
    run = "import sys; from ipu_exec.commands.run import main; sys.exit(main())"
    command = [sys.executable, "-c", run, str(script), str(profile)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    known = open_report(profile)
    assert int(done.stdout) == known.runs["cycles"].sum()


def test_a_file_that_is_no_profile_is_named(tmp_path):
    (tmp_path / "profile.pop").write_bytes(b"no profile")
    with pytest.raises(ProfileError, match=r"profile\.pop"):
        pva.openReport(tmp_path / "profile.pop")


def test_the_execution_of_a_compiled_report_is_its_predicted_call(tmp_path):
    compiled = pva.openReport(synthetic_profile(tmp_path / "compiled.pop", runs=0)).execution
    ran = pva.openReport(synthetic_profile(tmp_path / "ran.pop", runs=1)).execution
    assert [run.name for run in compiled.runs] == ["one call, predicted"]
    assert compiled.totalCycles.total == ran.totalCycles.total > 0
    assert len(compiled.steps) == len(ran.steps) > 0

"""From the peak to MFU: every cycle of every tile once, by hand and by SQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ipuscope.profiler import ProfileWriter, Report, analysis, open_report
from ipuscope.profiler.analysis import facts, peak
from ipuscope.profiler.enums import BodyTask, Purpose
from ipuscope.profiler.file import records
from ipuscope.reports.cli import main
from tests.synthetic import tile_memory

_PRODUCT, _COPY, _MORE = range(3)  # compute sets


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    """One IPU of 4 tiles for 1,000 cycles: forward twice, once again, an update and waits.

    The products' operands are fp16: 128 FLOPs a cycle on a tile, 512 on the IPU.
    """

    def step(id: int, body: int, op: int, type: str, cycles: int, set: int = -1) -> records.Step:
        busy = {_PRODUCT: [100, 50, 50, 0], _COPY: [40, 40, 0, 0], _MORE: [20, 20, 20, 20]}
        over = np.array(busy[set]) if set >= 0 else None
        moved = np.full(4, 64) if type == records.DO_EXCHANGE else None
        purpose = Purpose.STREAM_IN if type == records.STREAM_COPY_MID else Purpose.OPERATOR
        name, program = f"step {id}", id + 1
        return records.Step(
            id, 0, id, program, body, op, type, name, cycles, set, over, moved, moved, purpose
        )

    computes, exchanges, syncs = records.ON_TILE_EXECUTE, records.DO_EXCHANGE, records.SYNC
    steps = [
        step(0, 0, 0, exchanges, 30),
        step(1, 0, 0, computes, 100, _PRODUCT),
        step(2, 0, 1, syncs, 10),
        step(3, 0, 1, computes, 40, _COPY),
        step(4, 1, 0, exchanges, 30),
        step(5, 1, 0, computes, 100, _PRODUCT),
        step(6, 2, 2, computes, 20, _MORE),
        step(7, 3, -1, records.STREAM_COPY_MID, 50),
    ]
    bodies = []
    for id, (kind, task, direction, own) in enumerate(
        [
            ("task", BodyTask.FORWARD, "forward", steps[:4]),
            ("task", BodyTask.RECOMPUTE, "recompute", steps[4:6]),
            ("task", BodyTask.UPDATE, "update", steps[6:7]),
            ("host I/O", BodyTask.STREAM_IN, "", steps[7:]),
            ("idle", BodyTask.IDLE, "", []),
        ]
    ):
        cycles = np.array([one.cycles for one in own], dtype=np.int64)
        ids = np.array([one.id for one in own], dtype=np.int64)
        starts = np.cumsum(cycles) - cycles
        row = (id, f"body {id}", 0, 0, kind, direction, int(cycles.sum()), ids, starts, task)
        bodies.append(records.Body(*row))
    lengths = [50, 180, 180, 200, 130, 20, 240]
    start = np.cumsum([0, *lengths[:-1]])
    columns = [start, start + lengths, np.array([3, 0, 0, 4, 1, 2, 4])]
    columns += [
        np.zeros(7, int),
        np.array([0, 0, 1, -1, 0, -1, -1]),
        np.array([0, 0, 1, 1, 2, 2, 2]),
    ]
    cycles_of = [
        records.PipelineCycle(0, 0, "ramp-up", 0, 230, 0),
        records.PipelineCycle(0, 1, "ramp-down", 230, 610, 0),
        records.PipelineCycle(0, 2, "steady", 610, 1000, 0),
    ]
    ops = [
        records.Op(id, f"op {id}", "aten", way, -1, 0, 0, "", "", 0, -1, flops, 1, 0, "")
        for id, (way, flops) in enumerate((("forward", 12_800), ("forward", 0), ("update", 80)))
    ]
    sets = [
        records.ComputeSet(_PRODUCT, "", 0, 0, 12_800),
        records.ComputeSet(_COPY, "", 0, 1, 0),
        records.ComputeSet(_MORE, "", 0, 2, 80),
    ]
    kinds = [
        records.VertexType(0, "poplin::ConvPartial1x1Out<half,float,true,false,8>", 1, 1),
        records.VertexType(1, "popops::Fill<half>", 1, 1),
    ]
    uses = [records.VertexUse(at, min(at, 1), np.ones(4, dtype=np.int64)) for at in range(3)]
    target = records.Target("mk2", "ipu2", 1, 1, 1, 4, 638_976, 212_992, 1.33e9, 6)
    stage = records.Stage(0, 0, 180, 130, 130, 20, 1, 0, 0, 0)
    root = records.Program(0, -1, 0, records.SEQUENCE, "all", 1)
    programs = [records.Program(one.program, 0, one.id, one.type, one.name, 1) for one in steps]
    path = tmp_path_factory.mktemp("by hand") / "profile.pop"
    with ProfileWriter(path, writer="tests") as writer:
        writer.meta(kind="training", model="By hand", micro_batch=1, state="executed")
        writer.add([target, stage, root, *programs, *ops, *sets, *kinds, *uses, *steps, *bodies])
        with open_report(writer.publish()) as report:
            writer.add(tile_memory(report))
        writer.add([records.Trace(0, 1, 1000, *columns), *cycles_of])
        writer.add([records.Run(0, "run", 0, 0, 0, 1)])
        writer.publish()
    with open_report(path) as report:
        yield report


def test_the_way_from_the_peak_by_hand(by_hand: Report) -> None:
    """FLOPs that the tiles could have done at 128 a cycle each; forward counts twice."""
    found = peak.peak(by_hand)
    assert found is not None
    assert (found.dtype, found.flops_per_cycle, found.machine) == ("float16", 512, 512_000)
    assert (found.model, found.again) == (2 * 12_800 + 80, 12_800)
    expected = {
        peak.RAMPS: 200 * 512,
        peak.WAITING: 240 * 512,
        peak.HOST: 50 * 512,
        peak.AGAIN: 130 * 512,
        peak.EXCHANGE: 2 * 30 * 512,
        peak.SYNC: 2 * 10 * 512,
        peak.IDLE_TILES: 2 * (100 * 512 - 200 * 128) + 2 * (40 * 512 - 80 * 128),
        peak.REARRANGING: 2 * 80 * 128,
        peak.BELOW: 2 * (200 * 128 - 12_800) + (80 * 128 - 80),
    }
    assert found.parts == {name: expected.get(name, 0) for name in peak.PARTS}
    assert found.model + sum(found.parts.values()) == found.machine
    assert found.mfu == pytest.approx(0.05015625) and found.hfu == pytest.approx(0.07515625)
    lost = peak.lost(by_hand)
    assert lost.loc[0, [peak.EXCHANGE, peak.BELOW, "model"]].tolist() == [30_720, 25_600, 25_600]
    assert peak.of_stages(by_hand)[0] == pytest.approx(found.mfu)


def test_the_ceiling_of_an_operator_is_its_units_or_the_exchanges(by_hand: Report) -> None:
    ops = analysis.operators(by_hand)
    product, update = ops.loc[0], ops.loc[2]
    assert (product["unit"], update["unit"]) == ("AMP", "vector")
    assert product["roof"] == min(512, 12_800 / (4 * 64) * 4 * 4)
    assert product["of_roof"] == pytest.approx(12_800 / 1 / 512)
    assert product["why"] == "3 of 4 tiles at work"
    assert ops.loc[1, "why"] == "2 of 4 tiles at work" and np.isnan(ops.loc[1, "of_roof"])


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_mfu_agrees_with_sql_and_with_all_views(
    demo: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The operators' FLOPs times executions, from the plain tables."""
    path = demo / kind
    with open_report(path) as report, closing(sqlite3.connect(report.path)) as sql:
        found, shares = peak.peak(report), peak.of_stages(report)
        assert found is not None and found.dtype == "float32"
        ops = analysis.operators(report)
        assert found.model == (ops["flops"] * ops["executions"]).sum()
        assert found.model + sum(found.parts.values()) == found.machine
        assert (peak.lost(report) >= 0).all(axis=None)
        cycles, tiles, ipus = sql.execute(
            "SELECT iteration_cycles, tiles_per_ipu, ipus_per_replica FROM traces, target"
        ).fetchone()
        flops = {
            way: sql.execute(
                "SELECT coalesce(sum(flops), 0) FROM tasks JOIN bodies ON bodies.id = tasks.body"
                " JOIN body_steps USING (body) JOIN program_steps p ON p.id = body_steps.step"
                " JOIN compute_set_info c ON c.id = p.compute_set"
                f" WHERE trace = 0 AND direction {way} 'recompute'"
            ).fetchone()[0]
            for way in ("=", "<>")
        }
        words = found.words
    assert found.machine == cycles * ipus * tiles * 2 * 16
    assert (flops["<>"], flops["="]) == (found.model, found.again)
    assert sum(shares.values()) / ipus == pytest.approx(found.mfu)
    capsys.readouterr()
    main(["summary", "--json", str(path)])
    said = json.loads(capsys.readouterr().out)[0]
    assert [said["summary"]["mfu"], said["summary"]["hfu"]] == [found.mfu, found.hfu]
    assert sum(row["share"] for row in said["peak"]) == pytest.approx(1)
    main(["runs", "--json", str(path)])
    assert json.loads(capsys.readouterr().out)[0]["runs"][0]["mfu"] == found.mfu
    main(["compare", "--json", str(path), str(path)])
    rows = json.loads(capsys.readouterr().out)[0]["compare"]
    assert next(row["a"] for row in rows if row["what"] == "MFU") == found.mfu
    main(["stages", str(path)])
    assert " ".join(words.split()) in " ".join(capsys.readouterr().out.split())


def test_without_operations_there_is_no_peak(by_hand: Report, tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    path.write_bytes(by_hand.path.read_bytes())
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("UPDATE target SET architecture = 'another'")
        sql.commit()
    with open_report(path) as report:
        assert peak.peak(report) is None and peak.lost(report).empty
        assert facts.facts(report).peak is None

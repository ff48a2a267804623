"""Facts: the numbers of a profile, which every first look shows in the same words."""

from __future__ import annotations

import html
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from ipuscope.profiler import analysis, confidence, open_report
from ipuscope.profiler.analysis import facts
from ipuscope.profiler.report import Report
from ipuscope.reports.cli import main
from ipuscope.reports.html import page
from tests.synthetic import synthetic_profile


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_all_first_looks_say_the_same(
    demo: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    with open_report(demo / kind) as report:
        rows, shown = facts.in_words(report), report._repr_html_()
        whole = page(report).replace("<wbr>", "")
    assert main(["summary", str(demo / kind)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for label, words in rows:
        assert f"{label} {' '.join(words.split())}".strip() in printed
        assert html.escape(words) in shown and html.escape(words) in whole


def test_facts_are_the_reports_numbers(demo: Path) -> None:
    with open_report(demo / "training") as report:
        of, tile, pace = facts.facts(report), facts.fullest(report), analysis.pace(report)
        assert of.speed is not None and of.slowest is not None and tile is not None
        assert (of.speed.cycles, of.speed.micro_batches) == (pace.cycles, pace.micro_batches)
        assert of.speed.waiting == analysis.waiting(report)
        proportions = report.cycle_proportions(0)
        idle = proportions["idle"].sum() / proportions["total"].sum()
        assert of.speed.waiting == pytest.approx(idle)
        assert of.operators == len(report.ops) and of.steps == len(report.program_steps())
        most = report.stages["cycles"].max()
        assert report.stages.set_index("stage").at[of.slowest.stage, "cycles"] == most
        assert tile.used == analysis.fullest_tiles(report).max()


def test_the_slowest_stage_is_the_stages_own_and_the_slowest_ipu_beside_it() -> None:
    names = np.array(["B0", "B1", "B2"], dtype=object)
    columns = {"stage": np.arange(3), "ipu": np.array([0, 1, 0]), "blocks": names}
    columns["cycles"] = np.array([20, 25, 11])
    fake = SimpleNamespace(stage_columns=columns, trace=SimpleNamespace(columns={"id": []}))
    slow = facts.slowest_of(cast(Report, fake))
    assert slow is not None
    assert (slow.stage, slow.ipu, slow.cycles) == (1, 0, 31)


def test_a_rate_is_given_with_its_doubt(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_report(demo / "training") as report:
        one, of = facts.facts(report).speed, confidence.confidence(report)
    assert one is not None and one.likely is not None and of is not None and of.likely > 0
    low, high = one.likely
    assert low < one.samples_per_second < high
    assert one.samples_per_second / low - 1 <= of.likely + 1e-3
    main(["summary", "--json", str(demo / "training")])
    said = json.loads(capsys.readouterr().out)[0]["summary"]
    assert [said[f"samples_per_second_{end}"] for end in ("low", "high")] == [low, high]
    assert "likely" not in facts.rate(replace(one, likely=None))


def test_memory_near_the_limit_is_in_doubt(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with open_report(path) as report:
        known = facts.fullest(report)
        assert known is not None
        extents = [report.tiles(ipu)["total"].max() for ipu in range(4)]
        assert known.used <= known.extent == extents[known.ipu]
    for limit, sure in ((2 * known.extent, True), (known.extent + known.extent // 50, False)):
        with closing(sqlite3.connect(path)) as file:
            file.execute(f"UPDATE target SET bytes_per_tile = {limit}")
            file.commit()
        with open_report(path) as report:
            words = dict(facts.in_words(report))["fullest tile"]
            assert ("compile to know" in words) == (not sure)


def test_a_profile_without_a_schedule_has_no_speed(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with closing(sqlite3.connect(path)) as file:
        file.execute("DELETE FROM runs")
        file.execute("DELETE FROM traces")
        file.commit()
    with open_report(path) as report:
        assert facts.facts(report).speed is None
        assert "did not get so far" in dict(facts.in_words(report))["runs"]


def test_options_that_the_script_did_not_set_are_left_out(demo: Path) -> None:
    with open_report(demo / "training") as report:
        shown = dict(facts.set_options(report))
        assert shown["Training.gradientAccumulation"] == 10
        assert "executionStrategy" in shown and len(shown) < 10 < len(report.options)
        assert not {"syncPattern", "maxRepeatLogs", "stableNorm"} & {*shown}


def test_figures_say_which_package_draws_them(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_report(demo / "training") as report:
        monkeypatch.setattr(type(report), "drawn", None)
        with pytest.raises(AttributeError, match=r"import ipuscope\.viewer first"):
            _ = report.figures

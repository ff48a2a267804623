"""The page of a sweep's runs: its table, its lines, and what a click opens."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ipuscope.planner.mappings.sweep_runs import RunsError, read, settings_of
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.sweep import coordinates
from ipuscope.viewer.sweep_app import create_sweep_app, opened

SETTING = "Training.gradientAccumulation"


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\xff,", b'a,"b\n', b"x," * 200_000 + b"\n"])
def test_a_table_that_is_none_is_a_line_and_soon(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "runs.csv").write_bytes(content)
    with pytest.raises(RunsError, match=r"is no table of runs .* Make one with: ipu-run"):
        read(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of three runs, one of which failed, moved from where it was made."""
    rows = []
    for turns, speed in ((16, 10.0), (32, 20.0), (64, 0.0)):
        profile = tmp_path / f"turns={turns}" / "training" / "profile.pop"
        profile.parent.mkdir(parents=True)
        profile.touch()
        elsewhere = Path("/elsewhere").joinpath(*profile.parts[-3:])
        rows.append(
            {
                "micro-batch": 2,
                SETTING: turns,
                "ipus": 4,
                "cycles": 1_000_000 * turns,
                "samples_per_second": speed,
                "fullest_bytes": 1024 * turns,
                "problem": "" if speed else "out of memory",
                "profile": str(elsewhere),
            }
        )
    pd.DataFrame(rows).to_csv(tmp_path / "runs.csv", index=False)
    return tmp_path


def test_a_sweep_is_read_wherever_it_was_moved(folder: Path) -> None:
    runs = read(folder)
    assert settings_of(runs) == ["micro-batch", SETTING]
    assert runs["profile"][1] == str(folder / "turns=32" / "training" / "profile.pop")
    assert read(folder / "runs.csv").equals(runs)


def test_a_strangers_table_is_refused_or_opens_nothing_outside(folder: Path) -> None:
    table = (folder / "runs.csv").read_text()
    (folder / "runs.csv").write_text(table.replace("/elsewhere/turns=32", "/etc/.."))
    assert read(folder)["profile"][1] == ""
    (folder / "runs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunsError, match="is no table of runs"):
        read(folder)


def test_every_run_that_ran_is_a_line_the_quickest_on_top(folder: Path) -> None:
    runs = read(folder)
    figure = coordinates(runs, settings_of(runs), themes.theme("dark"))
    assert [line.customdata[0] for line in figure.data] == [0, 1]
    slow, fast = (list(line.y) for line in figure.data)
    assert slow == [0.0, 0.0, 0.0, 0.0, 0.0] and fast == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert f"{SETTING} 32" in figure.data[1].text[0]


def test_a_click_on_a_run_opens_its_viewer_or_says_why_not(folder: Path) -> None:
    runs = read(folder)
    link = opened(runs.iloc[0], lambda path: f"http://here{path}").children[0]
    assert link.href == f"http://here{runs['profile'][0]}" and link.children == "Open turns=16"
    lost = runs.assign(profile="").iloc[2]
    assert "out of memory" in str(opened(lost, lambda path: None))


def test_the_app_answers(folder: Path) -> None:
    app = create_sweep_app(read(folder), "out", lambda path: None)
    answer = app.server.test_client().get("/_dash-layout", headers={"Host": "localhost"})
    assert answer.status_code == 200
    assert b"3 runs of micro-batch, Training.gradientAccumulation; 1 failed" in answer.data

"""The page of many runs: its table, its lines, and what a click opens."""

from __future__ import annotations

import pandas as pd
import pytest

from ipuscope.profiler.analysis.runs import settings_of
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.runs import coordinates
from ipuscope.viewer.runs_app import create_runs_app, opened

SETTING = "Training.gradientAccumulation"


@pytest.fixture
def runs() -> pd.DataFrame:
    """Three runs, of which one does not fit."""
    rows = [
        {
            "profile": f"/out/turns={turns}/training/profile.pop",
            "levers": f"half,{SETTING}={turns}" if turns < 64 else f"{SETTING}={turns}",
            "place": f"turns={turns}/training",
            "model": "Mlp",
            "ipus": 4,
            "replicas": 1,
            "micro_batch": 2,
            "samples": 2 * turns,
            "cycles": 1_000_000 * turns,
            "samples_per_second": speed,
            "fullest_bytes": 1024 * turns,
            "fits": bool(speed),
        }
        for turns, speed in ((16, 10.0), (32, 20.0), (64, 0.0))
    ]
    return pd.DataFrame(rows)


def test_settings_are_what_differs_between_runs(runs: pd.DataFrame) -> None:
    settings = settings_of(runs)
    assert list(settings) == ["half", SETTING, "samples"]
    assert settings["half"].tolist() == ["half", "half", ""]
    assert settings[SETTING].tolist() == [16, 32, 64]


def test_every_run_that_fits_is_a_line_the_quickest_on_top(runs: pd.DataFrame) -> None:
    figure = coordinates(runs, settings_of(runs)[[SETTING]], themes.theme("dark"))
    assert [line.customdata[0] for line in figure.data] == [0, 1]
    slow, fast = (list(line.y) for line in figure.data)
    assert slow == [0.0] * 4 and fast == [1.0] * 4
    assert f"{SETTING} 32" in figure.data[1].text[0]


def test_a_click_on_a_run_opens_its_viewer_or_names_the_command(runs: pd.DataFrame) -> None:
    link = opened(runs.iloc[0], lambda path: f"http://here{path}").children[0]
    assert link.href == f"http://here{runs['profile'][0]}" and link.children == "Open turns=16"
    assert "ipu-report view /out" in str(opened(runs.iloc[0], lambda path: None))


def test_the_app_answers(runs: pd.DataFrame) -> None:
    app = create_runs_app(runs, "out", lambda path: None)
    answer = app.server.test_client().get("/_dash-layout", headers={"Host": "localhost"})
    assert answer.status_code == 200
    assert b"3 runs; half, Training.gradientAccumulation, samples differ" in answer.data
    assert b"1 out of memory" in answer.data

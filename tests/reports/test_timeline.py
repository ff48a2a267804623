"""The text timeline: which IPU is drawn where, and that nothing is lost or too wide."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipuscope.profiler import open_report
from ipuscope.profiler.enums import STREAMS
from ipuscope.reports import text_timeline
from ipuscope.reports.cli import main as ipu_report
from ipuscope.reports.text_timeline import (
    grid,
    in_proportion,
    lane,
    legend,
    longest_task,
    phase_header,
    ruler,
    shares_of,
    short,
    stacked_bar,
)
from ipuscope.viewer.figures.theme import WAITING
from tests.synthetic import synthetic_profile


def drawn(lines: list[text_timeline.Line]) -> list[str]:
    return ["".join(words for words, _ in line) for line in lines]


@pytest.fixture(scope="module")
def iteration(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, pd.DataFrame]:
    path = synthetic_profile(tmp_path_factory.mktemp("profile") / "profile.pop")
    with open_report(path) as report:
        return report.tasks(0, iteration=0), report.pipeline_cycles(0, 0)


durations = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@given(durations, st.integers(1, 200))
def test_grid_covers_the_whole_time_in_at_most_the_columns_asked_for(
    lengths: list[int], columns: int
) -> None:
    end = np.cumsum(lengths)
    start = end - lengths
    drawn = grid(start, end, columns)
    assert len(drawn.edges) - 1 <= columns
    assert drawn.edges[0] == 0
    assert drawn.edges[-1] == end[-1]
    assert (np.diff(drawn.edges) > 0).all()
    assert len(drawn.cells) == len(lengths)
    if drawn.width > 1:  # a cell begins with its pipeline cycle
        assert drawn.edges[drawn.cells] == pytest.approx(start)


@given(durations, durations)
def test_every_column_has_the_task_that_fills_most_of_it(
    lengths: list[int], columns: list[int]
) -> None:
    end = np.cumsum(lengths)
    start = end - lengths
    edges = np.concatenate([[0], np.cumsum(columns)])
    tasks = longest_task(start, end, edges)
    for first, last, task in zip(edges[:-1], edges[1:], tasks, strict=True):
        overlap = np.minimum(end, last) - np.maximum(start, first)
        assert (task == -1) == (overlap.max() <= 0)
        if task >= 0:
            assert overlap[task] == overlap.max()


@given(durations, st.integers(1, 80))
@example([1, 868, 1, 795, 68, 214, 2, 145, 121, 372, 332, 4, 452, 571, 487, 1, 210, 71, 1000], 16)
def test_letters_of_many_tasks_are_as_frequent_as_their_time(
    lengths: list[int], columns: int
) -> None:
    """An IPU that is busy for half of a lane is not drawn as waiting, and none as always busy."""
    lengths = [1000 * one for one in lengths]  # a column is many cycles
    end = np.cumsum(lengths)
    start, code = end - lengths, np.array([0, WAITING, 1, 2])[np.arange(len(lengths)) % 4]
    edges = np.linspace(0, end[-1], columns + 1)
    shown = in_proportion(shares_of(start, end, code, edges))
    for one in (0, 1, 2, WAITING):
        share = sum(np.array(lengths)[code == one]) / end[-1]
        assert abs((shown == one).sum() - share * columns) <= 3
    for column, found in enumerate(shown):
        overlap = np.minimum(end, edges[column + 1]) - np.maximum(start, edges[column])
        assert overlap[code == found].max(initial=0) > 0


def test_a_lane_numbers_micro_batches_where_they_fit() -> None:
    tasks, code = np.array([0, 1, 1, 1, 2, 2]), np.array([0, 1, WAITING])
    assert lane(tasks, code, np.array([7, 7, -1])) == (
        ("F", text_timeline.ACTIVITIES[0].style),
        ("B7─", text_timeline.ACTIVITIES[1].style),
        ("··", "dim"),
    )
    assert drawn([lane(np.array([0, 0, 0]), np.array([0]), np.array([123]))]) == ["F──"]


def test_phases_are_bracketed_over_their_columns() -> None:
    header = phase_header(
        ["ramp-up", "ramp-up", "steady", "ramp-down"], np.array([0, 10, 20, 30]), 32
    )
    assert header == "├─────ramp-up──────┤├─steady─┤│ "
    assert len(header) == 32


def test_a_phase_without_room_for_its_name_has_none_of_it() -> None:
    cells = np.array([0, 9, 14])
    assert phase_header(["ramp-up", "steady", "update"], cells, 15) == "├ramp-up┤├───┤│"
    assert phase_header(["steady", "ramp-down", "steady"], cells, 15)[9:14] == "├───┤"
    assert phase_header(["steady", "ramp-down"], np.array([0, 5]), 10) == ""


def test_a_ruler_drops_labels_that_do_not_fit() -> None:
    assert ruler(np.array([0, 2, 4, 6]), 2, ["0", "1", "2", "3"]) == "0 1 2 3"
    assert ruler(np.array([0, 1, 2, 3]), 1, ["10", "11", "12", "3"]) == "10 3"


@pytest.mark.parametrize(
    ("cycles", "said"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0k"),
        (9949, "9.9k"),
        (9951, "10k"),
        (31_400, "31k"),
        (2_500_000, "2.5M"),
    ],
)
def test_cycles_are_said_in_four_characters(cycles: int, said: str) -> None:
    assert short(cycles) == said


@pytest.mark.parametrize("width", [40, 80, 133, 400])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_timeline_fits_its_width(
    iteration: tuple[pd.DataFrame, pd.DataFrame], width: int, unicode: bool
) -> None:
    lines = drawn(text_timeline.timeline(*iteration, width, unicode))
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("IPU ") for line in lines) == 4
    assert unicode or all(line.isascii() for line in lines)


def test_a_pipeline_fills_and_drains_on_the_diagonal(
    iteration: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    tasks, cycles = iteration
    lines = drawn(text_timeline.timeline(tasks, cycles, 400))
    width = text_timeline.MAX_CELL
    lanes = [line[len("slowest ") :] for line in lines if line.startswith("IPU ")]
    for ipu, row in enumerate(lanes):
        cells = [row[at : at + width] for at in range(0, len(row), width)]
        forward = [at for at, cell in enumerate(cells) if "F" in cell]
        # docs/pipeline-schedules.md#training: stage k runs micro-batch m in cycle k + m
        assert forward == list(range(ipu, ipu + 10))
        assert cells[ipu].count("F0") == 1
        backward = [at for at, cell in enumerate(cells) if "B" in cell]
        assert backward == list(range(6 - ipu, 16 - ipu))
        assert "U" in cells[16]


def test_the_legend_explains_each_letter_once_and_wraps() -> None:
    entries = [(one.letter, one.style, f" {one.name}   ") for one in text_timeline.ACTIVITIES]
    lines = drawn(legend(entries, 40))
    assert max(map(len, lines)) <= 40
    words = " ".join(lines) + " "
    letters = [one.letter for one in text_timeline.ACTIVITIES]
    assert len({*letters}) == len(letters)
    assert [words.count(f"{one.letter} {one.name} ") for one in text_timeline.ACTIVITIES] == [
        1 for _ in letters
    ]


def test_streams_have_a_letter_of_their_own(iteration: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    tasks, cycles = iteration
    streams = tasks.drop(columns=["body", "task"]).assign(kind="host I/O", direction="")
    assert "m streaming memory" not in drawn(text_timeline.timeline(streams, cycles, 400))[-1]
    streams = streams.assign(task=STREAMS[0])
    assert "m streaming memory" in drawn(text_timeline.timeline(streams, cycles, 400))[-1]


def test_no_pipeline_cycles_draws_a_sentence(iteration: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    tasks, cycles = iteration
    assert "nothing to draw" in drawn(text_timeline.timeline(tasks.head(0), cycles.head(0), 80))[0]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any), st.integers(1, 100))
def test_a_stacked_bar_is_as_long_as_it_should_be(parts: list[int], width: int) -> None:
    bar = stacked_bar([("#", "", part / sum(parts)) for part in parts], width)
    assert sum(len(words) for words, _ in bar) == width


def test_a_profile_on_disk_can_be_drawn_narrower_than_its_pipeline(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", micro_batches=200, steps_per_body=3)
    with open_report(path) as report:
        lines = drawn(
            text_timeline.timeline(report.tasks(0, iteration=0), report.pipeline_cycles(), 80)
        )
    lane = next(line for line in lines if line.startswith("IPU 2"))
    assert len(lane) <= 80
    with open_report(path) as report:
        tasks = report.tasks(0, ipu=2, iteration=0)  # the slowest stage
        share = tasks["cycles"].groupby(tasks["direction"]).sum() / tasks["cycles"].sum()
    letters = lane.partition("IPU 2")[2].strip()
    assert letters.count("B") / len(letters) == pytest.approx(share["backward"], abs=0.05)


def test_ipus_that_share_tensors_are_one_row(
    iteration: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    lines = drawn(text_timeline.timeline(*iteration, 60, unicode=False, shards=8))
    rows = [line for line in lines if line.startswith("IPU ")]
    assert [row[:10] for row in rows] == [f"IPU {ipu} x 8 " for ipu in range(4)]


def test_a_width_is_obeyed_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", ipus=2, micro_batches=40)
    for few in ("0", "3", "39"):
        with pytest.raises(SystemExit) as ended:
            ipu_report(["pipeline", "--width", few, str(path)])
        assert ended.value.code == 2
        said = f"argument --width: {few} is too narrow: a drawing takes 40 columns or more"
        assert said in capsys.readouterr().err
    assert ipu_report(["pipeline", "--width", "40", str(path)]) == 0
    drawing = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert 36 < max(map(len, drawing)) <= 40


def test_lanes_of_many_ipus_that_are_alike_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A drawing of 24 IPUs fits a page, and has the same lanes as the one of each."""
    path = synthetic_profile(tmp_path / "profile.pop", ipus=24, micro_batches=60, steps_per_body=3)
    common = ["pipeline", "--ascii", "--width", "80", str(path)]
    assert ipu_report(common) == 0
    folded = [line for line in capsys.readouterr().out.splitlines() if line.startswith("IPU ")]
    assert ipu_report([*common, "--each"]) == 0
    each = [line for line in capsys.readouterr().out.splitlines() if line.startswith("IPU ")]
    assert len(each) == 24 > len(folded)
    assert max(map(len, folded + each)) <= 80
    more = [re.search(r", (\d+) more", line) for line in folded]
    ranges = [re.match(r"IPU (\d+)(?:-(\d+))?", line) for line in folded]
    count = sum(int(one[2] or one[1]) - int(one[1]) + 1 for one in ranges if one)
    assert count + sum(int(one[1]) for one in more if one) == 24


def test_of_replicas_one_is_drawn_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", ipus=2, micro_batches=4)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE target SET num_replicas = 2, num_ipus = 4")
    assert ipu_report(["pipeline", "--ascii", "--width", "60", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.count("\nIPU ") == 2
    assert "This is one of 2 replicas, which do the same. ipu-report pod" in " ".join(said.split())

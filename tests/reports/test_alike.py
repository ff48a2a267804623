"""Of many IPUs and stages, alike ones are one row for people; programs get all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ipuscope.reports import alike
from ipuscope.reports.cli import main
from ipuscope.reports.cli.summary import _bars
from tests.synthetic import synthetic_profile

MANY = 20


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_profile(
        tmp_path_factory.mktemp("many") / "profile.pop", ipus=MANY, micro_batches=2 * MANY
    )


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def test_ranges_of_numbers() -> None:
    assert alike.spans([3]) == "3"
    assert alike.spans([1, 2, 3, 5, 7]) == "1-3, 2 more"
    assert alike.spans([1, 2, 3, 5, 7], most=3) == "1-3, 5, 7"


def test_neighbours_are_within_a_twentieth_of_a_tile_of_each_other() -> None:
    used = np.array([300, 260, 255, 250, 211, 300])
    assert alike.neighbours(used, 1000) == [[0, 1, 2, 3], [4], [5]]


def test_of_neighbours_the_fullest_is_printed() -> None:
    ipus = {"ipu": [0, 1, 2], "peak": [100, 110, 500], "free": [524, 514, 124]}
    shown = alike.memory_alike({name: np.array(values) for name, values in ipus.items()}, 624)
    assert shown["ipu"].tolist() == ["0-1", "2"]
    assert shown["free"].tolist() == [514, 124]


def test_the_fullest_of_many_unlike_ipus_are_printed() -> None:
    ipus = np.arange(40)
    shown = alike.memory_alike({"ipu": ipus, "peak": ipus * 7 % 40 * 100}, 624)
    assert sorted(shown["peak"]) == [100 * at for at in range(24, 40)]


def test_stages_of_equal_work_are_one_row_with_the_largest_stash() -> None:
    stages = {
        "stage": [0, 1, 2, 3],
        "ipu": [0, 1, 0, 1],
        "blocks": ["a", "b", "c", "d"],
        "forward_cycles": [5, 7, 5, 7],
        "backward_cycles": [1, 1, 1, 2],
        "update_cycles": [1, 1, 1, 1],
        "weight_bytes": [8, 8, 8, 8],
        "stash_bytes": [10, 20, 30, 40],
    }
    shown = alike.stages_alike({name: np.array(values) for name, values in stages.items()})
    assert shown["stage"].tolist() == ["0, 1 more", "1", "3"]
    assert shown["ipu"].tolist() == ["0", "1", "1"]
    assert shown["stash_bytes"].tolist() == [30, 20, 40]


def test_equal_bars_are_one_and_the_letters_differ() -> None:
    kinds = ["compute", "exchange", "sync", "external sync", "global exchange", "host I/O", "idle"]
    rows = [[10, 10, 10, 10, 10, 10, 40], [20, 10, 10, 10, 10, 10, 30]] * 10
    frame = pd.DataFrame(rows, columns=pd.Index(kinds))
    frame = frame.assign(ipu=range(MANY), total=100)
    words = ["".join(text for text, _ in line) for line in _bars(frame, True, False)]
    assert [line.split("  ")[0] for line in words[1:3]] == ["IPU 0, 9 more", "IPU 1, 9 more"]
    assert "--each prints all 20" in words[3]
    legend = "  ".join(words[4:]).split("  ")
    letters = [one.split()[0] for one in legend if one.strip()]
    assert len(letters) == len(set(letters)) == len(kinds)
    assert "host I/O, streaming memory" in " ".join(words)
    assert len(_bars(frame, False, True)) >= 1 + MANY


@pytest.mark.parametrize("command", ["summary", "memory"])
def test_many_fit_a_page_and_programs_get_all(
    many: Path, capsys: pytest.CaptureFixture[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, each = said(capsys, command, many), said(capsys, command, "--each", many)
    assert "--each prints all 20" in " ".join(short.split())
    assert "--each" not in each
    assert max(map(len, short.splitlines())) <= 80
    assert len(short.splitlines()) < len(each.splitlines())
    (page,) = json.loads(said(capsys, command, "--json", many))
    assert len(page["memory"]) == MANY


def test_stages_of_unequal_work_are_a_row_each(
    many: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "stages", many) == said(capsys, "stages", "--each", many)


def test_layers_share_a_row_only_where_their_operators_cost_the_same() -> None:
    cycles = [7, 7, 9, 7, 7, 5, 5]
    ops = pd.DataFrame(
        {
            "id": range(7),
            "name": ["l.0/mm", "l.1/mm", "l.2/mm", "l.4/mm", "mm_1", "add", "add"],
            "stage": [0, 0, 1, 2, 2, 2, 2],
            "cycles": cycles,
            "executions": 4,
            "total_cycles": [4 * one for one in cycles],
            "share": [one / sum(cycles) for one in cycles],
            "recompute_cycles": [28, 28, 36, 0, 0, 0, 0],
            "low": np.nan,  # as of an older profile
        }
        | dict.fromkeys(("direction", "aten", "flops", "high", "of_roof", "why"), 1)
    )
    shown = alike.operators_alike(ops)
    assert shown["name"].tolist() == ["l.*/mm", "l.2/mm", "mm_1", "add", "add"]
    assert shown["stage"].tolist() == ["0…2", "1", "2", "2", "2"]
    assert shown["alike"].tolist() == [3, 1, 1, 1, 1]
    for name in ("total_cycles", "share", "recompute_cycles"):
        assert shown[name].sum() == pytest.approx(ops[name].sum())
    assert (shown["cycles"] * shown["executions"] * shown["alike"] == shown["total_cycles"]).all()

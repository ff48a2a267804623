"""Whether a split fits: exactly of the one that was profiled, in three answers of any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rebalance import bert_pod16
from profiler import Report, open_report
from profiler.rebalance import Assignment, Costs, best_split, profiled, what_if
from profiler.rebalance.refusal import nearest, nearest_in_words, refusal
from profiler.rebalance.tile_memory import contents, interval_memory
from profiler.rebalance.verdict import MARGIN, Answer
from reports.cli import main as ipu_report


@pytest.fixture(scope="module")
def pod16(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A toy of public BERT on a POD16: the head comes back to IPU 0, state is in parts."""
    folder = tmp_path_factory.mktemp("pod16")
    bert_pod16.main(["--tiny", "--profile-dir", str(folder)])
    return open_report(folder / "training")


def test_the_profiled_split_holds_what_the_profile_holds(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    assert costs.ipus == (0, 1, 2, 3, 0)
    prediction = what_if(costs, profiled(costs))
    for one in prediction.memory:
        tiles = pod16.tiles(one.ipu)["total"]
        assert (one.nbytes, one.tile) == (tiles.max(), tiles.argmax())
        assert one.exact


def test_a_split_that_just_fits_and_one_byte_less(pod16: Report) -> None:
    """As BERT-Large on a POD16: 99 % full, and refused by what its Blocks say of it."""
    costs = Costs.from_report(pod16)
    fullest = max(what_if(costs, profiled(costs)).fullest)
    just = costs.with_tile_bytes(fullest)
    assert not what_if(just, profiled(costs)).problems
    assert best_split(just, ipus=costs.ipus).prediction.total <= what_if(just, profiled(just)).total
    short = what_if(costs.with_tile_bytes(fullest - 1), profiled(costs))
    worst = max(short.memory, key=lambda one: one.nbytes)
    assert worst.answer is Answer.OVER
    assert f"IPU {worst.ipu} {worst}" in short.problems
    assert "does not fit by 1 bytes, on tile" in str(worst) and worst.largest in str(worst)


def test_what_is_near_the_end_of_a_tile_is_for_a_compile_to_say(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    other = Assignment((0, 3, 4, 5), (0, 1, 2, 3))
    fullest = max(what_if(costs, other).fullest)

    def answer(limit: float) -> Answer:
        found = what_if(costs.with_tile_bytes(round(limit)), other)
        assert bool(found.problems) == (limit < fullest * (1 - MARGIN))
        return max(found.memory, key=lambda one: one.nbytes).answer

    assert answer(fullest * (1 + 2 * MARGIN)) is Answer.FITS
    assert answer(fullest) is Answer.CLOSE
    assert answer(fullest * (1 - MARGIN / 2)) is Answer.CLOSE
    assert answer(fullest * (1 - 2 * MARGIN)) is Answer.OVER


def test_the_parts_of_a_verdict_add_up(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    parts = [profiled(costs).parts(costs)[1]]
    variables = pod16.ipu_variables(1)
    regions = [variables.peaks(region=region).tile_peak for region in (False, True)]
    assert (sum(contents(costs, parts).values()) == sum(regions)).all()


def test_all_stages_at_once_have_the_profiled_ones_exactly(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    parts = profiled(costs).parts(costs)
    table = interval_memory(costs, len(costs), parts[0].choice)
    for ipu in (1, 2, 3):
        part = parts[ipu]
        found = table.fullest(part.depth)[part.first, part.last - part.first]
        assert found == pod16.tiles(ipu)["total"].max()


def test_json_says_whether_it_fits(pod16: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert ipu_report(["whatif", "--json", str(Path(pod16.path))]) == 0
    text = capsys.readouterr().out
    assert json.loads(text) and '"memory": "fits"' in text


def test_a_tied_weight_lies_once_on_an_ipu(pod16: Report) -> None:
    """Of the embedding and of the head: one IPU's, though two of its stages read it."""
    weights = pod16.variables[pod16.variables["role"] == "weight"]
    tied = weights[weights["name"].str.startswith("embedding.word.weight")]
    assert tied[["ipu", "stage"]].to_numpy().tolist() == [[0, 0]]
    blocks = pod16.stages.set_index("stage")["weight_bytes"]
    assert blocks.sum() == weights["bytes"].sum()


def test_a_head_that_leaves_takes_a_copy_of_the_weight(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    ((home, reader),) = costs.cuts.ties.blocks
    copies = "copies of weights that another IPU shares"

    def copied(first: int, last: int) -> int:
        (part,) = Assignment((0,), (0,)).parts(costs)
        held = contents(costs, [replace(part, first=first, last=last)])
        return int(held[copies].max())

    tile = -(-costs.cuts.ties.nbytes[0] // costs.machine.tiles)
    assert copied(home + 1, reader) == tile > 0
    assert copied(home, reader) == copied(home, reader - 1) == 0


def test_a_refusal_says_what_comes_nearest_and_what_would_help(pod16: Report) -> None:
    costs = Costs.from_report(pod16)
    near = nearest(costs, costs.ipus)
    fullest = max(what_if(costs, near).fullest)
    assert fullest <= max(what_if(costs, profiled(costs)).fullest)
    assert nearest_in_words(costs, costs.ipus) == ""
    short = costs.with_tile_bytes(round(fullest * (1 - 2 * MARGIN)))
    words = refusal(short, costs.ipus)
    assert "does not fit by" in words and "on tile" in words and "most of it" in words
    assert nearest_in_words(short, costs.ipus)[2:].lower() == words.lower()

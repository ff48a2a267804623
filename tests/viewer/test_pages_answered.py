"""The numbers of pages are the report's: what their callbacks answer, without a browser."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from ipuscope.planner.advice import advise
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.analysis import peak, waits
from ipuscope.profiler.analysis.operators import operators
from ipuscope.profiler.provenance import Provenance
from ipuscope.viewer.app import create_app
from ipuscope.viewer.figures import units
from ipuscope.viewer.pages import summary
from tests.synthetic import synthetic_profile
from tests.viewer.page_requests import PageRequests

CONVOLUTION = "layer2/conv/convolution"


@pytest.fixture(scope="module")
def pages(training: Report) -> PageRequests:
    return PageRequests(create_app(training))


@pytest.fixture(scope="module")
def two(training: Report, inference: Report) -> PageRequests:
    return PageRequests(create_app(training, inference))


def test_the_summary_has_the_reports_numbers(pages: PageRequests, training: Report) -> None:
    page = pages.open("/")
    words = page.words()
    run = training.runs.iloc[0]
    assert units.cycles(run["cycles"] / run["iterations"]) in words
    slowest = int(training.stages["stage"].iloc[int(training.stages["cycles"].to_numpy().argmax())])
    assert f"stage {slowest}" in words
    used = [training.tiles(ipu)["peak"].max() for ipu in range(training.target.num_ipus)]
    assert units.size(int(max(used))) in words
    assert str(training.path) in words
    assert str(waits.of(training).longest.iloc[0]["what"])[1:20] in words
    assert "'/rebalance" in str(page.part("summary-insights"))
    idle = [float(value) for value in page.named("proportions", "waiting")]
    assert idle.index(max(idle)) == training.cycle_proportions(0).eval("idle / total").idxmax()


def test_parts_of_the_waterfall_lead_to_steps_of_theirs(training: Report) -> None:
    found = peak.peak(training)
    assert found is not None
    asked = {part: query["find"] for part, (_, query) in summary.where(training) if "find" in query}
    names = training.program_steps()["name"].astype(str)
    reasons = operators(training)["why"]
    for part in (peak.HOST, peak.LINKS, peak.SYNC):
        assert found.parts[part] and names.str.contains(asked[part], regex=False).any()
    for part in (peak.EXCHANGE, peak.IDLE_TILES, peak.REARRANGING):
        assert found.parts[part] and reasons.str.contains(asked[part], regex=False).any()


def test_the_heat_map_scales_with_the_report(pages: PageRequests, training: Report) -> None:
    page = pages.open("/memory?ipu=2&first=10&last=40&low=100&high=300")
    assert page.trace("liveness-heat")["zmax"] * 1024 == pytest.approx(
        training.liveness_map(2, slice(10, 40), slice(100, 300)).max()
    )


def test_the_memory_page_has_the_tiles_numbers(pages: PageRequests, training: Report) -> None:
    page = pages.open("/memory?ipu=1&tile=20&gaps=with")
    row = training.tiles(1).iloc[20]
    for column in ("peak", "total", "always_live", "free"):
        assert units.size(int(row[column])) in page.words("memory-tile"), column
    drawn = page.trace("memory-tiles", "extent, with gaps")["y"][20]
    assert drawn * 1024 == pytest.approx(row["total"])
    on_ipu = training.variables.query("ipu == 1")
    largest = max(on_ipu.index, key=lambda variable: training.usage.variable_tiles(variable)[20])
    assert on_ipu["name"][largest] in page.words("memory-variables")
    assert training.tile_vertices(1, 20)["vertex_type"].iloc[0] in page.words("memory-vertices")


def test_what_is_live_where_a_tile_is_fullest_is_beside_it(
    pages: PageRequests, training: Report
) -> None:
    tile = analysis.fullest(training, 1)
    step = int(training.tiles(1)["peak_step"].iloc[tile])
    largest = training.live_variables(1, step, tile).iloc[0]
    assert str(largest["name"]) in pages.open("/memory?ipu=1").words("liveness-live")


def test_a_step_of_the_trace_and_all_of_a_name_have_their_numbers(
    pages: PageRequests, training: Report
) -> None:
    steps = training.steps(0, 1, 0)
    hits = steps["name"].str.contains("convolve", case=False)
    names = training.program_steps(1)
    number = int(names.loc[names["name"] == f"{CONVOLUTION}/conv/convolve", "step"].iloc[0])
    page = pages.open(f"/timeline?level=steps&ipu=1&form=flame&find=convolve&step={number}")
    found = page.words("timeline-found")
    assert f"{int(hits.sum()):,} slices" in found
    assert f"{int(steps.loc[hits, 'cycles'].sum()):,} cycles" in found
    chosen = page.words("timeline-step")
    assert f"{CONVOLUTION}/conv/convolve" in chosen
    assert f"{int(training.vertices(number)['count'].iloc[0]):,}" in chosen
    compute = steps.loc[steps["kind"] == "compute", "cycles"].sum()
    assert f"{int(compute):,}" in page.words("timeline-kinds")


def test_a_tensor_on_a_link_is_named(pages: PageRequests, training: Report) -> None:
    moved = training.sequence.moved_tensors
    moved = moved[(moved["source"] >= 0) & (moved["target"] >= 0)].iloc[0]
    chosen = pages.open(f"/timeline?step={moved['step']}").words("timeline-step")
    assert str(moved["name"]) in chosen


def test_the_pipeline_has_the_reports_numbers(pages: PageRequests, training: Report) -> None:
    figure = pages.open("/timeline").part("timeline-rows")["figure"]
    assert len(figure["layout"]["yaxis"]["ticktext"]) == training.target.num_ipus
    update = training.pipeline_cycles(0, 0).iloc[-1]
    page = pages.open(f"/timeline?level=tasks&from={update['start'] - 3000}&to={update['end']}")
    drawn = sum(page.trace("timeline-rows", "weight update")["x"])
    tasks = training.tasks(0, iteration=0)
    assert drawn == tasks.loc[tasks["direction"] == "update", "cycles"].sum()


def test_a_compiled_model_shows_its_schedule_as_predicted(tmp_path: Path) -> None:
    """It shows the figures of a model that ran, with a line saying that they are predicted."""
    ranges = []
    for runs in (0, 1):
        profile = synthetic_profile(tmp_path / f"{runs}.pop", runs=runs)
        shown = PageRequests(create_app(open_report(profile)))
        for address in ("/", "/timeline", "/timeline?level=steps"):
            page = shown.open(address)
            assert ("times are predicted" in page.words()) == (not runs)
            if address != "/":
                ranges.append(page.part("timeline-rows")["figure"]["layout"]["xaxis"]["range"])
    assert ranges[:2] == ranges[2:]
    assert min(high - low for low, high in ranges) > 1000, "cycles of a device iteration"


def test_an_operator_has_its_numbers(pages: PageRequests, training: Report) -> None:
    largest = analysis.operators(training).iloc[0]
    page = pages.open(f"/costs?op={largest['id']}&find={largest['name']}")
    assert str(largest["total_cycles"]) in page.words("costs-grid")
    assert f"{largest['cycles']:,} cycles" in page.words("costs-chosen")


def test_levers_beside_the_split_follow_what_may_change(
    pages: PageRequests, training: Report
) -> None:
    said = pages.open("/rebalance").words("rebalance-levers")
    for one in advise(training).single[:2]:
        assert "\n".join(one.code) in said
    program = shlex.join(Provenance.of(training).program)
    assert f"ipu-report advise {training.argument} --check {program}" in said
    assert "samples an update instead of" not in said
    changed = pages.open("/rebalance?batch=change").words("rebalance-levers")
    assert "samples an update instead of" in changed


def test_two_profiles_are_compared(two: PageRequests, training: Report, inference: Report) -> None:
    page = two.open(f"/compare?find={CONVOLUTION}")
    words, pace = page.words(), analysis.pace(training)
    assert f"{pace.cycles:,}" in words and "a device iteration" in words
    assert units.minus(f"{analysis.pace(inference).cycles - pace.cycles:,}") in words
    assert analysis.caveats(training, inference)[0] in words
    assert " points" in words  # a difference of two shares is not per cent of the first
    ops = analysis.compare_ops(training, inference).set_index("name")
    assert str(ops.loc[CONVOLUTION, "total_cycles_b"]) in page.words("compare-grid")
    assert "The largest differences first" in page.words("compare-ops")
    path = page.trace("compare-path")
    first = analysis.compare_paths(training, inference).iloc[0]
    assert path["y"][:2] == ["A", first["name"]] and path["y"][-1] == "B"
    assert sum(path["x"][:-1]) == pytest.approx(path["x"][-1])


def test_of_equal_profiles_operators_are_by_cycles(training: Report, tmp_path: Path) -> None:
    shutil.copy(training.path, tmp_path / "profile.pop")
    both = PageRequests(create_app(training, open_report(tmp_path)))
    said = both.open("/compare").words("compare-ops")
    assert "All take as long in both: those with most cycles first" in said
    most = operators(training)["name"].iloc[0]
    assert said.split(most)[0].count("backward") == 0, "it is the first row"


def test_the_other_profile_is_shown_beside_this_one(
    two: PageRequests, training: Report, inference: Report
) -> None:
    beside = two.open("/memory?ipu=1&other=show").trace("memory-tiles", "the other profile")
    used = "total_excluding_gaps"
    difference = (inference.tiles(1)[used] - training.tiles(1)[used]) / 1024
    assert beside["customdata"][:5] == pytest.approx(difference.head(5).tolist())
    live = two.open("/memory?ipu=0&other=show").trace("liveness-steps", "the other profile")
    assert max(live["y"]) == pytest.approx(inference.liveness(0)["total"].max() / 1024**2)
    grid = two.open(f"/costs?other=show&find={CONVOLUTION}").words("costs-grid")
    for one in (training, inference):
        cycles = analysis.operators(one).set_index("name").at[CONVOLUTION, "total_cycles"]
        assert str(cycles) in grid
    none = two.open("/costs?other=show&find=update")  # which the other profile has none of
    assert none.part("costs-grid")["rowData"]

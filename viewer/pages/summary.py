"""Summary: machine, speed, where cycles and memory went, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dash import Dash, Output, dcc, html

from ipuscope.profiler import Report, analysis, confidence
from ipuscope.profiler.analysis import facts, peak, waits
from ipuscope.profiler.analysis.kinds import cycles_of_ipus
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.units import per_second, sentence
from ipuscope.viewer.figures import bars as bar_figures
from ipuscope.viewer.figures import memory as memory_figures
from ipuscope.viewer.figures import peak as peak_figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import causes, common, timespan
from ipuscope.viewer.pages.bars import bars_card
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.profiles import Profiles

NAME = "summary"
MOST_WAITS = 6


def layout(view: View) -> Any:
    """The page; slower parts, which read the executed steps, follow by themselves (`_LATER`)."""
    report, of = view.report, facts.facts(view.report)
    scheduled = bool(len(report.runs))
    machine = common.card("Machine and program", common.facts(_machine(of)))
    options = common.card("Options", *_options(report), note="as set for the run")
    return [
        common.controls(view),
        _numbers(of),
        *([_later("summary-why")] if scheduled else []),
        causes.card(view, "summary-insights"),
        *([_stages(report, view.theme)] if len(report.stages) else []),
        *([_later("summary-peak")] if scheduled else []),
        html.Div([_later("summary-cycles"), _later("summary-memory")], className="row"),
        *_confidence(report),
        html.Div([machine, options], className="row"),
    ]


def _later(id: str) -> Any:
    return common.filled(id, awaited=True)


def _stages(report: Report, theme: Theme) -> Any:
    """Work of each stage, with links to the operators of the longest."""
    longest = report.stages.sort_values("cycles", ascending=False, kind="stable").head(MOST_WAITS)
    links = [
        dcc.Link(f"stage {stage}", href=f"/costs?stage={stage}")
        for stage in longest["stage"].tolist()
    ]
    return bars_card(
        "Stages: cycles of a micro-batch",
        "stage-costs",
        bar_figures.stage_costs(report.stages, Clock(report.target.clock_hz), theme),
        html.P(["Their operators: ", *links], className="note stage-links"),
        note="Its own work only, without copies and transfers.",
    )


def _why(report: Report, theme: Theme, profiles: Profiles) -> Any:
    """The waterfall of the critical path, and its longest waits in words."""
    clock = Clock(report.target.clock_hz)
    critical = waits.of(report)
    rows = critical.longest.head(MOST_WAITS)
    entries = []
    for row in units.rows_of(rows):
        there = dcc.Link("in the trace", href=timespan.link_to_wait(row, critical.total))
        entries.append((row.share, [sentence(row.what), " ", there]))
    chart = bars_card(
        f"What {analysis.turn(report)} waits for",
        "waterfall",
        bar_figures.waterfall(critical.waterfall, clock, theme),
        note="The critical path: every cycle once. Only what is on it is worth shortening.",
    )
    share = units.percent(float(rows["share"].sum()))
    note = f"Together {share} of it."
    longest = common.card("The longest waits", common.shares(entries), note=note)
    return html.Div([chart, longest], className="row")


def _from_peak(report: Report, theme: Theme, profiles: Profiles) -> Any:
    """The waterfall from the peak to MFU; each part links to its causes."""
    if (of := peak.peak(report)) is None:
        return []
    links = {part: f"/{page}?{common.query(**query)}" for part, (page, query) in where(report)}
    note = f"{of.words}. Every cycle of every tile once; a name leads to what causes it."
    figure = peak_figures.from_peak(of, theme)
    return bars_card("From the peak to MFU", "peak", figure, note=note, links=links)


# Where the causes of each part of the waterfall are: page and parameters.
_WHERE: dict[str, tuple[str, dict[str, str]]] = {
    peak.WAITING: ("timeline", {}),
    peak.RAMPS: ("timeline", {}),
    peak.HOST: ("timeline", {"find": "Host/"}),
    peak.STREAMING: ("timeline", {"find": "/load/"}),
    peak.LINKS: ("timeline", {"find": "copies of"}),
    peak.AGAIN: ("costs", {"sort": "recompute"}),
    peak.EXCHANGE: ("costs", {"find": "on-chip exchange"}),
    peak.SYNC: ("timeline", {"find": "/Internal"}),
    peak.STASH: ("memory", {}),
    peak.IDLE_TILES: ("costs", {"find": "tiles at work"}),
    peak.REARRANGING: ("costs", {"find": "rearrangement"}),
    peak.BELOW: ("costs", {"form": "roofline"}),
}


def where(report: Report) -> list[tuple[str, tuple[str, dict[str, str]]]]:
    """Parts of the waterfall with the page of their causes and its parameters."""
    phased = report.meta.get("strategy") == "phased"  # whose copies are transfers of stages
    more = {peak.LINKS: ("timeline", {"find": "/receive"})} if phased else {}
    return [*(_WHERE | more).items()]


def _confidence(report: Report) -> list[Any]:
    """How far the tiles' cycles likely are off, by class of operator."""
    if not (all_of_it := confidence.likely(report, of_costs=False)):
        return []
    rows: list[tuple[str, Any]] = [("all operators", all_of_it)]
    for row in confidence.by_class(report).to_dict("records"):
        basis = (
            f"by {units.count(row['rows'], 'measurement')}"
            if row["rows"]
            else "an estimate from similar operators: no measurement is published"
        )
        share, likely = units.percent(row["share"]), units.percent(row["likely"])
        rows.append((f"{row['class']}, {share} of cycles", f"within {likely}, {basis}"))
    note = "How far four in five published measurements of such operators are from ours."
    return [common.card("How sure the cycles are", common.facts(rows), note=note)]


def _numbers(of: facts.Facts) -> Any:
    boxes = []
    if of.state == OUT_OF_MEMORY:
        boxes.append(("It does not fit", "so it does not run: see above"))
    elif one := of.speed:
        seconds = units.seconds(one.seconds).replace(" ", "\N{NO-BREAK SPACE}")
        iteration = f"{of.turn}, {seconds}"
        batches = f", {units.count(one.micro_batches, 'micro-batch')}" if one.micro_batches else ""
        rate = "samples, predicted"
        if one.likely is not None:
            rate += f"; likely {' to '.join(map(per_second, one.likely))}"
        boxes += [
            (units.cycles(one.cycles) + " cycles", iteration + batches),
            *([(f"{per_second(one.samples_per_second)} / s", rate)] if batches else []),
            (units.percent(one.waiting), "of all IPUs' cycles are spent waiting"),
        ]
    later = [html.Div(id=f"summary-{name}") for name in ("mfu", "slowest", "fullest")]
    return html.Div([*(html.Div(_box(*one)) for one in boxes), *later], className="big")


def _box(value: str, words: str) -> list[Any]:
    return [html.B(value), html.Span(words)]


def _mfu(report: Report, _: Theme, profiles: Profiles) -> Any:
    if report.imported:
        return _box("no MFU", "flops are not in this profile")
    top = peak.peak(report)
    if top is None or report.meta["state"] == OUT_OF_MEMORY:
        return []
    hfu = f"HFU {units.percent(top.hfu)}, of the {peak.SHORT[top.dtype]} peak"
    return _box(f"{units.percent(top.mfu)} MFU", hfu)


def _slowest(report: Report, _: Theme, profiles: Profiles) -> Any:
    slow = facts.slowest_of(report)
    if slow is None or len(report.stages) == 1:  # which is as long as the mean
        return []
    which, _of, of_it = slow.name.partition(" (")
    its = f", {of_it.removesuffix(')')}" if of_it else ""
    on_path = len(report.runs) and not report.imported  # whose path has no stages
    share = f", {units.percent(slow.on_path)} of the critical path" if on_path else ""
    return _box(which, f"computes longest: {slow.ratio:.2f} × the mean{its}{share}")


def _machine(of: facts.Facts) -> list[tuple[str, Any]]:
    """The machine for which the model was compiled, and the profile."""
    rows: list[tuple[str, Any]] = [(one.label, one.words) for one in facts.about(of) if one.words]
    return [*rows, ("file", f"{of.path} ({units.size(of.path.stat().st_size)})")]


def _fullest(report: Report, _: Theme, profiles: Profiles) -> Any:
    if not len(tiles := _tiles(report, profiles)):
        return []
    tile = facts.Fullest.of(report, tiles)
    where = f"on the fullest tile, of IPU {tile.ipu} ({units.percent(tile.share)} full)"
    return _box(units.size(tile.used), where + f"; {tile.doubt}" * bool(tile.doubt))


def _tiles(report: Report, profiles: Profiles) -> np.ndarray:
    return profiles.made(report, "fullest", lambda: analysis.fullest_tiles(report))


def _memory(report: Report, theme: Theme, profiles: Profiles) -> Any:
    """The fullest tile of each IPU as a chart; if there are many IPUs, of the fullest."""
    tiles, limit = _tiles(report, profiles), report.target.bytes_per_tile
    if not len(tiles):
        return common.message("No tiles in this profile.")
    shown = memory_figures.fullest_ipus(tiles)
    note = "The most that is live on it at one step. A tile that overflows stops the compile."
    if len(shown) < len(tiles):
        note = f"The {len(shown)} fullest of {len(tiles)} IPUs. {note}"
    figure = memory_figures.headroom(tiles[shown], limit, theme, shown)
    return bars_card("Memory of the fullest tile", "headroom", figure, note=note)


def _cycles(report: Report, theme: Theme, profiles: Profiles) -> Any:
    if not len(report.runs):
        return common.card("Where the cycles go", common.message("This profile has no schedule."))
    folded = timespan.Arrangement(timespan.fold_default(report) == "folded")
    lanes = timespan.Span(profiles, report, arrangement=folded).lanes()
    figure = bar_figures.busy(
        [(one.name, one.members) for one in lanes.arranged],
        *cycles_of_ipus(report),
        Clock(report.target.clock_hz),
        theme,
    )
    more = html.P(["In time: ", dcc.Link("the timeline", href="/timeline")], className="note")
    return bars_card(
        "Where the cycles go", "proportions", figure, more, note="One device iteration, by IPU."
    )


def _options(report: Report) -> list[Any]:
    """The options that were set; the others are folded."""
    changed = facts.set_options(report)
    named = {name for name, _ in changed}
    rest = [one for one in sorted(report.options.items()) if one[0] not in named]
    title = f"{len(rest)} others, as they are by default"
    if "changed" not in report.meta:
        title = f"{len(rest)} options: this profile does not say which of them were set"
    folded = html.Details([html.Summary(title, className="note"), _listed(rest)])
    return [*([_listed(changed)] if changed else []), folded]


def _listed(options: list[tuple[str, Any]]) -> Any:
    """As one text: a browser takes a while for a table of a hundred rows."""
    return common.statements([f"{name}  {value}" for name, value in options])


# Parts of the page that read all executed steps or all variables.
_LATER: dict[str, Callable[[Report, Theme, Profiles], Any]] = {
    "summary-mfu": _mfu,
    "summary-slowest": _slowest,
    "summary-fullest": _fullest,
    "summary-why": _why,
    "summary-peak": _from_peak,
    "summary-cycles": _cycles,
    "summary-memory": _memory,
}


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks that fill the slower parts, each by itself."""

    def filled(id: str, make: Callable[[Report, Theme, Profiles], Any]) -> None:
        @app.callback(
            Output(id, "children"), *common.param_input(NAME, "profile"), common.theme_state()
        )
        def fill(profile: Any, where: Any) -> Any:
            made = make(profiles.get(profile), common.theme_of(where), profiles)
            return made or html.Div()  # so that what waits for it sees that there is nothing

    for id, make in _LATER.items():
        filled(id, make)
    causes.register(app, profiles, NAME, "summary-insights")


PAGE = Page("/", "Summary", layout, register, "What ran, how fast, and what limits it")

"""The viewer's figures for notebooks: ``report.figures.pipeline()`` and the others."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis import critical_path, hierarchy, peak, regions, waits
from ipuscope.profiler.analysis.kinds import cycles_of_ipus
from ipuscope.profiler.lazy import once
from ipuscope.profiler.timeline.executed_steps import Executed
from ipuscope.viewer.figures import bars, counters, flame, memory, pipeline, theme, units
from ipuscope.viewer.figures import model_graph as graphs
from ipuscope.viewer.figures import peak as peak_figures
from ipuscope.viewer.figures.drawing import Drawing, as_plotly
from ipuscope.viewer.figures.lanes import FEW, CriticalPath, Lanes, StepRows, drawable, lanes
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock

_HEAT_SHAPE = (300, 184)  # steps x tiles: as many as are seen


@once
def lanes_of(report: Report, run: int = 0, iteration: int = 0) -> Lanes:
    """The lanes of a device iteration and the critical path; of many IPUs equal lanes are one.

    With steps, if these can be drawn.
    """
    tasks, fold = report.tasks(run, iteration=iteration), report.target.num_ipus > FEW
    path = CriticalPath(*critical_path.path_on_ipus(report, run, iteration))
    cycles, shards = report.pipeline_cycles(run, iteration), analysis.shards_of(report)
    none = Executed.nothing()
    drawn = lanes(tasks, none, cycles, report.stages, fold=fold, path=path, shards=shards)
    if not drawable(report, run, iteration, drawn.ipus):
        return drawn
    steps = report.trace.executed(run, drawn.ipus, iteration)
    return drawn.with_steps(StepRows.of(steps, drawn.ipus))


@once
def live_map(report: Report, ipu: int) -> np.ndarray:
    """`Report.liveness_map` of an IPU, as large as it is seen."""
    return report.liveness_map(ipu, shape=_HEAT_SHAPE)


class Figures:
    """Each a plotly figure. ``colours``: "light" or "dark"; ``unit``: "cycles" or "µs"."""

    def __init__(self, report: Report, colours: str = "light", unit: str = "cycles") -> None:
        self._report = report
        self._theme: Theme = theme.theme(colours)
        self._clock = Clock(report.target.clock_hz, unit)

    def pipeline(self, run: int = 0, iteration: int = 0) -> go.Figure:
        """What each IPU works on, from ramp-up to ramp-down, and the critical path."""
        drawn = pipeline.drawing(lanes_of(self._report, run, iteration), self._clock, self._theme)
        return self._carded(drawn)

    def busy(self) -> go.Figure:
        """Where each IPU's cycles go, in the first device iteration."""
        groups = [(one.name, one.members) for one in lanes_of(self._report).arranged]
        of = cycles_of_ipus(self._report)
        return self._carded(bars.busy(groups, *of, self._clock, self._theme))

    def stages(self) -> go.Figure:
        """Cycles of a micro-batch on each stage."""
        return self._carded(bars.stage_costs(self._report.stages, self._clock, self._theme))

    def waits(self, run: int = 0, iteration: int = 0) -> go.Figure:
        """What an update waits for, as a waterfall of the critical path."""
        table = waits.of(self._report).waterfall
        if run or iteration:
            path = critical_path.path_columns(self._report, run, iteration)
            table = critical_path.waterfall(path)
        return self._carded(bars.waterfall(table, self._clock, self._theme))

    def peak(self) -> go.Figure:
        """From the machine's peak down to MFU; ValueError where the profile has neither."""
        found = peak.peak(self._report)
        if found is None:
            raise ValueError(f"{self._report.path}: no schedule, or no operations")
        return self._carded(peak_figures.from_peak(found, self._theme))

    def roofline(self) -> go.Figure:
        """Operators by FLOPs per byte received and per cycle, and what the machine allows."""
        report = self._report
        operators = report.file.once("operators", lambda: analysis.operators(report))
        return self._carded(peak_figures.roofline(self._report, operators, self._theme))

    def costs(self, by: str = "module", of: str = "cycles") -> go.Figure:
        """Cycles or bytes as a flame graph, layers together.

        ``by``: "module", "stage", "block", "aten", "source" (files and lines) or "stack" (callers).
        """
        of_bytes = of == "bytes"
        leaves_of = hierarchy.leaves_of_bytes if of_bytes else hierarchy.leaves_of_cycles

        def look() -> hierarchy.Look:
            leaves = leaves_of(self._report, by, together=True)
            return hierarchy.look(hierarchy.tree(leaves), ())

        seen = self._report.file.once(f"figures.costs {by} {of}", look)  # in each theme the same
        words = units.size if of_bytes else self._clock.both
        return self._carded(flame.drawn(seen.shown, (), words, self._theme, of_bytes, False))

    def graph(self, direction: str = "forward", colour: str = "cycles") -> go.Figure:
        """The model's Blocks or modules and the tensors between them, equal ones together.

        ``colour``: "stage", "cycles", "bytes", "waiting" or "uncertainty" (of the cycles).
        """
        return self._carded(graphs.static(self._report, self._theme, direction, colour))

    def alike(self, by: str = "stage") -> go.Figure:
        """Blocks, stages, lines or micro-batches that are built alike, and what each takes."""
        found = regions.regions(self._report, by)
        return self._carded(peak_figures.spread(found, self._clock, self._theme))

    def links(self, run: int = 0, iteration: int = 0) -> go.Figure:
        """How much of each link's rate between IPUs is used when, in a device iteration."""
        report = self._report
        tasks = report.tasks(run, iteration=iteration)
        origin, end = int(tasks["start"].min()), int(tasks["end"].max())
        key = f"slices of links, run {run}, iteration {iteration}"  # in each theme the same
        slices = report.file.once(key, lambda: analysis.link_slices(report, run, iteration))
        of = slices, (0.0, float(end - origin)), origin
        return self._carded(counters.links(report, *of, self._clock, self._theme))

    def tiles(self) -> go.Figure:
        """How full the fullest tile of each IPU is."""
        limit, fullest = self._report.target.bytes_per_tile, analysis.fullest_tiles(self._report)
        shown = memory.fullest_ipus(fullest)
        return self._carded(memory.headroom(fullest[shown], limit, self._theme, shown))

    def memory(self) -> go.Figure:
        """What the memory of each IPU is used for."""
        kinds = self._report.memory()
        shown = memory.fullest_ipus(analysis.fullest_tiles(self._report))
        of = kinds[kinds["ipu"].isin(shown)]
        return self._carded(memory.categories(of, self._theme, columns=4))

    def liveness(self, ipu: int = 0, scale: tuple[float, float] | None = None) -> go.Figure:
        """Live bytes over tiles and program steps; ``scale``: of all IPUs that are compared."""
        report = self._report
        program = report.sequence.steps_of_ipu(ipu, "position", "direction")
        bounds = (0, len(program["position"])), (0, report.target.tiles_per_ipu)
        of = (*bounds, program, report.target.bytes_per_tile, self._theme)
        drawn = memory.heat_map(live_map(report, ipu), *of, scale=scale)
        title = {"text": f"IPU {ipu}", "font": {"size": 13}}
        return self._carded(drawn.update_layout(title=title))

    def _carded(self, figure: go.Figure | Drawing) -> go.Figure:
        """On a card of its own: a page that is not ours may have any colour behind it."""
        return as_plotly(figure).update_layout(paper_bgcolor=self._theme.card)

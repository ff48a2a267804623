"""One self-contained HTML file: the main figures, interactive, without a server or a network.

plotly.js and the figures are gzipped in the page (1.5 MB instead of 4.8); browsers unpack them
(DecompressionStream). The page follows the reader's theme, light or dark. Its policy forbids
fetching anything, and running any script but its own three, which it names by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import what_if
from ipuscope.planner.search.split_search import quickest
from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis import facts, source
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.analysis.peak import Peak, peak
from ipuscope.profiler.analysis.waits import longest_waits
from ipuscope.profiler.report import PREDICTED_NOTE
from ipuscope.profiler.units import sentence
from ipuscope.reports.alike import operators_alike
from ipuscope.viewer.figures import memory, theme, units
from ipuscope.viewer.figures.of_report import Figures, lanes_of, live_map

MAX_IPUS = 8  # heat maps in a report: the IPUs with the fullest tiles
_TOP_OPS = 40
_TOP_LINES = 20
_MOST_WAITS = 15
_OPEN = 3  # sections open at first: the summary, what to do, what an update waits for
_SENTENCE = 60  # letters from which a table's cell wraps
_FEW_COLUMNS = 4  # that a narrow window has room for
_NUMBER = re.compile(r"([≤~] ?)?([\d,.]+( ?%| (K|M|G)?i?B)?)?")
_LONG = 16  # letters from which a name may break
_MARK = re.compile("@@[A-Z]+@@")  # what a page fills in, in assets/report.html
_BEHIND_MARKS = re.compile(r"(?<=[/._:])(?=[A-Za-z])")


@dataclass(frozen=True, slots=True)
class Section:
    """A titled section: figures, each by theme, or a table. A click opens a ``folded`` one."""

    title: str
    note: str = ""
    figures: Sequence[dict[str, go.Figure]] = ()
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None
    folded: bool = False


def write_html(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the HTML report of a profile to ``path`` atomically. Raises OSError on failure."""
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        # A directory's name may be in another encoding.
        part.write_text(page(report), encoding="utf-8", errors="backslashreplace")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def page(report: Report) -> str:
    """The report as HTML."""
    sections = _sections(report)
    drawn = [one for section in sections for one in section.figures]
    figures = [
        f'"{name}":[{",".join(one[name].to_json() for one in drawn)}]' for name in theme.THEMES
    ]
    body, number = [], 0
    for section in sections:
        state = "" if section.folded else " open"
        title = f"<summary><h2>{html.escape(section.title)}</h2></summary>"
        body.append(f"<section><details{state}>{title}")
        if section.note:
            body.append(f"<p class='note'>{html.escape(section.note)}</p>")
        for figure in section.figures:
            height = figure["light"].layout.height
            body.append(
                f"<div class='figure' id='figure-{number}' style='min-height:{height}px'></div>"
            )
            number += 1
        if section.table:
            body.append(_table(*section.table))
        body.append("</details></section>")
    meta = report.meta
    title = f"{meta['model'] or report.path.parent.name} · IPUscope"
    scripts = {"@@THEME@@": _asset("theme.js"), "@@DRAW@@": _asset("report.js")}
    filled = {
        **scripts,
        "@@SCRIPTS@@": " ".join(map(_hashed, (*scripts.values(), get_plotlyjs()))),
        "@@TITLE@@": html.escape(title),
        "@@MODEL@@": html.escape(str(meta["model"] or report.path.parent.name)),
        "@@ABOUT@@": html.escape(_about(report)),
        "@@WARNINGS@@": "".join(
            f"<p class='warning'>{html.escape(words)}</p>" for words in report.notes
        ),
        "@@BODY@@": "\n".join(body),
        "@@STYLE@@": theme.stylesheet() + _asset("report.css"),
        "@@PLOTLY@@": _packed_plotly(),
        "@@FIGURES@@": _packed(f"{{{','.join(figures)}}}"),
    }
    # In one pass: a name that looks like a mark stays a name.
    return _MARK.sub(lambda mark: filled[mark[0]], _asset("report.html"))


def _sections(report: Report) -> list[Section]:
    summary = Section("Summary", table=(("", ""), facts.in_words(report)))
    sections = [summary, _insights(report)]
    if len(report.runs):
        sections += _path(report)
    if top := peak(report):
        sections += _from_peak(report, top)
    if len(report.stages):
        title = "Stages: cycles of a micro-batch"
        sections.append(
            _figure(
                report, title, "Its own work only, without copies and transfers.", Figures.stages
            )
        )
    if len(report.runs):
        steps = len(lanes_of(report).steps)
        strip = "its steps" if steps else "empty, since its steps are too many to draw"
        note = (
            "The first device iteration. Large: what the IPU works on, with micro-batch numbers."
            f" Strip: {strip}. Red: the critical path, which alone sets how long this takes."
        )
        sections.append(_figure(report, "Pipeline", note, Figures.pipeline))
        note = "The mean of each lane's IPUs, by what their steps do."
        sections.append(_figure(report, "Busy and waiting", note, Figures.busy))
    sections += _rebalance(report)
    tiles = analysis.fullest_tiles(report)
    shown = memory.fullest_ipus(tiles)
    few = f"The {len(shown)} fullest of {len(tiles)} IPUs. " if len(shown) < len(tiles) else ""
    note = f"{few}Most that is live on it at one step. A tile that overflows stops the compile."
    sections.append(_figure(report, "Memory of the fullest tile", note, Figures.tiles))
    note = f"{few}At each IPU's fullest step."
    sections.append(_figure(report, "What the memory is for", note, Figures.memory))
    sections += [_heat_maps(report, tiles), _ops(report), *_lines(report)]
    sections += [*_costs(report), *_drawn(report), _options(report)]
    return [replace(one, folded=at >= _OPEN) for at, one in enumerate(sections)]


def _heat_maps(report: Report, tiles: np.ndarray) -> Section:
    """Heat maps of the IPUs with the fullest tiles, all on one scale."""
    fullest = sorted(np.argsort(-tiles, kind="stable")[:MAX_IPUS].tolist())
    ipus = [ipu for ipu in fullest if report.sequence.steps_of_ipus[ipu]]
    maps = [live_map(report, ipu) for ipu in ipus]
    scale = (float(min(map(np.min, maps), default=0)), float(max(map(np.max, maps), default=0)))
    note = "Gaps excluded; resampled by maximum. All IPUs on one scale."
    each = [partial(Figures.liveness, ipu=ipu, scale=scale) for ipu in ipus]
    return _figure(report, "Live bytes over tiles and program steps", note, *each)


def _path(report: Report) -> Iterator[Section]:
    """What an update waits for, and which IPU causes it."""
    path = critical_path(report)
    note = f"{int(path['cycles'].sum()):,} cycles of the critical path, by cause and phase."
    yield _figure(report, f"What {analysis.turn(report)} waits for", note, Figures.waits)
    rows = [
        (units.percent(row.share), f"{row.cycles:,}", str(row.ipu), row.what)
        for row in units.rows_of(longest_waits(report).head(_MOST_WAITS))
    ]
    heads = ("share", "cycles", "IPU", "what it waits for")
    yield Section("The longest waits", "", table=(heads, rows))


def _from_peak(report: Report, top: Peak) -> Iterator[Section]:
    """The waterfall from the peak to MFU, and how far operators are from their ceilings."""
    yield _figure(report, "From the peak to MFU", f"{top.words}.", Figures.peak)
    note = "What units, exchange and links of an IPU allow; operators that are alike are one point."
    yield _figure(report, "Operators below their ceilings", note, Figures.roofline)


def _insights(report: Report) -> Section:
    """What limits the run, and what to change."""
    changes = insights(report)
    rows = [
        (
            one.gain_in_words.replace("<=", "≤"),
            sentence(one.headline),
            one.why,
            "\n".join([one.change_in_words, *one.code]),
        )
        for one in changes
    ]
    note = (
        f"Gains are cycles {analysis.turn(report)}, by the schedule after the change, or bytes of"
        " the fullest tile; ≤ marks a bound, ~ an estimate. Changes of the batch come last."
    )
    return Section("What to do about it", note, table=(("gain", "finding", "why", "change"), rows))


def _rebalance(report: Report) -> Iterator[Section]:
    """The quickest split beside the profiled one; nothing if no Block can move."""
    try:
        costs = Costs.from_report(report)
        present = what_if(costs, profiled(costs))
        best = quickest(costs)
    except ValueError:
        return
    if len(costs) < 2:
        return
    now, then = present.total, best.prediction.total
    assignment = best.prediction.assignment
    stages = zip(
        assignment.spans(len(costs)), assignment.ipus, best.prediction.stage_cycles, strict=True
    )
    rows = [
        (str(k), str(ipu), ", ".join(costs.names[first : last + 1]), f"{cycles:,}")
        for k, ((first, last), ipu, cycles) in enumerate(stages)
    ]
    change = units.minus(f"{then / now - 1:+.1%}")
    note = (
        f"It takes {then:,} cycles {analysis.turn(report)} instead of {now:,} ({change})."
        f" {sentence(best.verdict)}."
    )
    heads = ("stage", "IPU", "Blocks", "cycles a micro-batch")
    yield Section("The quickest split of its Blocks", note, table=(heads, rows))


def _options(report: Report) -> Section:
    """The options that were set; all of an older profile, which does not say which those are."""
    options = facts.set_options(report) or sorted(report.options.items())
    rows = [(name, json.dumps(value)) for name, value in options]
    return Section("Options", "As the model was compiled.", table=(("option", "value"), rows))


def _ops(report: Report) -> Section:
    every = report.file.once("operators", lambda: analysis.operators(report))
    together = operators_alike(every).sort_values("total_cycles", ascending=False, kind="stable")
    ops = together.head(_TOP_OPS)
    rows = [
        (
            row.name,
            row.direction,
            row.stage,
            f"{row.cycles:,}",
            f"{row.executions:,}",
            f"{row.alike:,}",
            f"{row.total_cycles:,}",
            units.percent(row.share),
            row.source,
        )
        for row in units.rows_of(ops)
    ]
    heads = ("operator", "for", "stage", "cycles", "times", "alike", "total", "share", "source")
    return Section(
        "Operators",
        f"The {len(rows)} rows with the most cycles {analysis.turn(report)}, of {len(together):,}"
        f" rows for {len(every):,} operators: layers (*) whose operators cost the same share one."
        " Total: cycles x times x alike; share: of all operators' totals.",
        table=(heads, rows),
    )


def _lines(report: Report) -> Iterator[Section]:
    """The user's lines whose operators take most, if any have one."""
    lines = source.lines(report)
    lines = lines[lines["file"] != ""].head(_TOP_LINES)
    places = zip(lines["file"], lines["line"], strict=True)
    texts = (source.line_of(report, *at).strip() for at in places)
    rows = [
        (units.percent(row.share), f"{row.file}:{row.line}", text, str(row.ipus))
        for row, text in zip(units.rows_of(lines), texts, strict=True)
    ]
    if rows:
        note = "Of the cycles of all operators, by the line that makes them."
        yield Section("Source lines", note, table=(("share", "line", "", "IPU"), rows))


def _costs(report: Report) -> Iterator[Section]:
    """Flame graphs of the cycles, by module and by the user's files and lines."""
    note = "Cycles of a device iteration that IPUs are busy for; layers that are alike together."
    for by, name in (("module", "module"), ("source", "source line")) if len(report.runs) else ():
        yield _figure(report, f"Costs by {name}", note, partial(Figures.costs, by=by))


def _drawn(report: Report) -> Iterator[Section]:
    """The model's graph, and the links between IPUs over time."""
    note = "Of the forward, equal Blocks together. Thick: between IPUs."
    colours = [partial(Figures.graph, colour=one) for one in ("cycles", "uncertainty")]
    yield _figure(report, "The model as a graph", note, *colours)
    if len(report.runs) and len(analysis.link_loads(report)):
        note = "How much of each link's rate is used when, in the first device iteration."
        yield _figure(report, "Links between IPUs", note, Figures.links)


def _figure(
    report: Report, title: str, note: str, *draw: Callable[[Figures], go.Figure]
) -> Section:
    """Some of the notebooks' figures."""
    drawn = [{name: one(Figures(report, name)) for name in theme.THEMES} for one in draw]
    return Section(title, note, drawn)


def _about(report: Report) -> str:
    meta = report.meta
    words = f"{meta['kind']}, {meta['state']} · {report.path}. All times are predictions of the"
    return f"{words} modelled machine.{' ' + PREDICTED_NOTE if report.predicted else ''}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = [[str(row[at]) for row in rows] for at in range(len(heads))]
    numbers = [all(_NUMBER.fullmatch(cell) for cell in column) for column in columns]
    row_of_heads = "".join(
        f"<th class='number'>{html.escape(words)}</th>"
        if right
        else f"<th>{html.escape(words)}</th>"
        for words, right in zip(heads, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, map(str, row), heads, numbers))}</tr>" for row in rows)
    table = f"<table><thead><tr>{row_of_heads}</tr></thead><tbody>{body}</tbody></table>"
    stacks = len(heads) > _FEW_COLUMNS or "class='wraps'" in body
    return f"<div class='scroll{' stacks' * (stacks or '<pre>' in body)}'>{table}</div>"


def _cell(words: str, head: str, number: bool = False) -> str:
    """Sentences wrap, numbers do not, names break at their separators; code follows a newline.

    In a narrow window a number stands below the others of its row, with its ``head``.
    """
    if number:
        named = html.escape(head, quote=True)
        return f"<td class='number' data-head='{named}'>{html.escape(words)}</td>"
    text, _, code = words.partition("\n")
    wraps = " class='wraps'" if len(text) > _SENTENCE or code else ""
    below = f"<pre>{html.escape(code)}</pre>" if code else ""
    return f"<td{wraps}>{_breakable(text)}{below}</td>"


def _breakable(words: str) -> str:
    """Escaped text whose long names and paths may break at their separators."""
    return " ".join(
        "<wbr>".join(map(html.escape, _BEHIND_MARKS.split(word) if len(word) > _LONG else [word]))
        for word in words.split(" ")
    )


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _packed(words: str) -> str:
    return base64.b64encode(gzip.compress(words.encode(), 9, mtime=0)).decode()


@cache
def _packed_plotly() -> str:
    """plotly.js, compressed: the largest part of every report, and always the same."""
    return _packed(get_plotlyjs())


def _hashed(script: str) -> str:
    """The hash of a script, as used in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"

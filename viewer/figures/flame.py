"""Trees of cycles or bytes (`profiler.analysis.hierarchy`) as flame graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipuscope.profiler.analysis.hierarchy import MIXED, Node, Path
from ipuscope.profiler.timeline.tile_usage import KINDS, kind_of
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.drawing import Drawing
from ipuscope.viewer.figures.memory import fill
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_DIRECTION, NAMES, Theme, between, text_on

SEPARATOR = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"  # between the names of a path
_ROW = 26  # pixels of a level
_LABEL = 60  # characters
_COPIES = "copies of "  # what all in "copy between IPUs" begin with
_CHARACTER, _PADDING, _LEAST = 7.0, 8, 7  # pixels; characters that still say something
_WIDTH = 1150  # pixels of a figure as wide as a page of 1,440
# How the causes of `critical_path.CAUSES` are drawn.
_BY_CAUSE = {
    "compute": "compute",
    "exchange on chip": "exchange",
    "sync": "sync",
    "stash": "exchange",
    "copy between IPUs": "exchange between IPUs",
    "collective over replicas": "exchange between IPUs",
    "collective over shards": "exchange between IPUs",
    "host I/O": "host I/O",
    "streaming memory": "streaming memory",
}
# Less than before, as before, more: blue and orange are told apart by colour-blind people.
_DIVERGING = {
    "light": ((0.0, "#0072b2"), (0.5, "#d3d8de"), (1.0, "#c25700")),
    "dark": ((0.0, "#3d9be0"), (0.5, "#4a5460"), (1.0, "#f07c32")),
}


def id_of(path: Path) -> str:
    """The id of a node in a figure and in an address."""
    return SEPARATOR.join(path)


def path_of(id: str) -> Path:
    """The inverse of `id_of`."""
    return tuple(id.split(SEPARATOR)) if id else ()


def drawn(
    nodes: list[Node],
    at: Path,
    words: Callable[[float], str],
    theme: Theme,
    bytes_of: bool,
    compared: bool,
) -> Drawing:
    """Draw the nodes below ``at`` (`hierarchy.visible`), each as wide as its sum.

    ``words`` formats a number. Colours: memory's with ``bytes_of``, else those of IPU activities;
    with ``compared``, the difference from before.
    """
    whole = max(1, nodes[0].width)
    parents = [id_of(one.path[:-1]) if one.path else None for one in nodes]
    names = ["all" if not one.path else one.path[-1] for one in nodes]
    marker = _marker(nodes, theme, bytes_of, compared)
    what = {
        "ids": [id_of(one.path) or "all" for one in nodes],
        "parents": ["" if one is None else one or "all" for one in parents],
        "labels": [
            units.plain(_fitting(_short(name), one.width / whole))
            for name, one in zip(names, nodes, strict=True)
        ],
        "values": [one.width for one in nodes],
        "customdata": [_hover(one, whole, words, compared) for one in nodes],
        "hovertemplate": "%{customdata}<extra></extra>",
        "branchvalues": "total",
        "sort": True,
        "level": id_of(at) or "all",
        "marker": marker,
        "textfont": {"size": 12, "color": _text_colours(marker["colors"], theme, compared)},
        "outsidetextfont": {"size": 12, "color": theme.card},  # of what all is in
        "pathbar": {"visible": bool(at), "thickness": 24, "textfont": {"size": 12}},
        "textinfo": "label+percent root",
    }
    depth = max(len(one.path) for one in nodes) - len(at) + 1
    look = {"tiling": {"orientation": "v", "pad": 0}, "leaf": {"opacity": 1}}
    margin = {"l": 8, "r": 8, "t": 30 if at else 8, "b": 8}
    small = {"minsize": 10, "mode": "hide"}
    layout = theme.frame(max(200, _ROW * depth + 70), margin=margin, uniformtext=small)
    return Drawing([{"type": "icicle", **what, **look}], layout)


def _short(name: str) -> str:
    """``IPU 3 ↔ 2, 4`` for ``copies of IPU 3 with IPU 2 and 4``; any other name as it is."""
    if not name.startswith(_COPIES):
        return name
    return name.removeprefix(_COPIES).replace(" with IPU ", " ↔ ").replace(" and ", ", ")


def _fitting(name: str, share: float) -> str:
    """A name cut to what fits into its share of a row (plotly leaves out what does not fit)."""
    room = int((share * _WIDTH - _PADDING) / _CHARACTER)
    return units.shortened(name, min(room, _LABEL)) if room >= min(_LEAST, len(name)) else ""


def _text_colours(fills: Any, theme: Theme, compared: bool) -> list[str]:
    """The more readable of black and white on each part; compared, fills are -1 to 1."""
    if compared:
        return [text_on(between(_DIVERGING[theme.name], (1 + share) / 2)) for share in fills]
    return [text_on(one) for one in fills]


def _hover(node: Node, whole: int, words: Callable[[float], str], compared: bool) -> str:
    lines = [f"<b>{units.plain(units.shortened(id_of(node.path) or 'all', 90))}</b>"]
    if compared:
        lines += [
            f"this profile {words(node.value)}, the other {words(node.before)}",
            signed(node.value - node.before, words),
        ]
    else:
        lines.append(f"{words(node.value)}, {units.percent(node.width / whole)} of all")
    return units.text_of(lines)


def signed(change: int, words: Callable[[float], str]) -> str:
    """A difference with its sign before each number: ``−1,330 cycles, −1 µs``."""
    sign = "+" if change > 0 else "−" if change < 0 else ""
    return ", ".join(sign + part for part in words(abs(change)).split(", "))


def _marker(nodes: list[Node], theme: Theme, bytes_of: bool, compared: bool) -> dict[str, Any]:
    line = {"width": 0.5, "color": theme.card}
    if not compared:
        colour = memory_colour if bytes_of else activity_colour
        return {"colors": [colour(one.kind, theme) for one in nodes], "line": line}
    share = [(one.value - one.before) / max(1, one.value, one.before) for one in nodes]
    return {
        "colors": share,
        "colorscale": _DIVERGING[theme.name],
        "cmin": -1,
        "cmax": 1,
        "line": line,
        "showscale": True,
        "colorbar": {
            "title": {"text": "less here · more here", "side": "right", "font": {"size": 12}},
            "tickformat": "+.0%",
            "thickness": 14,
            "outlinewidth": 0,
        },
    }


def activity_colour(kind: str, theme: Theme) -> str:
    """The colour of a direction or of a cause."""
    if kind == MIXED:
        return theme.muted
    if kind in BY_DIRECTION:
        return ACTIVITIES[BY_DIRECTION[kind]].colour(theme)
    return ACTIVITIES[NAMES.index(_BY_CAUSE.get(kind, "compute"))].colour(theme)


def memory_colour(kind: str, theme: Theme) -> str:
    """The colour of a variable's role, or of the category of memory that belongs to the program."""
    if kind == MIXED:
        return theme.muted
    return fill(kind_of(kind, kind), theme)


def legend(nodes: list[Node], theme: Theme, bytes_of: bool) -> list[tuple[str, str]]:
    """(name, colour) of the kinds drawn, in the order of `KINDS` or `ACTIVITIES`."""
    kinds = {one.kind for one in nodes}
    mixed = [("several", theme.muted)] if MIXED in kinds else []
    kinds -= {MIXED}
    if bytes_of:
        colours = {KINDS[kind_of(kind, kind)][0]: memory_colour(kind, theme) for kind in kinds}
        ordered = [(row[0], colours[row[0]]) for row in KINDS if row[0] in colours]
        return [*ordered, *mixed]
    names = {NAMES[BY_DIRECTION[kind]] for kind in kinds & BY_DIRECTION.keys()}
    names |= {_BY_CAUSE.get(kind, "compute") for kind in kinds - BY_DIRECTION.keys()}
    return [*((one.name, one.colour(theme)) for one in ACTIVITIES if one.name in names), *mixed]

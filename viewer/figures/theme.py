"""Activities, colours and typography: the only place (assets/style.css and the terminal read it).

Activities have hues like Okabe and Ito's: any two differ by eight or more (CIEDE2000), even
as colour-blind people see them; recomputation is hatched besides. Bytes are drawn in viridis, whose
lightness only increases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records

if TYPE_CHECKING:
    import plotly.graph_objects as go

FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Activity:
    """An activity of an IPU, as a legend names it; its letter and rich style on a terminal."""

    name: str
    letter: str
    style: str
    light: str = ""
    dark: str = ""
    pattern: str = ""
    edges: tuple[str, str] = ("", "")  # light and dark, around a fill that is too pale to stand out

    def edge(self, theme: Theme) -> str:
        """The colour of the outline around its fill; "" for none."""
        return self.edges[theme.name == "dark"]

    def colour(self, theme: Theme) -> str:
        """Its colour in that theme."""
        return self.dark if theme.name == "dark" else self.light


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", 0..1, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def text_on(colour: str) -> str:
    """White or nearly black, whichever is more readable on the colour."""
    return max("#ffffff", "#06080b", key=lambda text: contrast(text, colour))


def between(scale: Sequence[tuple[float, str]], share: float) -> str:
    """The colour at ``share`` (0..1) of a scale of positions and colours, as plotly mixes it."""
    places = [place for place, _ in scale]
    stops = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for _, colour in scale]
    mixed = [np.interp(share, places, part) for part in zip(*stops, strict=True)]
    return "#" + "".join(f"{round(float(part)):02x}" for part in mixed)


ACTIVITIES = (
    Activity("forward", "F", "black on bright_blue", "#1f6fd6", "#2d93f5"),
    Activity("backward", "B", "black on bright_yellow", "#b3900f", "#e7a71d"),
    Activity("recompute", "R", "black on yellow", "#459cc8", "#a6dfff", "/"),
    Activity("weight update", "U", "black on bright_green", "#00854a", "#2bc981"),
    Activity("compute", "#", "black on white", "#0f1f3a", "#eaeaed"),
    Activity("exchange", "+", "black on bright_magenta", "#693e91", "#a7a5e6"),
    Activity("exchange between IPUs", "x", "black on magenta", "#e2367c", "#d664ab"),
    Activity("sync", "s", "black on cyan", "#52706a", "#98c1b3"),
    Activity("external sync", "e", "black on cyan", "#114653", "#448971"),
    Activity("host I/O", "h", "black on red", "#c8400c", "#e8500f"),
    Activity("streaming memory", "m", "black on bright_red", "#5a3a18", "#8f6a4d"),
    Activity("waiting", "·", "dim", "#e3e7ec", "#2b323c", edges=("#848e9b", "#6b7683")),
)
NAMES = tuple(activity.name for activity in ACTIVITIES)
WAITING = NAMES.index("waiting")
COMPUTE = NAMES.index("compute")
_BY_KIND = {
    "compute": "compute",
    "exchange": "exchange",
    "global exchange": "exchange between IPUs",
    "sync": "sync",
    "external sync": "external sync",
    "host I/O": "host I/O",
    records.BESIDE: "host I/O",
    records.STREAMING: "streaming memory",
    records.STREAMING_BESIDE: "streaming memory",
    "idle": "waiting",
}
_BY_DIRECTION = {
    Direction.FORWARD: "forward",
    Direction.BACKWARD: "backward",
    Direction.RECOMPUTE: "recompute",
    Direction.UPDATE: "weight update",
}
BY_KIND = {kind: NAMES.index(name) for kind, name in _BY_KIND.items()}
BY_DIRECTION: dict[str, int] = {
    direction: NAMES.index(name) for direction, name in _BY_DIRECTION.items()
}


_PLAIN = {"data": {"scatter": [{"type": "scatter"}]}}  # plotly's template "none"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a page and of the figures on it."""

    name: str
    page: str
    card: str
    text: str
    muted: str
    line: str
    accent: str
    shade: str  # ramp-up and ramp-down, over the card
    limit: str  # what must not be crossed

    def laid_out(self, figure: go.Figure, height: int, **more: object) -> go.Figure:
        """The figure in its `frame`."""
        return figure.update_layout(self.frame(height, **more))

    def frame(self, height: int, **more: object) -> dict[str, Any]:
        """A figure's frame: transparent, so that its card shows through."""
        axis: dict[str, Any] = {
            "gridcolor": self.line,
            "linecolor": self.line,
            "zerolinecolor": self.line,
            "tickfont": {"size": 12},
            "title": {"font": {"size": 12, "color": self.muted}, "standoff": 8},
            "automargin": True,
        }
        settings: dict[str, object] = {
            "template": _PLAIN,
            "height": height,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 13, "color": self.text},
            "margin": {"l": 64, "r": 16, "t": 28, "b": 48},
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": self.card,
                "bordercolor": self.muted,
                "font": {"color": self.text, "family": FONT},
                "align": "left",
                "namelength": -1,
            },
            "legend": {
                "orientation": "h",
                "y": 1.0,
                "yanchor": "bottom",
                "x": 0,
                "font": {"size": 12},
            },
            "modebar": {
                "bgcolor": "rgba(0,0,0,0)",
                "color": self.muted,
                "activecolor": self.accent,
            },
            "hovermode": "closest",
            "bargap": 0,
        }
        merged = {**settings, **more}
        for name, value in more.items():
            if name.startswith(("xaxis", "yaxis")) and isinstance(value, dict):
                merged[name] = {
                    **axis,
                    **value,
                    "title": {**axis["title"], **value.get("title", {})},
                }
        return merged


LIGHT = Theme(
    name="light",
    page="#f4f6f8",
    card="#ffffff",
    text="#1b2430",
    muted="#5d6b7c",
    line="#dde3ea",
    accent="#0072b2",
    shade="rgba(120, 135, 155, 0.13)",
    limit="#c8102e",
)
DARK = Theme(
    name="dark",
    page="#12161c",
    card="#1a2028",
    text="#e4e9ef",
    muted="#97a4b3",
    line="#2f3843",
    accent="#56b4e9",
    shade="rgba(160, 180, 205, 0.10)",
    limit="#ff6b6b",
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def theme(name: str | None) -> Theme:
    """The theme of that name; the light theme for an unknown name."""
    return THEMES.get(name or "", LIGHT)


def stylesheet() -> str:
    """The themes as CSS variables on the root element."""
    names = ("page", "card", "text", "muted", "line", "accent", "limit")
    rules = [
        f':root[data-theme="{one.name}"] {{ color-scheme: {one.name}; '
        + " ".join(f"--{name}: {getattr(one, name)};" for name in names)
        + " }"
        for one in THEMES.values()
    ]
    return "\n".join([*rules, f":root {{ --font: {FONT}; }}"])

"""Pod: where the IPUs lie, how busy and full they are, and how much each sends over links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, html

from ipuscope.profiler import Report, analysis
from ipuscope.viewer.figures import pod as figures
from ipuscope.viewer.figures.units import count
from ipuscope.viewer.pages import common, refused, timespan
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.profiles import Profiles

if TYPE_CHECKING:
    import pandas as pd

NAME = "pod"
_OF_A_MACHINE = 4  # IPUs
_BY = {
    "busy": ("busy", "busy"),
    "memory": ("memory", "fullest tile"),
    "links": ("link_bytes", "of most bytes"),
}


def layout(view: View) -> Any:
    """The page."""
    target, shards = view.report.target, analysis.shards_of(view.report)
    number = target.num_ipus * shards
    parts = [f"{count(target.ipus_per_replica, 'IPU')} (p) in a replica's pipeline"]
    if shards > 1:
        parts.append(f"{shards} (t) share the tensors of each stage and are alike")
    if target.num_replicas > 1:
        parts.append(f"{target.num_replicas} replicas (r)")
    what = f"{count(number, 'IPU')}: {'; '.join(parts)}."

    there = list(_BY) if len(view.report.runs) else ["memory"]  # time needs a schedule

    def no_ipu(value: str) -> str:
        if common.whole(value, -1, 0, number - 1) >= 0:
            return ""
        there, then = refused.numbers(0, number - 1), "Click one in the map."
        return refused.refused("IPU", value, there, then)

    return [
        common.controls(
            view,
            common.switch(view, "by", "colour", [(one, one) for one in there], there[0]),
            common.hidden(view, "ipu", check=no_ipu),
        ),
        common.figure_card(
            "Map", "pod-map", note=what + " A row is an IPU-Machine; a frame is a replica."
        ),
        common.filled("pod-chosen"),
        html.P(common.link("Links between IPUs over time", "timeline"), className="note"),
    ]


def ipus_of(profiles: Profiles, report: Report) -> pd.DataFrame:
    """`ipuscope.profiler.analysis.pod`, cached."""
    return profiles.made(report, "pod", lambda: analysis.pod(report))


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    common.sets(app, NAME, "podIpu", ["ipu"], Input("pod-map", "clickData"))

    @app.callback(
        Output("pod-map", "figure"),
        *common.param_input(NAME, "profile", "by"),
        common.theme_state(),
    )
    def drawn(profile: Any, by: Any, where: Any) -> Any:
        report = profiles.get(profile)
        ipus = ipus_of(profiles, report)
        column, title = _BY.get(str(by), _BY["busy"])
        share = ipus[column].to_numpy(dtype=float)
        if column == "link_bytes":
            share = share / max(1.0, float(share.max()))
        look = common.theme_of(where), timespan.width(where)
        return figures.pod_map(ipus, share, title, *look)

    @app.callback(Output("pod-chosen", "children"), *common.param_input(NAME, "profile", "ipu"))
    def chosen(profile: Any, number: Any) -> Any:
        report, number = profiles.get(profile), common.whole(number, -1)
        if number < 0:  # reading the IPUs in vain takes as long as finding one
            return ""
        ipus = ipus_of(profiles, report)
        if not 0 <= number < len(ipus):
            return ""
        ipu = int(ipus["ipu"].iloc[number])
        links = [common.link(page, page, ipu=ipu) for page in ("timeline", "memory")]
        alike = count(analysis.alike_ipus(report), "IPU")
        words = f"IPU {number} does what IPU {ipu} of the profile does, as {alike} do: "
        return html.P([words, *common.separated(links)], className="note")


def _several(view: View) -> bool:
    """Whether the IPUs are of two machines or more."""
    several = len(view.profiles) and view.report.target.num_ipus * analysis.shards_of(view.report)
    return several > _OF_A_MACHINE


PAGE = Page("/pod", "Pod", layout, register, "Machines, IPUs and their links", _several)

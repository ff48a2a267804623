"""A map of the pod: racks, machines and IPUs, each IPU by how busy it is, its memory or its links.

A line is an IPU-Machine of each rack: the replica (r), the place in the pipeline (p) and, where a
stage spans machines, the shard (t) of its first IPU, then a number for each of its IPUs. The IPUs
that share a stage's tensors lie side by side and are alike. JSON and CSV have a row for each IPU.
"""

from __future__ import annotations

import argparse
from math import ceil
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Page, Table

HELP = "a map of racks, machines and IPUs: who is busy, full, or sends most"
EXAMPLES = """  ipu-report pod out/training                 per cent of the time that IPUs are busy
  ipu-report pod --by memory out/training     of the memory of their fullest tile
  ipu-report pod --by links out/training      of the bytes of the IPU that sends most
  ipu-report pod --csv out/training > ipus.csv
"""
_MACHINE_WIDTH, _WHERE_WIDTH, _RACK_WIDTH = 7, 9, 27  # characters of the map's columns
_MOST_LINKS = 8
_PARTS = 32  # of an update
_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = {"busy": "busy", "memory": "memory", "links": "link_bytes"}
_MEASURED = {
    "busy": "the time that an IPU is busy",
    "memory": "the memory of its fullest tile",
    "links": "the bytes over links of the IPU with most",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "--by", choices=tuple(_COLUMNS), default="busy", help="what is shown (default: busy)"
    )


def page(report: Report, args: argparse.Namespace) -> Page:
    """The page of a profile."""
    from ipuscope.profiler import analysis
    from ipuscope.profiler.units import count
    from ipuscope.reports.tables import Page, Table, say

    if args.by != "memory":
        common.check_run(report, 0)
    ipus = analysis.pod(report)
    share = ipus[_COLUMNS[args.by]]
    if args.by == "links":
        share = share / max(1, int(share.max()))
    lines = _machines(ipus.assign(share=share))
    shards, target = analysis.shards_of(report), report.target
    replicas = count(target.num_replicas, "replica")
    about = (
        f"Per cent of {_MEASURED[args.by]}. {count(len(ipus), 'IPU')}: {shards} to a stage (t),"
        f" {target.ipus_per_replica} in a pipeline (p), {replicas} (r)."
    )
    links = _links(report) if args.by == "links" and len(report.runs) else ()
    return Page(str(report.path), (Table("ipus", ipus, ()), *maps(lines), say(about), *links))


def _links(report: Report) -> tuple[Table, Table]:
    """The busiest links with whom they join, and what they carry in each part of an update."""
    import numpy as np

    from ipuscope.profiler import analysis
    from ipuscope.profiler.units import percent, size
    from ipuscope.reports.tables import Column, Table, text

    loads, tasks = analysis.link_loads(report), report.tasks(iteration=0)
    edges = np.linspace(tasks["start"].min(), tasks["end"].max(), _PARTS + 1)
    share = analysis.link_traffic(report, analysis.link_slices(report), edges)
    frame = loads.assign(
        link=analysis.link_names(loads),
        sent=[size(nbytes) for nbytes in loads["bytes"]],
        time=["".join(_BARS[at] for at in np.ceil(8 * row).astype(int)) for row in share],
    )
    columns = (
        Column("link", "link", text),
        Column("way", "way", text),
        Column("sent", "sent", text),
        Column("busy", "busy", percent),
        Column("time", "busy over an update", text),
    )
    ends = loads[["between", "source", "target"]]
    traffic = ends.loc[ends.index.repeat(_PARTS)].assign(
        start=np.tile(edges[:-1], len(ends)), end=np.tile(edges[1:], len(ends)), busy=share.ravel()
    )
    return Table("links", frame.head(_MOST_LINKS), columns), Table("traffic", traffic, ())


def maps(lines: pd.DataFrame) -> list[Table]:
    """Tables of as many racks as fit the terminal side by side, one table below the other."""
    from ipuscope.reports.tables import Column, Table, drawing_width, whole_text

    racks = [name for name in lines.columns if name != "machine"]
    beside = max(1, (drawing_width() - _MACHINE_WIDTH) // _RACK_WIDTH)
    beside = ceil(len(racks) / ceil(len(racks) / beside))
    tables = []
    for begin in range(0, len(racks), beside):
        some = racks[begin : begin + beside]
        columns = (Column("machine", "machine"), *(Column(name, name, whole_text) for name in some))
        name = f"map from {some[0]}" if begin else "map"
        tables.append(Table(name, lines[["machine", *some]], columns))
    return tables


def _machines(ipus: pd.DataFrame) -> pd.DataFrame:
    """One row per machine of a rack, one column per rack."""
    import pandas as pd

    cells: dict[str, list[str]] = {}
    for rack, of_rack in ipus.groupby("rack"):
        for _, of_machine in of_rack.groupby("machine"):
            first = of_machine.iloc[0]
            shares = " ".join(f"{100 * share:3.0f}" for share in of_machine["share"])
            where = f"r{first['replica']} p{first['ipu']}"
            if of_machine["shard"].nunique() < ipus["shard"].nunique():  # a stage spans machines
                where += f" t{first['shard']}"
            cells.setdefault(f"rack {rack}", []).append(f"{where:<{_WHERE_WIDTH}}{shares}")
    most = max(map(len, cells.values()), default=0)
    padded = {name: [*column, *[""] * (most - len(column))] for name, column in cells.items()}
    return pd.DataFrame({"machine": range(most), **padded})

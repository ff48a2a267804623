"""How full the IPUs' tiles are, and of what.

What a tile uses is the most that is live on it at one program step, and the rest of it is free.
Its 'extent' includes gaps: a tile that uses interleaved memory needs all of the other region below
it. Categories are what is live at the step where the IPU holds most, summed over tiles; 'fullest'
is the most that one tile has of it. Exit code 1 where the extent of a tile does not fit.
"""

from __future__ import annotations

import argparse
from contextlib import suppress

from ipuscope.reports.cli import common

HELP = "how full the tiles are, and of what"
EXAMPLES = """  ipu-report memory demo/training
  ipu-report memory --ipu 2 demo/training              one IPU
  ipu-report memory --by tile --ipu 2 --csv demo/training > tiles.csv
  ipu-report memory --by category --json demo/training
"""
TOP = 20  # rows for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_ipu(parser)
    words = "one table only: IPUs, their contents, or their tiles (default: the first two)"
    parser.add_argument("--by", choices=("ipu", "category", "tile"), help=words)
    common.add_each(parser)


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.planner.advice import way_to_fit
    from ipuscope.profiler import analysis
    from ipuscope.reports.tables import say

    if args.ipu is not None:
        common.check_ipu(report, args.ipu)
    ipus = by_ipu(report, args.ipu, args.each)
    tables = [ipus] if args.by in (None, "ipu") else []
    if args.by in (None, "category"):
        tables.append(_by_category(report, args))
    if args.by == "tile":
        tables.append(_by_tile(report, args))
    shown = set(ipus.frame["ipu"].tolist())
    too_full = [one for one in analysis.overflows(report) if one.ipu in shown]
    notes = [say(f"Out of memory: {one}.", "bold red") for one in too_full]
    if too_full:
        with suppress(ValueError):  # no costs of Blocks
            tables += [*_largest(report), *_relief(report)]
            notes.append(say(way_to_fit(report)))
    return common.page(report, *tables, *notes, holds=not too_full)


def _largest(report: common.Report) -> list[common.Table]:
    """What each layer of a model without Blocks needs by itself."""
    from ipuscope.planner.advice.largest_modules import largest_modules
    from ipuscope.profiler.units import size
    from ipuscope.reports.tables import Column, Table, identity

    if len(report.blocks):
        return []
    columns = (
        Column("module", "module", identity),
        Column("weights", "weights,\naccumulators", size),
        Column("state", "optimiser\nstate", size),
        Column("running", "while\nit runs", size),
        Column("total", "together", size),
        Column("ipus", "IPUs'\nmemory", "{:.2f}".format),
    )
    title = "What is largest, each by itself"
    return [Table("modules", largest_modules(report).head(8), columns, title=title)]


def _relief(report: common.Report) -> list[common.Table]:
    """What frees most memory on the worst tile. ValueError if there are no costs of Blocks."""
    import pandas as pd

    from ipuscope.planner.advice import Relief, relief
    from ipuscope.reports.tables import Column, Table, kibibytes, sentence

    reliefs = relief(report)
    if not reliefs:
        return []
    names = list(Relief.__dataclass_fields__)
    frame = pd.DataFrame([[getattr(one, name) for name in names] for one in reliefs], columns=names)
    columns = (
        Column("freed", "frees\nKiB", kibibytes),
        Column("cycles", "cycles\nmore"),
        Column("title", "change", sentence),
        Column("fits", "then", sentence),
        Column("command", "what it would give", sentence),
    )
    return [Table("relief", frame, columns, title="What frees most of the worst tile")]


def by_ipu(report: common.Report, ipu: int | None = None, each: bool = False) -> common.Table:
    """The fullest tile of each IPU, the largest extent, and how many tiles do not fit."""
    import numpy as np

    from ipuscope.profiler import analysis
    from ipuscope.profiler.report.query import Answer
    from ipuscope.profiler.units import percent
    from ipuscope.reports import alike
    from ipuscope.reports.tables import Column, Table, identity, integer, kibibytes

    limit = report.target.bytes_per_tile
    rows = []
    for one in common.ipus(report) if ipu is None else (ipu,):
        tiles, fullest = report.usage.tile_columns(one), analysis.fullest(report, one)
        used = {
            key: int(tiles[key][fullest])
            for key in ("total", "peak", "always_live", "peak_step", "free", "overflow")
        }
        used["total"] = int(tiles["total"].max())  # a tile with gaps may use less than another
        rows.append(
            {
                "ipu": one,
                "fullest_tile": int(tiles["tile"][fullest]),
                **used,
                "share": used["peak"] / limit,
                "tiles_over": int((tiles["overflow"] > 0).sum()),
            }
        )
    columns = (
        Column("ipu", "IPU", identity),
        Column("fullest_tile", "fullest\ntile", integer),
        Column("peak", "its KiB", kibibytes),
        Column("share", "of its\nmemory", percent),
        Column("always_live", "always\nlive KiB", kibibytes),
        Column("free", "free KiB", kibibytes),
        Column("total", "extent\nKiB", kibibytes),
    )
    names = "ipu fullest_tile total peak always_live peak_step free overflow share tiles_over"
    ipus = {name: np.array([row[name] for row in rows]) for name in names.split()}
    few = each or len(rows) <= alike.FEW
    return Table(
        "memory",
        Answer.of(ipus),
        columns,
        f"memory, {limit / 1024:,.0f} KiB a tile",
        printed=None if few else Answer.of(alike.memory_alike(ipus, limit)),
        note="" if few else f"The fullest of equal neighbours: --each prints all {len(rows)}.",
    )


def _by_category(report: common.Report, args: argparse.Namespace) -> common.Table:
    """One row per IPU, category and role; for people, IPUs with the same category share a row."""
    from ipuscope.reports.tables import Column, Table, kibibytes, text, whole_kibibytes

    frame = report.memory(args.ipu)
    if args.form == "text":
        by_kind = frame.groupby(["category", "role"], sort=False)
        frame = by_kind.agg({"bytes": "sum", "max_tile_bytes": "max"}).reset_index()
    frame = frame.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
    columns = (
        Column("category", "category", text),
        Column("role", "of the model", text),
        Column("bytes", "KiB in all", whole_kibibytes),
        Column("max_tile_bytes", "KiB on the fullest tile", kibibytes),
    )
    where = "each IPU" if args.ipu is None else f"IPU {args.ipu}"
    return Table(
        "categories",
        frame,
        columns,
        f"what is in it, at the worst step of {where}",
        common.top(args),
    )


def _by_tile(report: common.Report, args: argparse.Namespace) -> common.Table:
    import pandas as pd

    from ipuscope.reports.tables import Column, Table, identity, integer, kibibytes

    frames = []
    for ipu in common.ipus(report) if args.ipu is None else (args.ipu,):
        tiles = report.tiles(ipu).copy()
        tiles.insert(0, "ipu", ipu)
        frames.append(tiles)
    frame = pd.concat(frames, ignore_index=True).sort_values(
        "peak", ascending=False, kind="stable", ignore_index=True
    )
    columns = (
        Column("ipu", "IPU", identity),
        Column("tile", "tile", integer),
        Column("peak", "KiB", kibibytes),
        Column("total", "extent KiB", kibibytes),
        Column("always_live", "always live", kibibytes),
        Column("peak_step", "at step", integer),
        Column("free", "free KiB", kibibytes),
    )
    return Table("tiles", frame, columns, "tiles, the fullest first", common.top(args))

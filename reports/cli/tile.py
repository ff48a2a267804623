"""What lies on one tile, at the program step where it is fullest or at another, largest first."""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "the variables on one tile, largest first"
EXAMPLES = """  ipu-report tile --ipu 2 demo/training                the fullest tile of IPU 2
  ipu-report tile --ipu 2 --tile 311 demo/training
  ipu-report tile --ipu 2 --tile 311 --step 40 --json demo/training
"""
TOP = 20  # rows for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_ipu(parser, 0)
    common.add_number(parser, "--tile", "tile (default: the fullest)", type=common.not_negative)
    words = "position in the program (default: the fullest)"
    common.add_number(parser, "--step", words, type=common.not_negative)


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.profiler import analysis
    from ipuscope.reports.tables import Column, Table, integer, say, text

    common.check_ipu(report, args.ipu)
    tiles = report.tiles(args.ipu)
    tile = analysis.fullest(report, args.ipu) if args.tile is None else args.tile
    if tile >= len(tiles):
        raise common.none_such(report, f"IPU {args.ipu} has no tile {tile}", "tile", len(tiles))
    row = tiles.iloc[tile]
    steps = report.program_steps(args.ipu)
    step = int(row["peak_step"]) if args.step is None else args.step
    if step >= len(steps):
        raise common.none_such(report, f"IPU {args.ipu} has no step {step}", "step", len(steps))
    live = report.live_variables(args.ipu, step, tile)
    columns = (
        Column("name", "variable", text),
        Column("category", "category", text),
        Column("role", "of the model", text),
        Column("bytes", "bytes", integer),
    )
    return common.page(
        report,
        Table("live", live, columns, most=common.top(args)),
        say(
            f"{live['bytes'].sum():,} bytes on tile {tile} of IPU {args.ipu} at step {step}"
            f" ({steps['name'].iloc[step]}); at its fullest step, {row['free']:,} of"
            f" {report.target.bytes_per_tile:,} are free."
        ),
    )

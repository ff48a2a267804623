"""Upgrading a profile of an older format to the present one.

Format 2 added the plain tables (`ipuscope.profiler.file.sql_rows`). Format 3 added the columns that
say what bodies, steps and variables are for, which `ipuscope.profiler.file.legacy_formats` derives
from the names in older formats. Nothing else has changed, so
our reader reads all formats and only SQL needs the
newest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.file import legacy_formats, records, schema
from ipuscope.profiler.file.reader import Reader
from ipuscope.profiler.file.writer import ProfileWriter
from ipuscope.profiler.report import Report


def is_old(report: Report) -> bool:
    """Whether the file has an older format than the present one."""
    return report.format < schema.VERSION


def upgrade(path: str | os.PathLike[str]) -> Path:
    """Rewrite a finished profile in the present format, in place.

    The old file stays until the new one is whole.

    ProfileError where it cannot be read, is not finished, or has the present format already.
    """
    with Report(path) as report:
        profile = report.path
        if not report.meta["complete"]:
            raise ProfileError(
                profile, "the profile was not finished", "Run the model again to get a whole one"
            )
        with Reader(profile) as reader:
            if reader.version >= schema.VERSION:
                raise ProfileError(
                    profile,
                    f"the profile has format {schema.VERSION} already",
                    "There is nothing to do",
                )
            with ProfileWriter(profile) as writer:
                for record in (
                    records.STORED
                ):  # in the engine's order: a trace's tasks need the bodies before them
                    if reader.version >= records.FIRST_FORMAT.get(record, 1):
                        writer.add(_rows(reader, record))
                if reader.count(records.Variable):
                    writer.add(tile_memory(report))
                header = {
                    key: value
                    for key, value in reader.meta.items()
                    if key not in ("format", "complete")
                }
                writer.meta(**{**legacy_formats.machine(report.target.clock_hz), **header})
                return writer.publish()


def _rows(reader: Reader, record: type[Any]) -> list[Any]:
    columns = reader.columns(record)
    kinds = {column.name: column.kind for column in schema.columns(record)}
    cells = []
    for name, values in columns.items():
        if kinds[name] == "vector":
            vectors = reader.vectors(values)
            cells.append([vectors.get(id) for id in values.tolist()])
        else:
            cells.append(values.tolist())
    return [record(*row) for row in zip(*cells, strict=True)]


def tile_memory(report: Report) -> Iterator[records.TileMemory]:
    """Bytes of a report's variables on each tile, for profiles whose writer did not record them."""
    for ipu in range(report.target.num_ipus):
        frame = report.tiles(ipu)
        columns = [
            frame[name].tolist()
            for name in ("total", "total_excluding_gaps", "always_live", "overflow")
        ]
        for tile, values in enumerate(zip(*columns, strict=True)):
            yield records.TileMemory(ipu, tile, *values)

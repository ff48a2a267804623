"""``debug.cbor`` beside a profile: the operator, module and source line of each program.

The vendor's layout (docs/pop-format.md, "Beside the profile"): a CBOR map of ``contexts``, children
before their parents, and of the ``stringTable`` with their names.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.pva.model import Model
from ipuscope.profiler.pva.operations import DebugContext, OperationAnalysis
from ipuscope.profiler.pva.report import Report
from ipuscope.profiler.report import open_report

NAME = "debug.cbor"


def write(profile: str | os.PathLike[str], above: str | os.PathLike[str] = "") -> Path:
    """Write the ``debug.cbor`` of a profile into its directory, in one rename; returns its path.

    ``above``: also into this one. With several models it has the last one's, as with PopTorch,
    whose ``autoReport.directory`` has the file while the profiles lie in directories below.
    ProfileError if the profile cannot be read or the file cannot be written.
    """
    beside = Path(profile).with_name(NAME)
    for path in dict.fromkeys((beside, Path(above, NAME) if above else beside)):
        partial = path.with_name(f"{NAME}.partial")
        try:
            if path is beside:
                with open_report(profile) as report, partial.open("wb") as file:
                    _write(Model(report), file)
            else:
                shutil.copyfile(beside, partial)
            os.replace(partial, path)
        except OSError as error:
            raise ProfileError(
                path,
                f"it cannot be written ({error})",
                "Free some space or choose another directory",
            ) from error
        finally:
            with suppress(OSError):  # of one that was not finished
                partial.unlink()
    return beside


def _write(model: Model, file: BinaryIO) -> None:
    """Write the file's contents, an operation at a time."""
    import cbor2

    strings: dict[str, int] = {}
    analysis, encoder = OperationAnalysis(Report(model)), cbor2.CBOREncoder(file)
    encoder.encode_length(5, 2)  # a map of two
    encoder.encode("contexts")
    encoder.encode_length(4, analysis.contexts)
    for operation in analysis.operations:
        context = operation.debugContext
        for one in (context, *context.parents):
            encoder.encode(_context(one, strings))
    encoder.encode("stringTable")
    encoder.encode(list(strings))


def _context(context: DebugContext, strings: dict[str, int]) -> dict[str, Any]:
    """One context; repeated texts are indices into ``strings``, to which new ones are added."""
    place, number = context.location, strings.setdefault
    parent = context.parents[0].id if context.parents else 0
    entry = {"id": context.id, "parentId": parent, "name": 0, **context.fields}
    entry["name"] = number(context.name, len(strings))
    if place.fileName:
        entry["location"] = {
            "fileName": number(place.fileName, len(strings)),
            "functionName": number(place.functionName, len(strings)),
            "lineNumber": place.lineNumber,
        }
    return entry

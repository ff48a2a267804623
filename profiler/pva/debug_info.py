"""``debug.cbor`` beside a profile: the operator, module and source line of each program.

The vendor's layout (docs/pop-format.md, "Beside the profile"): a CBOR map of ``contexts``, children
before their parents, and of the ``stringTable`` with their names.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipuscope.profiler.errors import ProfileError

NAME = "debug.cbor"


def write(profile: str | os.PathLike[str], above: str | os.PathLike[str] = "") -> Path:
    """Write the ``debug.cbor`` of a profile into its directory, in one rename; returns its path.

    ``above``: also into this one. With several models it has the last one's, as with PopTorch,
    whose ``autoReport.directory`` has the file while the profiles lie in directories below.
    ProfileError if the profile cannot be read or the file cannot be written.
    """
    import cbor2

    from ipuscope.profiler import pva

    content = cbor2.dumps(contents(pva.openReport(profile)))
    beside = Path(profile).with_name(NAME)
    for path in {beside, Path(above, NAME) if above else beside}:
        partial = path.with_name(f"{NAME}.partial")
        try:
            partial.write_bytes(content)
            os.replace(partial, path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise ProfileError(
                path,
                f"it cannot be written ({error})",
                "Free some space or choose another directory",
            ) from error
    return beside


def contents(report: Any) -> dict[str, Any]:
    """The contents of the file, for a report from `ipuscope.profiler.pva.openReport`."""
    from ipuscope.profiler.pva import OperationAnalysis

    strings: dict[str, int] = {}
    contexts: dict[int, dict[str, Any]] = {}
    for operation in OperationAnalysis(report).operations:
        context = operation.debugContext
        for one in (context, *context.parents):
            if one.id not in contexts:
                contexts[one.id] = _context(one, strings)
    return {"contexts": list(contexts.values()), "stringTable": list(strings)}


def _context(context: Any, strings: dict[str, int]) -> dict[str, Any]:
    """One context; repeated texts are indices into ``strings``, to which new ones are added."""

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    place = context.location
    entry: dict[str, Any] = {
        "id": context.id,
        "parentId": context.parents[0].id if context.parents else 0,
        "name": number(context.name),
        **{key: value for key, value in context.fields.items() if key not in ("parentId", "name")},
    }
    if place.fileName:
        entry["location"] = {
            "fileName": number(place.fileName),
            "functionName": number(place.functionName),
            "lineNumber": place.lineNumber,
        }
    return entry

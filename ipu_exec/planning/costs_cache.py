"""Compiled costs, cached in the user's cache directory by graph, options and compiler."""

from __future__ import annotations

import json
from typing import Any

from ipu_exec.compiler.options import CompileOptions
from ipu_exec.graph import Graph
from ipu_exec.lowering import registry
from ipu_exec.planning.compiling import Compiled
from ipu_exec.session.files.executable_file import key as key_of
from ipu_exec.session.files.plain_values import arrays_of, put_together, taken_apart
from ipuscope.planner.mappings import Obtained
from ipuscope.planner.mappings.phased_costs import PhasedCosts
from ipuscope.planner.mappings.priced import Priced
from ipuscope.profiler.answers import Store

_FOLDER = "plan"


def name_of(graph: Graph, options: CompileOptions, settings: dict[str, Any]) -> str:
    """A name for the costs of a graph under these options and this compiler."""
    return key_of(graph, options, registry.by_users(), settings)


class StoredCosts:
    """Compiles by name."""

    def __init__(self) -> None:
        self._store = Store()

    def get(self, name: str) -> Compiled | None:
        """The stored result; None where there is nothing intact."""
        data = self._store.get(f"{_FOLDER}-{name}")
        if data is None:
            return None
        try:
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + length])
            arrays = arrays_of(header["arrays"], memoryview(data)[8 + length :])
            whole = put_together(header["nodes"], arrays, header["root"])
        except (ValueError, KeyError, TypeError):
            return None
        return Compiled(*whole) if _is_compiled(whole) else None

    def put(self, name: str, compiled: Compiled) -> None:
        """Store it, if possible."""
        plain = taken_apart((compiled.priced, compiled.obtained, compiled.phased))
        header = {"nodes": plain.nodes, "arrays": plain.table(), "root": plain.root}
        head = json.dumps(header, separators=(",", ":")).encode()
        arrays = b"".join(array.tobytes() for array in plain.arrays)
        self._store.put(f"{_FOLDER}-{name}", len(head).to_bytes(8, "little") + head + arrays)


def _is_compiled(whole: object) -> bool:
    kinds = (Priced | None, Obtained, PhasedCosts | None)
    return isinstance(whole, tuple) and len(whole) == 3 and all(map(isinstance, whole, kinds))

"""The constants of the model, and the rows that are of the same source as each.

A constant is a number that a module of `ipu_exec` names in capitals, or a table of these; its
source is a key of the bibliography in the comment on its line or right above. The constant was, or
may have been, chosen in view of rows of that source, which are no blind test of it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fidelity.errors import source_of
from benchmarks.fidelity.store import Result

ROOT = Path(__file__).parents[2]
ROOMS = ("ipu_exec/machine.py", "ipu_exec/lowering", "ipu_exec/compiler")
KEY = re.compile(r"\[([A-Z]{2,}\d?)\b[^\]]*\]")


@dataclass(frozen=True)
class Constant:
    """A number in the sources, and the keys of what it is from."""

    name: str
    value: str
    file: str
    keys: tuple[str, ...]


def constants() -> Iterator[Constant]:
    """All that name a source, file by file."""
    for room in ROOMS:
        path = ROOT / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield from _of(file)


def _of(file: Path) -> Iterator[Constant]:
    text = file.read_text()
    lines = text.splitlines()
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(target, ast.Name) or not target.id.isupper():
            continue
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        while first and lines[first - 1].startswith("#"):
            first -= 1
        about = "\n".join(lines[first:last])
        keys = tuple(dict.fromkeys(KEY.findall(about)))
        leaves = {type(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
        value = ast.unparse(node.value)
        if keys and leaves and leaves <= {int, float}:
            shown = value if len(value) < 40 else f"{value[:36]} ..."
            yield Constant(target.id, shown, str(file.relative_to(ROOT)), keys)


def section(results: Sequence[Result]) -> str:
    """The table of them."""
    scored = Counter(source_of(r.row) for r in results if r.ratio is not None)
    lines = [
        HEAD,
        "",
        "| constant | value | file | source | rows of it | ",
        "| --- " * 4 + "| ---: |",
    ]
    for one in constants():
        rows = sum(scored[key] for key in one.keys)
        keys = ", ".join(f"[{key}]" for key in one.keys)
        value = one.value.replace("|", "\\|")
        lines.append(f"| {one.name} | `{value}` | {one.file} | {keys} | {rows or '-'} |")
    return "\n".join(lines)


HEAD = """## Constants and the rows of their sources

Numbers of the model that name where they are from, read off its sources, and how many of the scored
rows are of the same source: these rows are no blind test of that constant. Sources that only say
how a thing works ([PL], [POPART]) have no rows."""

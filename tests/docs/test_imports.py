"""Who may import whom.

The tables of docs/architecture.md, read from that page and held against the sources.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

OURS = ("ipuscope", "profiler", "planner", "ipu_exec", "viewer", "reports")
HEAVY = ("torch", "dash", "plotly")

# What comes with a package that the table names.
COMES_WITH = {"rich": {"pygments"}, "dash": {"flask", "werkzeug", "dash_ag_grid"}}
# The one place that may start the viewer, and the viewer's picture taker, which drives a browser.
ALSO = {
    "reports/cli/view.py": {"viewer"},
    "viewer/screenshots.py": {"PIL", "playwright", "reports"},
}
# Packages of which a package may only have some modules.
ONLY = {("reports", "viewer"): ("ipuscope.viewer.figures",)}
# Modules of a package that may have less than it.
LESS = {"viewer/figures/": {"dash"}}


def table() -> dict[str, set[str]]:
    """Maps a package to what it may import, of ours and of others."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page, re.MULTILINE)
    rooms = {}
    for package, words in rows:
        if package in OURS and package not in rooms:
            names = re.findall(
                r"[a-z_0-9]+", re.sub(r"\(.*?\)|;.*", "", words.replace(".figures", "")).lower()
            )
            rooms[package] = {package, *names} | set().union(
                *(COMES_WITH.get(name, set()) for name in names)
            )
    return rooms


def imported(path: Path) -> set[str]:
    """The modules that a file imports at run time, anywhere in it.

    Imports for type checkers do not count.
    """
    names: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                walk(other)
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: say the whole name rather than a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(), str(path)))
    return names


ROOMS = "## The rooms of `ipu_exec`"


@lru_cache
def rooms() -> list[tuple[str, ...]]:
    """The rooms of ipu_exec from top to bottom, each as the names in its row of the page."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split(ROOMS, 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return [tuple(re.findall(r"`([^`]+)`", row)) for row in rows]


def floor(module: str, order: list[tuple[str, ...]]) -> int:
    """The row of an ipu_exec module, counted from the bottom; -1 if it is in none."""
    _, _, inside = module.partition(".")
    first, _, rest = (inside or "__init__").partition(".")
    names = (f"{first}/",) if rest else (f"{first}/", first)
    rows = [row for row, room in enumerate(reversed(order)) if set(names) & set(room)]
    return rows[0] if rows else -1


def modules(package: str, root: Path = ROOT) -> dict[str, Path]:
    """Dotted name to file."""
    paths = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts).removesuffix(".__init__")] = path
    return paths


@lru_cache
def arrows(package: str, root: Path = ROOT) -> dict[str, set[str]]:
    """Modules of the package that each of its modules imports, for type checkers too."""
    files = modules(package, root)
    imports: dict[str, set[str]] = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        targets = set()
        for name in names:
            while name and name not in files:
                name = name.rpartition(".")[0]
            targets.add(name)
        imports[module] = targets - {module, ""}
    return imports


SOURCES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def test_the_table_names_every_package() -> None:
    assert set(table()) == set(OURS)
    assert "profiler" in table()["ipu_exec"]
    assert "ipu_exec" not in table()["profiler"] | table()["viewer"] | table()["reports"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_package_may(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    allowed = table()[package] | ALSO.get(relative, set()) | set(sys.stdlib_module_names)
    for prefix, names in LESS.items():
        if relative.startswith(prefix):
            allowed -= names
    for name in imported(path):
        top = name.split(".")[0]
        assert top in allowed, (
            f"{relative} imports {name}, which {package} may not (docs/architecture.md)"
        )
        only = ONLY.get((package, top))
        if only and relative not in ALSO:
            assert name.startswith(only), (
                f"{relative} imports {name}; of {top} it may have {', '.join(only)}"
            )


def test_every_file_of_ipu_exec_has_a_room() -> None:
    order = rooms()
    assert len(order) > 5
    homeless = [module for module in modules("ipu_exec") if floor(module, order) < 0]
    assert not homeless, f"{ROOMS} of docs/architecture.md has no row for {homeless}"


@pytest.mark.parametrize("module", modules("ipu_exec"))
def test_imports_inside_ipu_exec_point_downwards(module: str) -> None:
    order = rooms()
    for target in sorted(arrows("ipu_exec")[module]):
        assert floor(target, order) <= floor(module, order), (
            f"{module} imports {target}, which is in a room above it (docs/architecture.md)"
        )


def test_upward_arrows_are_seen(tmp_path: Path) -> None:
    room = tmp_path / "ipu_exec" / "lowering"
    room.mkdir(parents=True)
    (tmp_path / "ipu_exec" / "__init__.py").touch()
    (tmp_path / "ipu_exec" / "enums.py").touch()
    (room / "__init__.py").touch()
    (room / "one.py").write_text(
        "from ipu_exec.lowering import two\nfrom ipu_exec.enums import A\n"
    )
    (room / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from ipu_exec.lowering.one import B\n"
    )
    upward = arrows("ipu_exec", tmp_path)
    assert upward["ipu_exec.lowering.one"] == {"ipu_exec.lowering.two", "ipu_exec.enums"}
    assert upward["ipu_exec.lowering.two"] == {"ipu_exec.lowering.one"}
    order = rooms()
    levels = [
        floor(f"ipu_exec.{name}", order)
        for name in ("errors", "lowering.plan", "capture.step", "compiler.passes", "numerics.loop")
    ]
    assert levels == sorted(set(levels))
    assert levels[-1] < floor("ipu_exec.options", order) < floor("ipu_exec.session.executor", order)
    assert floor("ipu_exec.session.executor", order) < floor("ipu_exec", order)
    assert floor("ipu_exec.nowhere", order) == floor("ipu_exec.nowhere.file", order) == -1


# Packages within which every import points down: no circles, those for type checkers included.
NO_CIRCLES = OURS


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted names of a package's modules and their files; a package goes by its own name."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Those of ``modules`` that a file imports, anywhere and for any reader."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                names.add(name if name in modules else str(node.module))
    return names & modules


def circle(package: Path) -> list[str]:
    """Modules of a package that import one another in a cycle; empty if there is none."""
    modules = modules_of(package)
    sorter = TopologicalSorter(
        {name: imports_of(path, set(modules)) for name, path in modules.items()}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", NO_CIRCLES)
def test_imports_inside_a_package_make_no_circle(package: str) -> None:
    assert not circle(ROOT / package)


def test_circles_are_met_wherever_they_hide(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "cellar").mkdir(parents=True)
    files = {
        "__init__": "from house.door import key",
        "door": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import cellar",
        "cellar/__init__": "",
        "cellar/stairs": "",
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    assert circle(package) == []
    (package / "cellar/__init__.py").write_text("def f():\n    from house.cellar import stairs")
    (package / "cellar/stairs.py").write_text("from house.door import key")
    assert set(circle(package)) == {"house.door", "house.cellar", "house.cellar.stairs"}


def test_no_test_is_so_lax_that_it_cannot_fail(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import"
        " dash\ndef f():\n    from ipuscope.viewer.pages import home\n"
    )
    assert imported(tmp_path / "module.py") == {
        "typing.TYPE_CHECKING",
        "dash",
        "ipuscope.viewer.pages.home",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "from ipuscope import profiler",
        "import ipuscope.reports.cli",
        "from ipuscope import profiler, ipuscope.reports.tables",
    ],
)
def test_the_light_packages_load_nothing_heavy(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.split() == []


def test_a_subcommand_answers_without_anything_heavy(tmp_path: Path) -> None:
    from tests.synthetic import synthetic_profile

    path = synthetic_profile(tmp_path / "profile.pop")
    names = ("summary", "stages", "timeline", "memory", "pipeline", "whatif", "rebalance")
    code = (
        f"from ipuscope.reports.cli import main\nfor name in {names!r}:\n"
        f"    assert main([name, {str(path)!r}]) == 0\n"
        f"assert main(['export', {str(path)!r}, '-o', {str(tmp_path / 'trace.json')!r}]) == 0\n"
        "assert main(['completion', 'bash']) == 0\n"
        f"import sys\nprint('loaded:', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.splitlines()[-1] == "loaded:"


def test_lightning_is_imported_by_who_asks_for_it() -> None:
    """Neither the engine imports it, nor ``ipu-run`` before its script does."""
    code = (
        "import ipu_exec, ipu_exec.commands.run, ipuscope.profiler.pva, ipuscope.reports.cli, sys\n"
        "from ipu_exec.base.stand_in import stand_in\nstand_in()\n"
        "print('loaded:', *sorted({n.split('.')[0] for n in sys.modules if 'lightning' in n}))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.splitlines()[-1] == "loaded:"


def test_help_needs_not_even_numpy() -> None:
    code = (
        "import ipuscope.reports.cli, sys\nreports.cli.make_parser().format_help()\nprint('numpy' in"
        " sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.strip() == "False"

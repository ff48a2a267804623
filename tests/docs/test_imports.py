"""Who may import whom.

The tables of docs/architecture.md, read from that page and held against the sources.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

OURS = ("ipuscope", "profiler", "planner", "ipu_exec", "viewer", "reports")
LINKED = ("profiler", "planner", "viewer", "reports")  # imported as ipuscope.profiler ...
HEAVY = ("torch", "dash", "plotly")

# What comes with a package that the table names.
COMES_WITH = {"rich": {"pygments"}, "dash": {"flask", "werkzeug", "dash_ag_grid", "dash_cytoscape"}}
# The one place that may start the viewer, and the viewer's picture taker, which drives a browser;
# the one that asks for the vendor's reader, where the Poplar SDK is.
ALSO = {
    "reports/cli/import_.py": {"pva"},
    "reports/cli/view.py": {"viewer"},
}
# Packages of which a package may only have some modules.
ONLY = {("reports", "viewer"): ("viewer.figures",)}
# Modules of a package that may have less than it.
LESS = {"viewer/figures/": {"dash"}}
# Imports the files of its own folder by name, of which a command reads one.
BY_NAME = {"reports.cli"}


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


ROOMS = "## The rooms"
HAVE_ROOMS = ("ipu_exec", "planner", "profiler")


@lru_cache
def rooms(package: str) -> list[tuple[str, ...]]:
    """The rooms of a package from top to bottom, each as the names in its row of the page."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split(ROOMS, 1)[1].split("\n## ", 1)[0]
    table = section.split(f"| room of `{package}` |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    return [tuple(re.findall(r"`([^`]+)`", row)) for row in rows]


def floor(module: str) -> int:
    """The row of a module in its package's table, counted from the bottom; -1 if in none."""
    package, _, inside = module.partition(".")
    first, _, rest = (inside or "__init__").partition(".")
    names = (f"{first}/",) if rest else (f"{first}/", first)
    order = enumerate(reversed(rooms(package)))
    rows = [row for row, room in order if set(names) & set(room)]
    return rows[0] if rows else -1


def modules(package: str, root: Path = ROOT) -> dict[str, Path]:
    """Maps the names of a package's modules, without ``ipuscope.``, to their files."""
    paths = {}
    for path in sorted((root / package).rglob("*.py")):
        if not (package == "ipuscope" and path.relative_to(root).parts[1] in LINKED):
            parts = path.relative_to(root).with_suffix("").parts
            paths[".".join(parts).removesuffix(".__init__")] = path
    return paths


def short(name: str) -> str:
    """A module's name without the ``ipuscope.`` that stands before linked packages."""
    rest = name.removeprefix("ipuscope.")
    return rest if rest.split(".")[0] in LINKED else name


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
        targets = {one for one in files if module in BY_NAME and one.startswith(f"{module}.")}
        for name in map(short, names):
            while name and name not in files:
                name = name.rpartition(".")[0]
            targets.add(name)
        imports[module] = targets - {module, ""}
    return imports


SOURCES = sorted(path for package in OURS for path in modules(package).values())


def test_the_table_names_every_package() -> None:
    assert set(table()) == set(OURS)
    assert "profiler" in table()["ipu_exec"]
    assert "ipu_exec" not in table()["profiler"] | table()["viewer"] | table()["reports"]
    assert "planner" not in table()["profiler"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_package_may(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    allowed = table()[package] | ALSO.get(relative, set()) | set(sys.stdlib_module_names)
    for prefix, names in LESS.items():
        if relative.startswith(prefix):
            allowed -= names
    for name in imported(path):
        assert name.split(".")[0] not in LINKED, f"{relative}: {name} is imported from ipuscope"
        name = short(name)
        top = name.split(".")[0]
        assert top in allowed, (
            f"{relative} imports {name}, which {package} may not (docs/architecture.md)"
        )
        only = ONLY.get((package, top))
        if only and relative not in ALSO:
            assert name.startswith(only), (
                f"{relative} imports {name}; of {top} it may have {', '.join(only)}"
            )


@pytest.mark.parametrize("package", HAVE_ROOMS)
def test_every_file_has_a_room(package: str) -> None:
    assert len(rooms(package)) > 5
    homeless = [module for module in modules(package) if floor(module) < 0]
    # a package's own name, where its rooms do not list it, has a docstring only
    homeless = [module for module in homeless if module != package or arrows(package)[module]]
    assert not homeless, f"{ROOMS} of docs/architecture.md has no row for {homeless}"


@pytest.mark.parametrize(
    ("package", "module"), [(one, name) for one in HAVE_ROOMS for name in modules(one)]
)
def test_imports_inside_a_package_point_downwards(package: str, module: str) -> None:
    for target in sorted(arrows(package)[module]):
        assert floor(target) <= floor(module), (
            f"{module} imports {target}, which is in a room above it (docs/architecture.md)"
        )


@pytest.mark.parametrize("package", LINKED)
def test_nothing_is_imported_by_a_name_that_no_test_sees(package: str) -> None:
    for module, path in modules(package).items():
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        hidden = {name for name in called if name.endswith(("import_module", "__import__"))}
        assert not hidden or module in BY_NAME, (
            f"{module} imports by a name that is made at run time"
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
    levels = [
        floor(f"ipu_exec.{name}")
        for name in ("errors", "lowering.plan", "capture.step", "compiler.passes", "numerics.loop")
    ]
    assert levels == sorted(set(levels))
    assert levels[-1] < floor("ipu_exec.options") < floor("ipu_exec.session.executor")
    assert floor("ipu_exec.session.executor") < floor("ipu_exec")
    assert floor("ipu_exec.nowhere") == floor("ipu_exec.nowhere.file") == -1
    assert floor("planner.costs.cuts") < floor("planner.insights.cycles")
    assert floor("profiler.file.reader") < floor("profiler.report.query")


# Packages within which every import points down: no circles, those for type checkers included.
NO_CIRCLES = OURS


def circle(package: str, root: Path = ROOT) -> list[str]:
    """Modules of a package that import one another in a cycle; empty if there is none."""
    sorter = TopologicalSorter(arrows(package, root))
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", NO_CIRCLES)
def test_imports_inside_a_package_make_no_circle(package: str) -> None:
    assert not circle(package)


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
    assert circle("house", tmp_path) == []
    (package / "cellar/__init__.py").write_text("def f():\n    from house.cellar import stairs")
    (package / "cellar/stairs.py").write_text("from house.door import key")
    arrows.cache_clear()
    assert set(circle("house", tmp_path)) == {"house.door", "house.cellar", "house.cellar.stairs"}


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
        "import ipuscope.profiler, ipuscope.reports.tables",
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
    names = ("summary", "stages", "memory", "pipeline", "whatif", "rebalance")
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


@pytest.mark.parametrize("name", ["summary", "stages", "why", "query", "doctor"])
def test_small_reports_load_neither_pandas_nor_rich(name: str, tmp_path: Path) -> None:
    """Their imports take longer than what is asked."""
    from tests.synthetic import synthetic_profile

    path = synthetic_profile(tmp_path / "profile.pop")
    argv = [name, *(["select * from blocks"] if name == "query" else []), str(path)]
    code = (
        f"import sys\nfrom ipuscope.reports.cli import main\nassert main({argv!r}) == 0\n"
        "print('loaded:', *sorted({'pandas', 'rich.console'} & set(sys.modules)))"
    )
    plain = {
        key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")
    }
    command = [sys.executable, "-c", code]
    process = subprocess.run(
        command, env=plain, cwd=ROOT, capture_output=True, text=True, check=True
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
        "import sys\nfrom ipuscope.reports import cli\ncli.make_parser().format_help()\n"
        "print('numpy' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.strip() == "False"


def test_a_compile_and_sql_load_no_pandas() -> None:
    """It is only for who reads frames: a third of a second, and 60 MB."""
    modules = "ipu_exec.session.compilation, ipu_exec.session.autoreport"
    asked = f"import sys, {modules}, ipuscope.profiler.report.query; print('pandas' in sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

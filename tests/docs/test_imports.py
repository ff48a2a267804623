"""Who may import whom.

The table of docs/architecture.md, read from that page and held against the sources.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.paths import ROOT

OURS = ("profiler", "ipu_exec", "viewer", "reports")
HEAVY = ("torch", "dash", "plotly")

# What comes with a package that the table names.
COMES_WITH = {"rich": {"pygments"}, "dash": {"flask", "werkzeug", "dash_ag_grid"}}
# The one place that may start the viewer, and the viewer's picture taker, which drives a browser.
ALSO = {"reports/cli/view.py": {"viewer"}, "viewer/screenshots.py": {"playwright", "reports"}}
# Packages of which a package may only have some modules.
ONLY = {("reports", "viewer"): ("viewer.figures",)}
# Modules of a package that may have less than it.
LESS = {"viewer/figures/": {"dash"}}


def table() -> dict[str, set[str]]:
    """Package to what it may import, of ours and of others."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page, re.MULTILINE)
    found = {}
    for package, words in rows:
        if package in OURS and package not in found:
            names = re.findall(
                r"[a-z_]+", re.sub(r"\(.*?\)|;.*", "", words.replace(".figures", "")).lower()
            )
            found[package] = {package, *names} | set().union(
                *(COMES_WITH.get(name, set()) for name in names)
            )
    return found


def imported(path: Path) -> set[str]:
    """Modules that a file imports at run time, wherever in it.

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


# Packages within which every import points down: no circles, those for type checkers included.
NO_CIRCLES = ("profiler", "viewer", "reports")


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted names of a package's modules and their files; a package goes by its own name."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in package.rglob("*.py")
    }


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Which of ``modules`` a file imports, wherever in it and for whom ever."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules else str(node.module))
    return found & modules


def circle(package: Path) -> list[str]:
    """Modules of a package that import one another in a circle; none: empty."""
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
        " dash\ndef f():\n    from viewer.pages import home\n"
    )
    assert imported(tmp_path / "module.py") == {"typing.TYPE_CHECKING", "dash", "viewer.pages.home"}


@pytest.mark.parametrize(
    "statement", ["import profiler", "import reports.cli", "import profiler, reports.tables"]
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
        f"from reports.cli import main\nfor name in {names!r}:\n"
        f"    assert main([name, {str(path)!r}]) == 0\n"
        f"assert main(['export', {str(path)!r}, '-o', {str(tmp_path / 'trace.json')!r}]) == 0\n"
        "assert main(['completion', 'bash']) == 0\n"
        f"import sys\nprint('loaded:', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.splitlines()[-1] == "loaded:"


def test_help_needs_not_even_numpy() -> None:
    code = (
        "import reports.cli, sys\nreports.cli.make_parser().format_help()\nprint('numpy' in"
        " sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stdout.strip() == "False"

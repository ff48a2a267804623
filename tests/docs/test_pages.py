"""The pages: commands, links and pictures that they name are there, and their code runs."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ipu_exec.lowering import lower, operator_info, registry
from ipu_exec.lowering.operators import elementwise
from ipuscope import __version__
from ipuscope.profiler import open_report
from ipuscope.reports.cli import COMMANDS, main
from tests import forked
from tests.ipu_exec.lowering import test_operators_probe
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, op, tensor
from tests.paths import MADE, ROOT
from tests.synthetic import synthetic_profile

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}(?: title=\S+)?\n(.*?)^```",
        (ROOT / page).read_text(),
        re.MULTILINE | re.DOTALL,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    words = page.read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", words) + re.findall(
        r'(?:src|srcset)="([^"]+)"', words
    )
    for target in targets:
        if not target.startswith(("http://", "https://")):
            path = page.parent / target
            assert path in MADE or path.exists(), f"{page.name} names {target}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_commands_are_there(page: str) -> None:
    words = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)", words, re.MULTILINE)):
        name = "".join(target)
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page} names make {name}"
    named = set(re.findall(r"ipu-report ([a-z]+)", words))
    assert named <= set(COMMANDS), f"{page} names ipu-report {named - set(COMMANDS)}"
    if page == "README.md":
        assert len(named) > 5


@pytest.mark.parametrize(
    "command",
    re.findall(r"^\| `ipu-report ([^`]+)`", (ROOT / "README.md").read_text(), re.MULTILINE),
)
def test_commands_of_the_readmes_table_run_as_written(command: str, tmp_path: Path) -> None:
    """Profiles stand for PROFILE, A and B, a query for SQL, and files may be written."""
    path = synthetic_profile(tmp_path / "profile.pop")
    for_words = {
        "PROFILE": path,
        "A": path,
        "B": path,
        "SQL": "SELECT 1",
        "FILE": tmp_path / "placement.json",
    }
    for_words |= {name: tmp_path / name for name in ("report.html", "trace.json")}
    name, *arguments = shlex.split(command)
    argv = (
        [name, *(str(for_words.get(word, word)) for word in arguments)]
        if arguments
        else [name, str(path)]
    )
    # serves until it is ended: its words are checked, and tests/viewer/test_pages.py opens it
    if name == "view":
        assert arguments == ["PROFILE"]
    else:
        assert main(argv) == 0


def test_the_readmes_model_trains_and_its_profile_answers(tmp_path: Path) -> None:
    code = "\n".join(blocks("README.md", "python"))
    script = tmp_path / "script.py"
    script.write_text(code)
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"}
    process = forked.run([sys.executable, str(script)], cwd=tmp_path, env=env)
    assert process.returncode == 0, process.stderr
    assert "front" in process.stdout
    assert "bytes on the fullest tile of IPU 0" in process.stdout


@pytest.fixture
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lowerings registered in a test are gone after it, and the page's operator is not ours."""
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))
    monkeypatch.setattr(operator_info, "_INFOS", dict(operator_info._INFOS))
    monkeypatch.setattr(elementwise, "BINARY", dict(elementwise.BINARY))
    assert not any("hypot" in name for name in registry.registered()), (
        "the page adds an operator that is there"
    )
    yield
    operator_info.info.cache_clear()


def probe_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold hypot against the operator probe, which the page says to open for it."""
    assert "hypot" in test_operators_probe.NONE
    monkeypatch.delitem(test_operators_probe.NONE, "hypot")
    call, inputs = test_operators_probe.FUNCTIONS["hypot"]
    test_operators_probe.test_it_compiles("hypot", call, inputs, is_module=False)
    row, column, whole = tensor(1, 100), tensor(64, 1), tensor(64, 100)
    for operands in ((whole, row), (row, whole), (row, column)):
        spec = op("aten.hypot.default", operands, whole)
        plan = lower(spec, MK2)
        check(plan, spec)
        assert plan.flops >= 4 * 6400


@pytest.mark.usefixtures("own_registrations")
def test_contributings_row_lowers(monkeypatch: pytest.MonkeyPatch) -> None:
    (change,) = blocks("CONTRIBUTING.md", "diff")
    (row,) = re.findall(r"^\+(.*)$", change, re.MULTILINE)
    elementwise.BINARY.update(ast.literal_eval(f"{{{row}}}"))
    registry.lowering("aten.hypot", elementwise=True)(elementwise.lower_elementwise)
    probe_passes(monkeypatch)


@pytest.mark.usefixtures("own_registrations")
def test_contributings_function_lowers(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces: dict[str, Any] = {}
    lowering, own_test = blocks("CONTRIBUTING.md", "python")
    exec(compile(lowering, "CONTRIBUTING.md", "exec", dont_inherit=True), spaces)
    exec(compile(own_test, "CONTRIBUTING.md", "exec", dont_inherit=True), spaces)
    spaces["test_hypot_is_four_compute_sets"]()
    probe_passes(monkeypatch)


@pytest.mark.parametrize(
    "tool", ["ruff check", "ruff format --check", "mypy --config-file pyproject.toml"]
)
def test_contributings_code_passes_what_ours_must(tool: str, tmp_path: Path) -> None:
    """The linters find no fault in the lowering and its test as files of their own."""
    files = [tmp_path / "hypot.py", tmp_path / "test_hypot.py"]
    for file, code in zip(files, blocks("CONTRIBUTING.md", "python"), strict=True):
        file.write_text(f'"""An operator."""\n\n{code}')
    command = [sys.executable, "-m", *tool.split()]
    if tool.startswith("ruff"):
        command += ["--config", "pyproject.toml"]
    if tool == "ruff check":  # as for our own tests
        command += ["--extend-per-file-ignores", "test_*.py:D"]
    process = subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_contributings_error_is_the_compilers() -> None:
    words = (ROOT / "CONTRIBUTING.md").read_text()
    with pytest.raises(
        Exception, match=r"no lowering for aten\.hypot\.default: register one with"
    ) as caught:
        lower(op("aten.hypot.default", (tensor(4), tensor(4)), tensor(4)), MK2)
    assert str(caught.value).split("@")[0] in words
    assert torch.hypot(torch.tensor(3.0), torch.tensor(4.0)) == 5


def sessions(words: str) -> list[tuple[str, str]]:
    """Each command of the console blocks that shows what it printed, with the lines it shows."""
    shown = "".join(re.findall(r"^```console\n(\$ .*?)^```", words, re.MULTILINE | re.DOTALL))
    return re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", shown, re.MULTILINE)


def test_what_the_readme_shows_is_what_the_demo_prints(
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Line for line, but for those that it leaves out."""
    (tmp_path / "demo").symlink_to(demo)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # wider than any line of it
    shown = sessions((ROOT / "README.md").read_text())
    assert [command for command, _ in shown] == [
        "ipu-report summary demo/training",
        "ipu-report stages demo/training",
    ]
    for command, lines in shown:
        assert main(shlex.split(command)[1:]) == 0
        printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
        assert {line.rstrip() for line in lines.splitlines()} - {"..."} <= printed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_how_accurate_it_is_said_to_be_is_what_was_scored(page: str) -> None:
    fidelity = " ".join((ROOT / "docs" / "fidelity.md").read_text().split())
    words = " ".join((ROOT / page).read_text().split())
    (off,) = re.findall(r"trained models are off by (\d+)% in the median, against", words)
    (medians,) = re.findall(r"Medians of time: (.*?)\.(?= )", fidelity)
    assert f"trained models {off}%" in medians


def test_the_sites_menu_has_each_page_once() -> None:
    pages = re.findall(r"^\s+- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert len(pages) > 20
    assert sorted(pages) == sorted(set(pages))


def test_the_version_has_its_section_of_the_changelog() -> None:
    """A release has a dated section; before it there is one for what is coming."""
    sections = re.findall(r"^## \[([^]]+)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    dates = dict(sections)
    assert sections[0][0] == "Unreleased"
    if ".dev" not in __version__:
        assert re.fullmatch(r" - \d{4}-\d\d-\d\d", dates[__version__])


def test_the_header_of_a_profile_is_described(demo: Path) -> None:
    """Every key that a profile of ours has is in the page's table, and no other is."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    (section,) = re.findall(r"## The header of a profile\n(.*?)\n## ", page, re.DOTALL)
    keys = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    described = {key for cell in keys for key in re.findall(r"`(\w+)`", cell)}
    with open_report(demo / "training") as report:
        assert set(report.meta) == described

"""The pages that teach: their commands and snippets run as they are written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_exec
from ipu_exec.session.compilation import compile_step
from ipuscope.poprun import poprun_parser
from ipuscope.reports.cli import main, make_parser
from ipuscope.run_arguments import run_parser
from tests import forked
from tests.models import model_of
from tests.paths import ROOT
from tests.synthetic import synthetic_profile
from tools import gallery, site_pages, tutorial

TEACHING = sorted([*(ROOT / "docs" / "how-to").glob("*.md"), ROOT / "README.md"])
INSTALL = ROOT / "docs" / "install.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands(page: Path) -> list[list[str]]:
    """Words of each command of the page's console blocks and of its steps for CI."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    if any(line.startswith("$ ") for line in lines):  # a session, with what was printed
        lines = [line for line in lines if line.split(" ")[0] in ("ipu-run", "ipu-report", "pip")]
    lines += re.findall(r"- run: (.*)", "".join(blocks(page, "yaml")))
    return [shlex.split(line, comments=True) for line in lines]


def scripts(page: Path) -> dict[str, str]:
    """The snippets that have a file name."""
    titled = re.findall(r'^```python title="(\S+)"\n(.*?)^```', page.read_text(), re.M | re.S)
    return dict(titled)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the profiles that the pages mention."""
    for kind in ("demo/training", "before/training", "after/training"):
        (tmp_path / kind).mkdir(parents=True)
        synthetic_profile(tmp_path / kind / "profile.pop")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", TEACHING, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, place: Path) -> None:
    files = scripts(page)
    for name, code in files.items():
        (place / name).write_text(code)
    if "plain.py" in files:
        in_a_process([sys.executable, "plain.py"])
    lines = commands(page)
    for name, *words in lines:
        if name == "ipu-run" and words[-1] in files:
            in_a_process([sys.executable, "-m", "ipu_exec.commands.run", *words])
        elif name == "ipu-run":
            run_parser("ipu-run").parse_args(words)
        elif name == "ipu-report" and words[0] == "view":  # serves until it is ended
            make_parser().parse_args(words)
        elif name == "ipu-report":
            assert main(words) == 0, words
        elif name == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M), words
        else:
            check_install([name, *words])
    assert lines


OTHERS = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page not in (*TEACHING, INSTALL, tutorial.PAGE)
    and re.search(r"^```(console|python|py|sql)\b", page.read_text(), re.M)
]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_the_commands_of_other_pages_are_there(page: Path) -> None:
    """Each is one that its program takes: they name files and machines that a test has not."""
    for line in "".join(blocks(page, "console")).splitlines():
        words = shlex.split(line.removeprefix("$ ").rpartition("&&")[2], comments=True)
        name = words[0] if words else ""
        if name == "ipu-run":
            run_parser(name).parse_args(words[1:])
        elif name == "poprun":
            poprun_parser().parse_args(words[1:])
        elif name == "ipu-report":
            make_parser().parse_args(words[1:])
        elif name == "pip":
            check_install(words)
        elif words[:3] == ["python", "-m", "pytest"]:
            assert all((ROOT / one).exists() for word in words[3:] for one in expanded(word))
        else:  # what a command printed, below its "$ "
            assert "$ " in "".join(blocks(page, "console")), line


def expanded(word: str) -> list[str]:
    """The words that the shell expands a word with {a,b} into."""
    match = re.fullmatch(r"([^{]*)\{([^}]*)\}(.*)", word)
    if match is None:
        return [word]
    before, choices, after = match.groups()
    return [f"{before}{choice}{after}" for choice in choices.split(",")]


def names_of(page: Path) -> dict[str, Any]:
    """The names that a page's snippets assume to be defined."""
    layer = torch.nn.Linear(4, 4)
    return {
        "poptorch": ipu_exec,
        "ipu_exec": ipu_exec,
        "options": ipu_exec.Options(),
        "stages": [ipu_exec.Stage("B0").ipu(0)],
        "torch": torch,
        "config": None,
        "Gpt3": lambda config: layer,
    }


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_the_snippets_of_other_pages_run(page: Path, tmp_path: Path) -> None:
    names = names_of(page)
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
    for number, code in enumerate(blocks(page, "py")):  # under ipu-run
        script = tmp_path / f"block{number}.py"
        script.write_text(f"{LIGHTNING if 'Trainer' in code else ''}{code}")
        in_a_process([sys.executable, "-m", "ipu_exec.commands.run", str(script)], tmp_path)
    sql = re.sub("--.*", "", "".join(blocks(page, "sql")))
    with sqlite3.connect(synthetic_profile(tmp_path / "profile.pop")) as profile:
        for statement in filter(str.strip, sql.split(";")):
            assert profile.execute(statement).fetchall()


# The model of the pages that say .fit(model), with its data; one batch of it says enough.
LIGHTNING = """
from lightning.pytorch.demos.boring_classes import BoringModel

class Model(BoringModel):
    def on_train_batch_end(self, *_):
        self.trainer.should_stop = True

model = Model()
"""


def test_the_overlapped_model_of_its_page_compiles() -> None:
    """Its forward, with a layer between: the input and the output go over the I/O tiles."""
    names = names_of(ROOT / "docs" / "host-io.md")
    for code in blocks(ROOT / "docs" / "host-io.md", "python"):
        exec(compile(code, "host-io.md", "exec"), names)
    model = model_of(names["forward"], layer=torch.nn.Linear(8, 8))
    options = names["options"].showCompilationProgressBar(False).deviceIterations(4)
    executable = compile_step(model, (torch.zeros(2, 8),), {}, options, None, False)
    assert "stream buffer" in " ".join(variable.name for variable in executable.variables)


def in_a_process(command: list[str], folder: Path | None = None) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = forked.run(command, env=env, cwd=folder)
    assert process.returncode == 0, process.stderr


def check_install(words: list[str]) -> None:
    """Pip is told of extras that there are."""
    assert words[:2] == ["pip", "install"], words
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for named in re.findall(r"\[(\w+)\]", " ".join(words)):
        assert named in extras


@pytest.mark.parametrize("page", TEACHING, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(page: Path, place: Path) -> None:
    if page.name == "README.md":
        pytest.skip("tests/docs/test_pages.py runs them")
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), {})


def test_install_names_what_there_is() -> None:
    for name, *words in commands(INSTALL):
        if name == "pip":
            check_install([name, *words])
        else:
            assert name in ("ipu-report", "ipu-run") and words == ["--version"]


def test_the_tutorial_runs_with_a_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tutorial, "subprocess", forked)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    list(tutorial.run_page(tutorial.PAGE.read_text(), tmp_path, tiny=True))
    for name in ("before", "after", "more"):
        assert list((tmp_path / name).rglob("profile.pop"))


def test_the_tutorial_notices_a_figure_that_is_not_printed(tmp_path: Path) -> None:
    words = "```console\nipu-report --version\n```\n```text\n7 cycles\n```\n"
    assert list(tutorial.run_page(words, tmp_path)) == ["7 cycles"]


def test_every_command_and_option_is_on_the_page_of_commands() -> None:
    page = site_pages.commands_page()
    for name, parser in site_pages.subcommands(make_parser()).items():
        assert f"### ipu-report {name}\n" in page
        for action in filter(site_pages.shown, parser._actions):
            for flag in action.option_strings:
                assert f"{flag}" in page
    for flag in ("--compile-only", "--num-ipus", "--num-replicas"):
        assert flag in page


def test_every_module_of_the_reference_lists_what_is_public() -> None:
    for module in site_pages.REFERENCE:
        __import__(module)
        assert sys.modules[module].__all__, module


def test_the_gallery_lists_its_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "subprocess", forked)
    monkeypatch.setattr(gallery, "EXHIBITS", gallery.EXHIBITS[:2])
    assert gallery.main(["--tiny", "-o", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    for exhibit in gallery.EXHIBITS:
        assert f'href="{exhibit.name}.html">{exhibit.title}<' in page
        assert (tmp_path / f"{exhibit.name}.html").stat().st_size > 100_000
    assert page.count("2 IPUs, mk2") == len(gallery.EXHIBITS)

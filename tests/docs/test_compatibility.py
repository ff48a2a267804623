"""docs/compatibility.md is what its script writes, and the script's table agrees with the code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import ipu_exec
from ipu_exec.option_groups.group import NOT_HONOURED
from tests.paths import ROOT
from tools import compatibility, poptorch_names


def test_the_page_is_what_the_script_makes() -> None:
    written = (ROOT / "docs" / "compatibility.md").read_text()
    assert written == compatibility.page(), (
        "run: python -m tools.compatibility > docs/compatibility.md"
    )


def test_every_public_name_is_on_the_page() -> None:
    page = compatibility.page()
    for name in ipu_exec.__all__:
        assert re.search(rf"`{name}`", page), name


def test_a_name_in_the_wrong_state_stops_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    group = compatibility.GROUPS[0]
    with pytest.raises(ValueError, match="is there, but the table says 'not there'"):
        compatibility.classify(replace(group, names={"DataLoader": "not there"}), "DataLoader")
    with pytest.raises(ValueError, match="is not there, but"):
        compatibility.classify(replace(group, names={"Nothing": "same"}), "Nothing")
    warned = {"io_tiles_to_load": ("useIOTilesToLoad", "the tiles that compute load it")}
    monkeypatch.setattr(compatibility, "NOT_HONOURED", warned)
    location = next(g for g in compatibility.GROUPS if g.title == "TensorLocationSettings")
    with pytest.raises(ValueError, match="warns that it is not honoured"):
        compatibility.classify(
            replace(location, names={"useIOTilesToLoad": "same"}), "useIOTilesToLoad"
        )


def test_what_the_page_says_of_a_warning_is_the_warning() -> None:
    page = compatibility.page()
    for option, instead in NOT_HONOURED.values():
        if option.startswith("_Popart"):  # all of its settings share a row
            assert re.search(rf"\| [^|]*{option.split()[-1]} warns: {re.escape(instead)} \|", page)
            continue
        assert re.search(
            rf"`[\w.]*{re.escape(option)}` \| accepted, no effect here \| {re.escape(instead)} \(it"
            r" warns\) \|",
            page,
        ), option


def test_every_name_of_poptorchs_sources_is_here_or_on_the_list() -> None:
    missing = [name for name in compatibility.theirs() if not compatibility.resolves(name)]
    assert set(missing) <= {
        "LegacyBeginBlockFn",
        "ParallelPhasedExecution.backendOptions",
        "SerialPhasedExecution.backendOptions",
        "accessAttributes",
        "createPoptorchError",
        "getIpuTensorId",
        "logger",
        "poptorchAtExit",
        "registerGeometricCustomArgParsers",
    }
    assert {"trainingModel", "Options.Training.gradientAccumulation"} <= set(compatibility.theirs())


def test_poptorchs_own_tests_agree_with_the_table() -> None:
    counts = compatibility.checked()
    assert counts["trainingModel"][0] > 100
    assert not compatibility.contradicted(counts)
    assert compatibility.contradicted({"Options.deviceIterations": (1, 2)})


def test_the_tests_of_a_name_are_those_that_use_it(tmp_path: Path) -> None:
    suite = tmp_path / "tests"
    suite.mkdir()
    (suite / "a_test.py").write_text(
        "import torch, poptorch\n"
        "def options():\n    return poptorch.Options().deviceIterations(2)\n"
        "def test_one():\n    options()\n"
        "def test_two(x):\n    torch.save(poptorch.inferenceModel(x))\n"
    )
    rows = [("test_one", "passed"), ("test_two[1]", "failed"), ("test_two[2]", "passed")]
    outcomes = tmp_path / "outcomes.jsonl"
    with outcomes.open("w") as file:
        for test, outcome in rows:
            for row in ({"when": "start"}, {"when": "call", "outcome": outcome, "text": ""}):
                file.write(json.dumps({"id": f"a_test.py::{test}", **row}) + "\n")
    assert compatibility.check(tmp_path, outcomes) == {
        "inferenceModel": (1, 1),
        "Options": (1, 0),
        "Options.deviceIterations": (1, 0),
    }


def test_names_are_read_off_syntax_trees(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.mkdir()
    for file in {*poptorch_names.CLASSES, *poptorch_names.MODULES}:
        (python / file).write_text("")
    (python / "__init__.py").write_text(
        "from .ops import nop, _hidden\nimport os\ndef load(): pass\ndef _inner(): pass\n"
        "class DataLoader:\n    def terminate(self): pass\n    def __len__(self): pass\n"
    )
    (python / "optim.py").write_text("class SGD: pass\n")
    assert poptorch_names.names(tmp_path) == [
        "DataLoader",
        "DataLoader.terminate",
        "load",
        "nop",
        "optim.SGD",
    ]


def test_facts_names_are_all_classified() -> None:
    """Each name of PopTorch's that the options, the executor and the top level have is in the
    table, or is our own.
    """
    for names in compatibility.own_names().values():
        assert not {"deviceIterations", "trainingModel", "getLatency"} & set(names)
    assert compatibility.own_names()["ipu_exec."] == [
        "LoweringError",
        "OutOfMemoryError",
        "UsageError",
        "no_weights",
        "plan",
        "register_custom_op",
    ]

"""The runner of PopTorch's own tests: what its outcomes add up to."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path

from tests.paths import ROOT
from tools.poptorch_suite import outcomes
from tools.poptorch_suite.__main__ import together
from tools.poptorch_suite.page import page

ROWS = [
    {"id": "a_test.py::test_one", "when": "start"},
    {"id": "a_test.py::test_one", "when": "call", "outcome": "failed", "text": "E   Boom: x\nend"},
    {"id": "tests/a_test.py::test_two[1]", "when": "start"},
    {"id": "tests/a_test.py::test_two[1]", "when": "call", "outcome": "passed"},
    {"id": "a_test.py::test_three", "when": "start"},
    {"id": "b_test.py", "when": "collect", "outcome": "failed", "text": "no module"},
    {"id": "c_test.py::test_four", "when": "start"},
    {"id": "c_test.py::test_four", "when": "call", "outcome": "passed"},
    {"id": "c_test.py::test_four", "when": "teardown", "outcome": "failed", "text": "E   late"},
]


def read(tmp_path: Path) -> dict[str, outcomes.Outcome]:
    file = tmp_path / "outcomes.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return outcomes.read(file)


def test_the_last_outcome_of_each_test_counts(tmp_path: Path) -> None:
    kinds = {name: outcome.kind for name, outcome in read(tmp_path).items()}
    assert kinds == {
        "a_test.py::test_one": "failed",
        "a_test.py::test_two[1]": "passed",
        "a_test.py::test_three": "cut",
        "b_test.py": "not collected",
        "c_test.py::test_four": "failed",
    }
    assert outcomes.cause(read(tmp_path)["a_test.py::test_one"].text) == "Boom: x"


def test_the_page_counts_what_cannot_pass_apart(tmp_path: Path) -> None:
    known = [
        outcomes.Reason(re.compile("test_three"), "a reason"),
        outcomes.Reason(re.compile("test_four"), "on purpose: a warning, no error"),
    ]
    text = page(read(tmp_path), known, datetime.date(2026, 1, 2))
    assert "4 tests that ran 1 pass, 1 fail, 1 fail for want" in text.replace("\n", " ")
    assert "has, 1 differ on purpose" in text and "| `c_test.py::test_four` | a warning" in text
    assert "50.0% pass" in text and "2026-01-02" in text
    assert "| `a_test.py` | 1 | 1 | 1 | 0 |" in text
    assert "| 1 | a reason |" in text


def test_the_files_of_a_subfolder_run_in_one_process() -> None:
    files = ["a_test.py", "b_test.py", "gnn/nn/test_c.py", "gnn/nn/test_d.py", "gnn/test_e.py"]
    assert together(files) == [[files[0]], [files[1]], files[2:4], [files[4]]]


def test_each_test_that_cannot_pass_has_a_reason() -> None:
    listed = outcomes.reasons(ROOT / "tests" / "poptorch" / "internals.txt")
    assert listed and all(len(reason.why.split()) > 2 for reason in listed)

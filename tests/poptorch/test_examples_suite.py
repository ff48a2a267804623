from __future__ import annotations

import datetime
import re
from dataclasses import replace

from tools.examples_suite.page import page
from tools.examples_suite.running import Application, Outcome, _last, applications

OBSTACLE = {"kind": "data", "error": "urlopen error", "why": "downloads its graphs"}
ONE = Application("GNN", "gnn", "train.py", obstacle=OBSTACLE)


def test_only_an_obstacle_that_shows_the_expected_text_excuses_an_application() -> None:
    ended = Outcome(1, False, "URLError: <urlopen error [Errno -2]>", 1)
    assert ONE.verdict(ended) == "data"
    assert ONE.verdict(replace(ended, last="LoweringError: no lowering")) == "undecided"
    assert ONE.verdict(Outcome(0, True, "", 1)) == "compiles"
    assert ONE.verdict(Outcome(0, False, "done", 1)) == "undecided"  # wrapped nothing
    text = page([(ONE, ended), (replace(ONE, obstacle=None), ended)], datetime.date(2026, 1, 1))
    assert "data: downloads its graphs |" in text and "undecided |" in text


def test_the_last_error_is_told_before_the_lines_behind_it() -> None:
    assert _last("a\nValueError: wrong\n100%\n") == "ValueError: wrong"
    assert _last("a\ncompiled\n") == "compiled"


def test_every_application_is_named_once_and_every_obstacle_has_a_kind() -> None:
    rows = applications()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        if row.obstacle is not None:
            assert set(row.obstacle) == {"kind", "error", "why"}
            assert row.obstacle["kind"] in ("data", "weights", "C++", "library", "age")
            assert re.compile(row.obstacle["error"])

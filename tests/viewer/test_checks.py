"""The Rebalance page's Check: the splits it compiles, its script, and what the page reports."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import quickest
from ipuscope.planner.search.verified_splits import Verified
from ipuscope.profiler import Report
from ipuscope.profiler.provenance import Provenance
from ipuscope.viewer import checks
from ipuscope.viewer.app import create_app
from ipuscope.viewer.checks import COUNT, Checks, chosen
from ipuscope.viewer.pages import rebalance
from tests.viewer.page_requests import PageRequests

SCRIPT = ("train.py", "--fast")
Progress = Callable[[Iterable[Verified], int], Iterable[Verified]]


class Compiler:
    """Stands in for `verify`: records the request, and returns each split as predicted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script: Sequence[str] = ()
        self.wanted: list[Assignment] = []
        self.go_on, self.through = threading.Event(), threading.Event()
        monkeypatch.setattr(checks, "verify", self)

    def __call__(
        self,
        costs: Costs,
        wanted: list[Assignment],
        script: Sequence[str],
        made: Provenance,
        progress: Progress,
    ) -> list[Verified]:
        self.script, self.wanted = script, wanted
        came = []
        for one in wanted:
            prediction = what_if(costs, one)
            came.append(Verified(prediction, prediction.total + 7, prediction.fullest))
        assert self.go_on.wait(60)
        verified = list(progress(came, len(came)))
        return sorted(verified, key=lambda one: one.cycles)


def finished(checks: Checks) -> Any:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon and "_run" in thread.name:
            thread.join(60)
    return checks.now


def test_the_shown_split_is_compiled_and_the_quickest_near_it(
    training: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs.from_report(training)
    compiler, runner = Compiler(monkeypatch), Checks(SCRIPT)
    runner.begin(costs, profiled(costs), Provenance())
    assert runner.now.running
    runner.begin(costs, profiled(costs), Provenance())  # nothing: one is running
    compiler.go_on.set()
    now = finished(runner)
    assert not now.running and not now.problem
    assert compiler.script == SCRIPT
    assert compiler.wanted == chosen(costs, profiled(costs))
    assert compiler.wanted[0] == profiled(costs) and len(set(compiler.wanted)) <= COUNT
    proposed = quickest(costs).prediction.assignment
    assert len(set(proposed.ipus)) < len(set(costs.ipus)) and proposed in compiler.wanted
    assert now.done == now.total == len(now.results) == len(compiler.wanted)


def test_what_goes_wrong_is_said(training: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    costs, runner = Costs.from_report(training), Checks(SCRIPT)
    full = costs.with_tile_bytes(100)
    runner.begin(full, profiled(costs), Provenance())
    assert "fits" in finished(runner).problem

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checks, "verify", fail)
    runner.begin(costs, profiled(costs), Provenance())
    assert finished(runner).problem == "no space left" and not runner.now.running


def test_without_a_script_there_is_nothing_to_press(training: Report) -> None:
    costs, runner = Costs.from_report(training), Checks()
    runner.begin(costs, profiled(costs), Provenance())
    assert not runner.now.running
    page = answers(training, ())
    assert all("rebalance-check" not in text for text in page.values())


def test_the_page_begins_a_check_and_shows_the_winner(
    training: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("IPUSCOPE_CACHE", str(tmp_path))
    compiler = Compiler(monkeypatch)
    first = PageRequests(create_app(training, script=SCRIPT))
    asked = dict(first.of_page(rebalance.PAGE, {"theme": "light", "width": 1000}))
    begin = next(body for what, body in asked.items() if what == "rebalance-checked")
    look = next(body for what, body in asked.items() if "rebalance-checking" in what)
    begin["inputs"][0]["value"] = 1
    said = first.ask(begin)
    assert "Compiling" in said and "rebalance-checking" in said  # and looks again
    assert "Compiling" in first.ask(look)
    compiler.go_on.set()
    while not json.loads(first.ask(look))["response"]["rebalance-checking"]["disabled"]:
        pass
    said = str(json.loads(first.ask(look)))  # the same request: no answer of it is kept
    assert f"is the quickest of {len(compiler.wanted)} splits that were compiled" in said
    proposed = quickest(Costs.from_report(training)).prediction.assignment
    assert proposed.named(len(training.blocks)) in said
    assert "/rebalance?starts=" in said
    assert compiler.script == SCRIPT


def answers(training: Report, script: Sequence[str]) -> dict[str, str]:
    first = PageRequests(create_app(training, script=script))
    page = first.of_page(rebalance.PAGE, {"theme": "light", "width": 1000})
    return {what: first.ask(request) for what, request in page}

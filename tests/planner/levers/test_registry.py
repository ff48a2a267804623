"""Each lever has all of its parts: settings, an argument, words, lines, a finding, an effect."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

import ipu_exec
from ipu_exec.script_levers import changed_options, parse
from ipuscope.planner.advice import Allowed, anything, basis_of
from ipuscope.planner.levers.levers import Basis
from ipuscope.planner.levers.registry import LEVERS, argument, code, finding, title
from ipuscope.planner.levers.settings import Levers
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import open_report
from tests.synthetic import synthetic_profile

ON_THE_MODEL = {"half", "micro_batch"}  # applied to the module or its inputs, not to options


@pytest.fixture
def basis(tmp_path: Path) -> Basis:
    """A profile in which every lever may be pulled."""
    report = open_report(synthetic_profile(tmp_path / "profile.pop"))
    return basis_of(report)


def value_of(name: str, basis: Basis) -> object:
    """Another setting than the profile's."""
    if name == "split":
        return Assignment((0,), (0,))
    usual = {"half": True, "micro_batch": 2 * basis.micro_batch, "micro_batches": 99, "replicas": 3}
    usual |= {"recompute": not basis.costs.recompute, "outputs": "loss", "state": "off-chip"}
    usual |= {"overlap": True}
    return usual[name]


def test_each_field_of_the_levers_is_a_lever() -> None:
    assert [*LEVERS, "options"] == [one.name for one in fields(Levers)]


@pytest.mark.parametrize("name", list(LEVERS))
def test_a_lever_has_words_lines_and_a_finding(name: str, basis: Basis) -> None:
    levers = replace(Levers(), **{name: value_of(name, basis)})
    assert title(basis, levers) and code(basis, levers)[0]
    heading, detail, waits = finding(basis, levers, lambda what: f"There is room {what}.")
    assert heading and detail.endswith(".")
    assert waits.causes or waits.phases


@pytest.mark.parametrize("name", [name for name in LEVERS if name != "split"])
def test_ipu_run_takes_what_the_registry_writes(name: str, basis: Basis) -> None:
    written = argument(replace(Levers(), **{name: value_of(name, basis)}))
    pulled = parse(written)
    assert pulled
    if name not in ON_THE_MODEL:
        options = ipu_exec.Options()
        changed = changed_options(options, pulled, training=True)
        assert changed.toDict() != options.toDict()


@pytest.mark.parametrize("name", list(LEVERS))
def test_a_lever_changes_what_is_predicted(name: str, basis: Basis) -> None:
    levers = replace(Levers(), **{name: value_of(name, basis)})
    now, then = basis.outlook(Levers()), basis.outlook(levers)
    assert (then.total, then.memory) != (now.total, now.memory)


def test_only_levers_that_are_allowed_change_the_training(basis: Basis) -> None:
    for name in ("half", "micro_batch", "micro_batches"):
        assert not LEVERS[name].settings(basis, Allowed())
        assert LEVERS[name].settings(basis, anything(basis)) or name == "half"

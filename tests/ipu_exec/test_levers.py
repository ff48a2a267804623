"""`ipu-run --with`: a script compiled as if it said otherwise."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import ipu_exec
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.errors import Error
from ipu_exec.script_levers import changed_options, parse
from ipuscope.planner.levers.settings import Levers
from ipuscope.profiler import analysis, open_report
from ipuscope.profiler.enums import Role
from tests.ipu_exec.test_run import ipu_run
from tests.paths import ROOT

GPT = str(ROOT / "benchmarks" / "advise" / "gpt.py")


def test_levers_are_words_between_commas() -> None:
    asked = parse("half, micro-batch=8,micro-batches=32,recompute=no,outputs=loss,state=off-chip")
    assert asked == Levers(True, 8, 32, 0, False, "loss", "off-chip")
    assert not parse("")


@pytest.mark.parametrize(
    "text",
    ["quarter", "micro-batch", "micro-batch=0", "micro-batch=-2", "recompute=maybe", "state="],
)
def test_what_is_no_lever_is_an_error_that_names_those_there_are(text: str) -> None:
    with pytest.raises(Error, match=r"is not a lever.*outputs=all\|final\|loss"):
        parse(text)


def test_a_script_is_compiled_with_its_levers_pulled(tmp_path: Path) -> None:
    """The script itself is neither changed nor run."""
    levers = "half,micro-batch=4,micro-batches=16,recompute=no,outputs=loss,state=off-chip"
    process = ipu_run("--with", levers, "--profile-dir", "out", GPT, "--tiny", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "loss" not in process.stdout
    with open_report(tmp_path / "out" / "training") as report:
        options = report.options
        assert options["Training.gradientAccumulation"] == 16
        assert options["outputMode"] == "Final"
        assert options["TensorLocations.locationOptimizer.onChipStorage"] is False
        assert report.meta["micro_batch"] == 4
        weights = report.variables[report.variables["role"] == Role.WEIGHT]
        assert set(weights["dtype"]) == {"float16"}
        assert not report.stages["recompute_cycles"].any()
        returned = analysis.host_tensors(report)
        assert returned.loc[returned["way"] == "out", "bytes"].max() <= 4


def test_state_in_parts_of_one_replica_is_said_to_change_nothing() -> None:
    one, two = ipu_exec.Options(), ipu_exec.Options().replicationFactor(2)
    warn_once.cache_clear()  # other tests say it, too
    with pytest.warns(UserWarning, match="state=in-parts changes nothing with one replica"):
        changed_options(one, parse("state=in-parts"), training=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changed_options(two, parse("state=in-parts"), training=True)
        changed_options(one, parse("state=off-chip"), training=True)


def test_a_wrong_lever_ends_before_the_script(tmp_path: Path) -> None:
    process = ipu_run("--with", "fast", GPT, "--tiny", cwd=tmp_path)
    assert process.returncode == 2
    assert "'fast' is not a lever" in process.stderr

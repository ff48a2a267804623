"""A compile repeats how its profile was made, and changes only what it is asked to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ipuscope.planner.levers.compile_again import (
    command_line,
    compile_again,
    merged,
    merged_placement,
)
from ipuscope.profiler import open_report
from ipuscope.profiler.provenance import Provenance
from ipuscope.reports.cli import main
from tests import forked
from tests.synthetic import synthetic_profile

# names no Blocks, and cuts its own batches: only --num-ipus makes a pipeline of it
SCRIPT = """
import sys, torch, poptorch
from torch import nn
width = int(sys.argv[1])
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    def forward(self, x):
        y = self.layers(x)
        return y, (y * y).mean()
model = poptorch.trainingModel(Net(), poptorch.Options())
for _ in range(2):
    model(torch.zeros(16, width))
"""


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        ("", "", ""),
        ("half", "", "half"),
        ("half,micro-batch=4", "micro-batch=8", "half,micro-batch=8"),
        ("half", "float,outputs=loss", "float,outputs=loss"),
        (" state=off-chip , half", "recompute=no", "state=off-chip,half,recompute=no"),
    ],
)
def test_later_levers_replace_those_of_their_kind(before: str, after: str, both: str) -> None:
    assert merged(before, after) == both


def test_new_stages_keep_what_only_the_old_placement_says() -> None:
    before = {"stages": [1], "proposed": {"modules": ["a"]}, "promise": {}, "accumulation": 4}
    assert merged_placement(before, None) == before
    after = merged_placement(before, {"stages": [2], "promise": {"cycles": 1}})
    assert after == {"stages": [2], "proposed": {"modules": ["a"]}, "promise": {"cycles": 1}}


def test_a_profile_says_how_it_was_made_and_is_made_so_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ["--num-ipus", "2", "--compile-only", "--profile-dir", str(tmp_path / "first")]
    code = "import sys; from ipu_exec.commands.run import main; sys.exit(main(sys.argv[1:]))"
    forked.run([sys.executable, "-c", code, *words, str(script), "64"], check=True)
    with open_report(tmp_path / "first" / "training") as report:
        made, stages = Provenance.of(report), report.stages["blocks"].tolist()
    assert made.command == ("ipu-run", *words, str(script), "64")
    assert (made.script, made.arguments, made.num_ipus) == (str(script), ("64",), 2)
    assert not made.differences(str(script), ["64"])
    assert len(made.differences(str(script), ["128"])) == 1
    again, why = compile_again([str(script), "64"], tmp_path / "again", made, levers="half")
    assert again is not None, why
    with open_report(again) as report:
        assert report.stages["blocks"].tolist() == stages  # the script alone has no stages
        assert "float16" in set(report.variables["dtype"])
        assert Provenance.of(report).levers == "half"
        assert "promise" not in Provenance.of(report).placement  # which was made without it
    split = tmp_path / "split.json"
    assert main(["rebalance", str(tmp_path / "first"), "-o", str(split)]) == 0
    options = ["--placement", str(split), "--compile-only", "--profile-dir", str(tmp_path / "new")]
    forked.run([sys.executable, "-c", code, *options, str(script), "64"], check=True)
    with open_report(tmp_path / "new" / "training") as report:  # of the script, which has no Blocks
        assert [name for blocks in report.stages["blocks"] for name in blocks.split(", ")] == [
            name for blocks in stages for name in blocks.split(", ")
        ]
    script.write_text(SCRIPT + "# edited\n")
    (changed,) = made.differences(str(script), ["64"])
    assert "not the script" in changed


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (("ipu-run", "train.py", "64", "-m"), ("/a/train.py", "64", "-m")),
        (
            ("ipu-run", "--num-ipus", "2", "-m", "pkg.train", "64", "-m"),
            ("-m", "pkg.train", "64", "-m"),
        ),
        ((), ("/a/train.py", "64", "-m")),
    ],
)
def test_a_module_is_run_again_as_a_module(
    command: tuple[str, ...], program: tuple[str, ...]
) -> None:
    made = Provenance(command, script="/a/train.py", arguments=("64", "-m"))
    assert made.program == program
    assert command_line(made, "half") == f"ipu-run --with half {' '.join(program)}"
    assert Provenance().program == ("SCRIPT",)


def test_a_models_own_name_is_found_and_an_old_profile_is_not(tmp_path: Path) -> None:
    """Options.modelName names the folder; what a failed compile left out is not an older one's."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("Options()", "Options().modelName('mine')"))
    path, why = compile_again([str(script), "64"], tmp_path / "out", Provenance())
    assert path == tmp_path / "out" / "mine" / "profile.pop", why
    script.write_text("raise RuntimeError('no data')")
    path, why = compile_again([str(script), "64"], tmp_path / "out", Provenance())
    assert path is None and why == "RuntimeError: no data"


def test_why_nothing_was_compiled_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise RuntimeError('no data')")
    path, why = compile_again([str(script)], tmp_path / "out", Provenance())
    assert path is None
    assert why == "RuntimeError: no data"


@pytest.mark.parametrize("made", [None, [], {"arguments": "x", "num_ipus": "4", "placement": []}])
def test_what_a_header_says_wrongly_is_left_out(tmp_path: Path, made: object) -> None:
    with open_report(synthetic_profile(tmp_path / "profile.pop")) as report:
        assert Provenance.of(report) == Provenance()
        report.meta["made"] = json.loads(json.dumps(made))
        assert Provenance.of(report) == Provenance()
        assert Provenance.of(report).command_line == ""

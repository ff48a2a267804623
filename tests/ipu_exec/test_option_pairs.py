"""Every pair of `ipu-run`'s options is applied or refused; none is ignored."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest

import ipu_exec
from ipu_exec.commands import run
from ipu_exec.option_groups import engine_options
from ipu_exec.planning import commands, sweep
from ipu_exec.planning.first_call_plan import Asked
from ipu_exec.session.executor import PoplarExecutor
from ipuscope import run_arguments
from ipuscope.planner.levers import compile_again
from ipuscope.planner.mappings import Plan
from ipuscope.run_arguments import parse, run_parser
from tests.planner.test_plan_file import plan

OF_COMMANDS = {
    value
    for name, value in vars(engine_options).items()
    if name.endswith("_VARIABLE") and name != "COMMAND_VARIABLE"
}

# how each part of the command reads the options: what no part of a mode reads it refuses
COMPILES = {"target", "lenient", "levers"}
SCRIPT = COMPILES | {"profile_dir", "placement", "num_ipus", "compile_only", "no_source"}
PLAN = COMPILES | {
    *("allow", "global_batch", "micro_batches", "proportions", "fix", "objective", "budget"),
    *("verify", "write", "json", "csv", "ray", "workers"),
}
INSTANCES = SCRIPT | {
    *("replicas", "ipus_per_replica", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint"),
    *("rdzv_id", "rdzv_conf", "master_addr", "master_port", "local_addr"),
}
SWEEP = {"target", "lenient", "profile_dir", "workers", "compile_only"}
MODES = {"plan": PLAN, "tune": PLAN, "instances": INSTANCES, "sweep": SWEEP}
NOT_BOTH = ({"num_ipus", "placement"}, {"json", "csv"}, {"allow", "json"}, {"allow", "csv"})
IMPLIED = ({"levers", "compile_only"}, {"sweep", "compile_only"})  # what one does anyway
VALUES = {
    "placement": "stages.json",
    "profile_dir": "out",
    "target": "bow",
    "replicas": "4",
    "rdzv_endpoint": "host:1",
    "fix": "p=2",
    "objective": "latency",
    "budget": "5m",
    "allow": "half",
    "sweep": "micro-batch=1,2",
    "levers": "half",
}


@pytest.fixture(autouse=True)
def _one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer to make one than to parse a command line."""
    monkeypatch.setattr(run_arguments, "run_parser", cache(run_parser))


def options() -> dict[str, argparse.Action]:
    """By the name of its value, but for words that are no option and those of before."""
    return {
        one.dest: one
        for one in run_parser()._actions
        if one.option_strings and one.dest not in ("help", "version", "module")
    }


def words(name: str, action: argparse.Action) -> list[str]:
    option = max(action.option_strings, key=len)
    return [option] if action.nargs == 0 else [option, VALUES.get(name, "2")]


def accepted(*names: str) -> bool:
    every = options()
    try:
        parse([*(word for name in names for word in words(name, every[name])), "train.py"])
    except SystemExit:
        return False
    return True


class Effects:
    """What a command line asks of the rest of the product: of the environment, launches, plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.seen: list[object] = []
        self._known: dict[tuple[str, ...], object] = {}
        self.folder, self.kept = folder / "here", folder / "written"
        for one in (self.folder, self.kept):
            one.mkdir()
        monkeypatch.chdir(self.folder)
        stage = {"ipu": 0, "blocks": ["B0"]}
        file = {"format": "ipuscope placement", "version": 2, "stages": [stage]}
        (self.folder / "stages.json").write_text(json.dumps(file))
        (self.folder / "train.py").write_text("")
        self.given = {"stages.json", "train.py"}
        call = SimpleNamespace(training=True, options=ipu_exec.Options())
        monkeypatch.setattr(PoplarExecutor, "first_call_taker", None)

        def script(*_: object, **__: object) -> int:
            environ = {name: os.environ[name] for name in os.environ if name in OF_COMMANDS}
            self.seen.append(sorted(environ.items()))
            if PoplarExecutor.first_call_taker is not None:
                PoplarExecutor.first_call_taker.take(call)
            return 0

        def noted(answer: object) -> Callable[..., object]:
            def take(*args: object, **_: object) -> object:
                self.seen.append(str(args))
                return answer

            return take

        def planned(call: object, asked: Asked, on_news: object) -> Plan:
            self.seen.append(replace(asked, command=""))
            return plan()

        def launched(*asked: object) -> int:
            self.seen.append(asked)
            return script()

        monkeypatch.setattr(run, "run_program", script)
        monkeypatch.setattr(run, "stand_in", lambda: None)
        monkeypatch.setattr(run, "placement_for", noted("chosen.json"))
        monkeypatch.setattr(run.launching, "launch", launched)
        monkeypatch.setattr(compile_again, "compile_again", noted((None, "no")))
        monkeypatch.setattr(sweep, "ThreadPoolExecutor", self._pool)
        monkeypatch.setattr(commands, "plan_call", planned)
        monkeypatch.setattr(commands, "show", lambda *_: self.seen.append("a table"))
        monkeypatch.setattr(commands, "with_levers", lambda call, levers: noted(call)(levers))

    def _pool(self, workers: int) -> ThreadPoolExecutor:
        self.seen.append(workers)
        return ThreadPoolExecutor(workers)

    def of(self, *argv: str) -> object:
        """The effects of a command line, as a comparable text; None: it is refused."""
        if argv not in self._known:
            self._known[argv] = self._of(argv)
        return self._known[argv]

    def _of(self, argv: tuple[str, ...]) -> object:
        self.seen.clear()
        PoplarExecutor.first_call_taker, before = None, dict(os.environ)
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                status = run.main([*argv, "train.py"])
        except SystemExit as end:
            status = end.code
        finally:
            os.environ.clear()
            os.environ.update(before)
        written = [file.name for file in self.folder.iterdir() if file.name not in self.given]
        for name in written:
            (self.folder / name).rename(self.kept / name)
        return None if status == 2 else (str(self.seen), out.getvalue(), sorted(written))


@pytest.mark.parametrize("mode", ["", *MODES])
def test_each_option_of_a_pair_that_is_not_refused_has_an_effect(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    effects, every = Effects(monkeypatch, tmp_path), options()
    head = words(mode, every[mode]) if mode else []
    for pair in combinations([one for one in every if one != mode], 2):
        first, second = (words(name, every[name]) for name in pair)
        both = effects.of(*head, *first, *second)
        if both is None or set(pair) in IMPLIED or (mode == "sweep" and "compile_only" in pair):
            continue
        assert both not in (effects.of(*head, *first), effects.of(*head, *second)), pair


@pytest.mark.parametrize("mode", ["", *MODES])
def test_each_pair_of_options_is_applied_or_refused(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reads = MODES.get(mode, SCRIPT)
    head = [mode] if mode else []
    for pair in combinations([one for one in options() if one != mode], 2):
        applied = set(pair) <= reads and set(pair) not in NOT_BOTH
        assert accepted(*head, *pair) == applied or (not mode and set(pair) & set(MODES)), pair
    capsys.readouterr()


def test_options_of_a_script_are_no_abbreviations_of_ours() -> None:
    own = ["--r", "2", "--re", "--c=1"]  # --ray and --replicas begin so
    assert parse(["--compile-only", "train.py", *own]).args == own
    assert parse(["-m", "train", *own]).module == ["train", *own]

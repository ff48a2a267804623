"""What a command says while it works."""

from __future__ import annotations

import io
import logging
import sys
import time
import warnings
from collections.abc import Callable

import pytest
import torch

import ipu_exec as poptorch
from ipu_exec.session import executor
from ipuscope import waiting as progress
from ipuscope.waiting import EVERY_VARIABLE, PROGRESS_LINE, waiting, waiting_for_output


def test_a_log_gets_a_line_every_so_many_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVERY_VARIABLE, "0.01")
    err = ""
    with waiting("Graph compilation", 0) as say:
        say("lower", 0.25)
        while "lower" not in err or not err.endswith("\n"):  # a line may come before `say`
            err += capsys.readouterr().err
    line = PROGRESS_LINE.fullmatch(err.splitlines()[-1])
    assert line is not None and line.group(1) == "Graph compilation: 25% lower"


def test_warnings_stand_whole_above_the_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    log, handler = logging.getLogger("a users"), logging.StreamHandler()
    log.addHandler(handler)
    with waiting("Graph compilation") as say, warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", _printed)
        say("lower", 0.25)
        warnings.warn("a warning of the model", stacklevel=1)
        log.warning("a log that had standard error before")
    log.removeHandler(handler)
    assert handler.stream is sys.stderr
    lines = [line.rsplit("\x1b[2K", 1)[-1] for line in capsys.readouterr().err.splitlines()]
    assert {"a warning of the model", "a log that had standard error before"} <= {*lines}


def _printed(message: Warning | str, *_: object) -> None:
    print(message, file=sys.stderr)


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("drawing"):
        pass
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("prompts", [False, True])  # `input` flushes and leaves the rest to C
def test_a_bar_before_a_scripts_first_words_ends_with_them(
    monkeypatch: pytest.MonkeyPatch, prompts: bool
) -> None:
    out, err = io.StringIO(), Terminal()
    for name, stream in (("stdout", out), ("stderr", err)):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with waiting_for_output("script.py runs", lambda: False):
        while "script.py runs" not in err.getvalue():
            time.sleep(0.01)
        if prompts:
            sys.stdout.flush()
        else:
            print("loading the data")
        drawn = err.getvalue()
        time.sleep(0.3)
        assert err.getvalue() == drawn
    assert out.getvalue() == ("" if prompts else "loading the data\n")
    assert (sys.stdout, sys.stderr) == (out, err)


class Calls(torch.nn.Module):
    """Calls a function of this process whenever its numbers are computed."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.function()
        return x + 1


def test_calls_that_last_say_so_until_one_is_quick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVERY_VARIABLE, "0.1")
    said, most = [], 0.0

    def wait() -> None:
        end, err = time.monotonic() + most, ""
        while "numbers of" not in (err := err + capsys.readouterr().err) and time.monotonic() < end:
            time.sleep(0.01)
        said.append("numbers of" in err)

    model = poptorch.inferenceModel(Calls(wait))
    model.compile(torch.ones(2))
    said.clear()
    for lasts, quick_below in ((60, 0), (60, 0), (0, 60), (2, 0)):  # seconds at most
        most = lasts
        monkeypatch.setattr(executor, "PATIENCE", quick_below)
        model(torch.ones(2))
    assert said == [True, True, False, False]

"""Python commands in processes forked from one that has imported PyTorch.

Most of the five seconds of a small compile in a process of its own are imports. `run` takes what
`subprocess.run` takes, for commands that begin with `sys.executable`; its processes have their own
arguments, environment, directory, path and output. Tests of the process itself (signals, what is
imported when, what a script sees of it) start a real one.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PIPE = subprocess.PIPE
CalledProcessError = subprocess.CalledProcessError
_ROOT = Path(__file__).parent.parent
# What a compile imports, some of it only when it begins.
_IMPORTED = (
    *("torch", "torch._dynamo", "torch.export", "torch.fx.experimental.symbolic_shapes"),
    *("pandas", "sklearn.datasets", "rich.progress", "ipu_exec", "ipuscope.planner.insights"),
    *("ipu_exec.session.executor", "planner", "ipuscope.planner.rebalance", "ipuscope.reports.cli"),
)


def run(
    command: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    check: bool = False,
    **_: Any,  # output is always captured, as text
) -> subprocess.CompletedProcess[str]:
    """The outcome of a Python command, as `subprocess.run` has it."""
    assert command[0] == sys.executable, command
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "words": list(command[1:]),
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "timeout": timeout,
            "folder": folder,
        }
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = json.loads(server.stdout.readline())
        out, err = ((Path(folder) / name).read_text("utf-8") for name in ("out", "err"))
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, out, err)
    if check and code:
        raise CalledProcessError(code, command, out, err)
    return subprocess.CompletedProcess(list(command), code, out, err)


@cache
def _server() -> subprocess.Popen[str]:
    """The process that others are forked from; it ends with this one."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked"],
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        cwd=_ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "OMP_NUM_THREADS": "1",
            "PYTHONIOENCODING": "utf-8",
        },
    )
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    for name in _IMPORTED:
        __import__(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _become(asked)
        print(json.dumps(_waited(child, asked["timeout"])), flush=True)


def _waited(child: int, timeout: float) -> int | None:
    """The exit code; None where it took too long, and was ended."""
    until = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)


def _become(asked: dict[str, Any]) -> None:
    """Be the process of the command, to its end."""
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for fd, name in ((0, os.devnull), (1, "out"), (2, "err")):
        mode = os.O_RDONLY if not fd else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(os.path.join(asked["folder"], name), mode), fd)
    code: object = 0
    try:
        _execute(asked["words"])
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(int(code or 0) & 255)  # type: ignore[call-overload]


def _execute(words: list[str]) -> None:
    """Do as Python does with the words of its command line."""
    while words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in sys.path if path not in ("", str(_ROOT))]
    how, rest = words[0], words[1:]
    sys.path[:] = [os.getcwd() if how == "-m" else "", *own, *others]
    if how == "-m":
        sys.argv = [rest[0], *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = words
        sys.path[0] = str(Path(how).absolute().parent)
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    _serve()

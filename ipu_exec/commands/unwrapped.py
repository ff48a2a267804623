"""Scripts that wrap no model: they are told at their first backward, not when they have trained."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import torch

from ipu_exec.base.user_tracebacks import users_frame

NOTHING_WRAPPED = """wrapped no model, so nothing ran on IPUs and there is no profile. Write
    import poptorch
    model = poptorch.trainingModel(module, poptorch.Options(), optimizer)
    output, loss = model(inputs, labels)
where module returns its loss last, in place of zero_grad, backward and step. Then ipu-run
--num-ipus 4 puts its layers on 4 IPUs"""
WARNING = "ipu-run: warning: "


def anything_wrapped() -> bool:
    """Whether the script wrapped a model yet."""
    executor = sys.modules.get("ipu_exec.session.executor")
    return executor is not None and executor.PoplarExecutor.any_wrapped


def at_the_first_backward(program: str) -> None:
    """Once, if PyTorch's backward is called before any model is wrapped, say so with the line."""
    backward = torch.autograd.backward

    def told(*args: Any, **kwargs: Any) -> None:
        torch.autograd.backward = backward
        if not anything_wrapped():
            print(
                f"{WARNING}{_where()} runs on the host: so far {program} {NOTHING_WRAPPED}",
                file=sys.stderr,
            )
        backward(*args, **kwargs)

    torch.autograd.backward = told


def _where() -> str:
    frame = users_frame()
    if frame is None:
        return "a backward"
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{path}:{line}: {linecache.getline(path, line).strip() or 'a backward'}"

"""Scripts that wrap no model: they are told as they begin to train, not when they have."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

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


def at_the_first_step_of_training(program: str) -> None:
    """Once, if PyTorch's backward or an optimiser's step comes before any wrapped model, say so."""
    backward = torch.autograd.backward
    hooks: list[RemovableHandle] = []

    def tell(*_: object, **__: object) -> None:
        torch.autograd.backward = backward
        if hooks and not anything_wrapped():
            words = f"{_where()} runs on the host: so far {program} {NOTHING_WRAPPED}"
            print(f"{WARNING}{words}", file=sys.stderr)
        while hooks:
            hooks.pop().remove()

    def told(*args: Any, **kwargs: Any) -> None:
        tell()
        backward(*args, **kwargs)

    hooks.append(register_optimizer_step_pre_hook(tell))
    torch.autograd.backward = told


def _where() -> str:
    frame = users_frame()
    if frame is None:
        return "training"
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{path}:{line}: {linecache.getline(path, line).strip() or 'a backward'}"

"""A call like the one before only runs the model: what differs from that is seen all the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import ipu_exec as poptorch
from ipu_exec.base.context import NOTHING
from ipu_exec.session import repeated_call
from ipu_exec.session.repeated_call import RepeatedCall


class Scaled(nn.Module):
    """Two layers; on demand it writes to a weight or a buffer, or returns another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1))
        self.does = ""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        if self.does == "buffer":
            self.calls.add_(1)
        if self.does == "weight":
            self.first.weight.data.mul_(2)
        if self.does == "fail":
            raise ValueError("asked for")
        y = self.drop(self.second(self.first(x))) * scale + self.calls
        return {"y": y, "twice": (2 * y,)} if self.does == "nest" else y


def _set(wrapped: Any, name: str, value: Any) -> None:
    setattr(wrapped.model, name, value)


def _filled(wrapped: Any, value: float) -> None:
    with torch.no_grad():
        wrapped.model.first.weight.fill_(value)


ACTIONS: dict[str, Any] = {
    **{f"does {one}": lambda w, one=one: _set(w, "does", one) for one in ("buffer", "weight")},
    **{f"does {one}": lambda w, one=one: _set(w, "does", one) for one in ("fail", "nest", "")},
    "write": lambda w: _filled(w, 0.5),
    "replace": lambda w: _set(w, "second", nn.Linear(4, 4)),
    "parameter": lambda w: _set(w.model.first, "weight", nn.Parameter(torch.ones(4, 4))),
    "to device": lambda w: w.copyWeightsToDevice(),
    "to host": lambda w: w.copyWeightsToHost(),
    "load": lambda w: w.load_state_dict({k: v + 1 for k, v in w.state_dict().items()}),
    "detach": lambda w: w.detachFromDevice(),
    "modes": lambda w: w.model.train(not w.model.training),
    "freeze": lambda w: w.model.first.weight.requires_grad_(False),
    "share": lambda w: w.model.first.weight.share_memory_(),
    "rng": lambda w: setattr(w, "rng_state", torch.get_rng_state().tolist()),
    "destroy": lambda w: w.destroy(),
}
INPUTS = [torch.arange(32.0).reshape(8, 4), torch.ones(4, 8).T, torch.ones(8, 4).double()]
INPUTS += [torch.ones(4, 4), torch.ones(8, 4, requires_grad=True)]


def _bits(leaf: Any) -> Any:
    return (
        (leaf.dtype, leaf.shape, leaf.clone().numpy().tobytes()) if torch.is_tensor(leaf) else leaf
    )


def _story(seed: int, count: int) -> list[Any]:
    """What calls return, raise and leave on the host, with actions between them."""
    torch.manual_seed(seed)
    chance, told = random.Random(seed), list[Any]()
    options = poptorch.Options().deviceIterations(count).showCompilationProgressBar(False)
    wrapped = poptorch.inferenceModel(Scaled(), options)
    for _ in range(40):
        usual = chance.random() < 0.85
        args = [INPUTS[0]] if usual else [chance.choice(INPUTS), *chance.choice([[], [2.0]])]
        try:
            if chance.random() < 0.2:
                ACTIONS[chance.choice(list(ACTIONS))](wrapped)
            told.append(tree_map(_bits, wrapped(*args)))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
        told.append(tree_map(_bits, dict(wrapped.model.state_dict())))
        told += torch.is_grad_enabled(), poptorch.isRunningOnIpu(), wrapped.isAttachedToDevice()
    return told


@pytest.mark.parametrize("count", [1, 4])
def test_calls_give_the_same_with_and_without_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[bool]()
    repeat = RepeatedCall._repeat

    def counted(self: RepeatedCall, args: tuple[Any, ...]) -> Any:
        result = repeat(self, args)
        taken.append(result is not NotImplemented)
        return result

    monkeypatch.setattr(repeated_call, "not_compiled_by_torch", lambda: NOTHING)  # of other tests
    monkeypatch.setattr(RepeatedCall, "_repeat", counted)
    stories = [_story(seed, count) for seed in range(12)]
    assert sum(taken) > 40, "some of the calls are quick"
    monkeypatch.setattr(RepeatedCall, "_repeat", lambda self, args: NotImplemented)
    for seed, story in enumerate(stories):
        assert story == _story(seed, count)


class Loss(Scaled):
    """Returns a loss where it trains."""

    def forward(self, x: torch.Tensor) -> Any:
        y = self.second(self.first(x))
        return y.square().mean() if self.training else y


def _trained(quick: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    torch.manual_seed(0)
    options = poptorch.Options().showCompilationProgressBar(False)
    model = Loss()
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training(INPUTS[0])
    inference: Any = poptorch.inferenceModel(model.eval(), options)
    if not quick:
        monkeypatch.setattr(RepeatedCall, "_repeat", lambda self, args: NotImplemented)
    told = []
    for turn in range(8):
        told += [inference(INPUTS[0]) for _ in range(3)]
        assert inference._remembered is not None
        if turn % 2:
            training(INPUTS[0])
    return [_bits(one) for one in told]


def test_inference_between_updates_has_the_trained_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _trained(True, monkeypatch)
    assert len({bits for *_, bits in told}) == 4
    assert told == _trained(False, monkeypatch)

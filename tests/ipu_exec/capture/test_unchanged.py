"""A model that was run once more than its user asked is left unchanged."""

import copy
import functools
from typing import Any

import pytest
import torch

import ipu_exec
from ipu_exec.capture.recording.unchanged import unchanged
from tests.ipu_exec.capture import elsewhere
from tests.ipu_exec.capture.elsewhere import positions
from tests.models import model_of


class Remembers(torch.nn.Module):
    """Keeps what it saw in every way that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.seen: list[torch.Tensor] = []
        self.by_name: dict[str, list[int]] = {"calls": []}
        self.total = torch.zeros(())
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        self.seen.append(y.detach())
        self.by_name["calls"].append(self.count)
        self.total += 1
        self.count += 1
        self.last = y
        return y


def state(model: Remembers) -> tuple[Any, ...]:
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    values = (len(model.seen), copy.deepcopy(model.by_name), float(model.total), model.count)
    return buffers, values, hasattr(model, "last")


def test_everything_is_put_back() -> None:
    model = Remembers()
    model(torch.randn(4, 3))
    del model.last
    buffers, before, last = state(model)
    seen = model.seen
    with unchanged(model):
        model(torch.randn(4, 3))
        assert model.count == 2
    buffers_after, after, last_after = state(model)
    assert before == after and last == last_after and model.seen is seen
    assert all(torch.equal(buffers[name], buffers_after[name]) for name in buffers)


def test_weights_stay_the_same_tensors() -> None:
    model = Remembers()
    before = dict(model.named_parameters())
    with unchanged(model):
        model(torch.randn(4, 3))
    assert all(before[name] is parameter for name, parameter in model.named_parameters())


class Branches(torch.nn.Module):
    """Cannot be copied, and branches on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.calls = 0

    def __deepcopy__(self, memo: object) -> "Branches":
        raise RuntimeError("cannot be copied")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_model_that_cannot_be_copied_may_branch() -> None:
    module = Branches()
    options = ipu_exec.Options().showCompilationProgressBar(False)
    model = ipu_exec.inferenceModel(module, options)
    x = torch.ones(4, 3)
    assert torch.equal(model(x), module.layer(x))


@pytest.mark.parametrize("call", range(3))
def test_a_tensor_may_be_copied_in_forward(call: int) -> None:
    def add_copies(self, x: torch.Tensor) -> torch.Tensor:
        return x + copy.deepcopy(torch.tensor(1.0)) + copy.deepcopy(x)

    options = ipu_exec.Options().showCompilationProgressBar(False)
    x = torch.randn(4, 3)
    assert torch.equal(ipu_exec.inferenceModel(model_of(add_copies), options)(x), x + 1 + x)


@functools.lru_cache
def _positions(n: int) -> torch.Tensor:
    return torch.arange(n) / n


def _unless_compiling(function: Any) -> Any:
    """What transformers' decorator is: the cache is seen by this function only."""
    cached = functools.lru_cache(function)

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return cached(*args)

    return wrapper


BY_SIZE: dict[int, torch.Tensor] = {}


class Table:
    """An object that is no module, and keeps a tensor."""

    made: torch.Tensor | None = None

    def of(self, n: int) -> torch.Tensor:
        if self.made is None:
            self.made = torch.arange(n) / n
        return self.made


class Caches(torch.nn.Module):
    """Adds what the first forward worked out and kept, in one of the ways that models keep it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer, self.table = way, torch.nn.Linear(4, 4), Table()
        self.by_size: dict[str, dict[int, torch.Tensor]] = {"positions": {}}
        self.several: list[torch.Tensor] = []
        self.pair: tuple[int, torch.Tensor] | None = None

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def method(self, n: int) -> torch.Tensor:
        return torch.arange(n) / n

    @_unless_compiling
    def decorated(self) -> torch.Tensor:
        return torch.arange(4) / 4

    @functools.cached_property
    def property(self) -> torch.Tensor:
        return torch.arange(4) / 4

    def dict(self) -> torch.Tensor:
        kept = self.by_size["positions"]
        if 4 not in kept:
            kept[4] = torch.arange(4) / 4
        return kept[4]

    def list(self) -> torch.Tensor:
        if not self.several:
            self.several.append(torch.arange(4) / 4)
        return self.several[0]

    def tuple(self) -> torch.Tensor:
        if self.pair is None:
            self.pair = 4, torch.arange(4) / 4
        return self.pair[1]

    def of_the_file(self) -> torch.Tensor:
        if 4 not in BY_SIZE:
            BY_SIZE[4] = torch.arange(4) / 4
        return BY_SIZE[4]

    def own(self) -> torch.Tensor:
        if not hasattr(self, "made"):
            self.made = functools.lru_cache(lambda n: torch.arange(n) / n)
        return self.made(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = {
            "function": lambda: _positions(4),
            "method": lambda: self.method(4),
            "property": lambda: self.property,
            "object": lambda: self.table.of(4),
            "imported": lambda: positions(4),
            "elsewhere": lambda: elsewhere.positions(4),
        }
        added = ways[self.way]() if self.way in ways else getattr(self, self.way)()
        return self.layer(x + added)


@pytest.mark.parametrize(
    "way",
    [
        "function",
        "method",
        "property",
        "object",
        "dict",
        "list",
        "tuple",
        "of_the_file",
        "own",
        "decorated",
        "imported",
        "elsewhere",
    ],
)
def test_a_cache_that_the_capture_filled_is_filled_again_with_numbers(way: str) -> None:
    """A relative position index of BEiT is made once a size, by a `functools` cache."""
    BY_SIZE.clear()
    elsewhere.BY_SIZE.clear()
    model = Caches(way)
    x = torch.randn(3, 4)
    engine = ipu_exec.inferenceModel(model)
    returned = engine(x)
    assert torch.equal(returned, model.layer(x + torch.arange(4) / 4))
    assert torch.equal(engine(x), returned)


def test_places_for_tensors_are_empty_again_after_the_capture() -> None:
    """None in a buffer, a list or a dict comes back, which x-transformers' ALiBi asks for."""

    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", None, persistent=False)
            self.slots: list[torch.Tensor | None] = [None, None]
            self.named: dict[str, torch.Tensor | None] = {"scale": None}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.bias is None:
                self.register_buffer("bias", torch.ones(3), persistent=False)
            if self.slots[1] is None:
                self.slots[1] = torch.full((3,), 2.0)
            if self.named["scale"] is None:
                self.named["scale"] = torch.full((3,), 5.0)
            return (x + self.bias + self.slots[1]) * self.named["scale"]

    output = ipu_exec.inferenceModel(Keeps())(torch.ones(2, 3))
    assert torch.equal(output, torch.full((2, 3), 20.0))

"""Trains the same models as 1 x 8, 2 x 4 and 8 x 1 instances x replicas.

Prints, as JSON, a digest of weights, losses and outputs of each training, by case and split.
Instances are forked from one process, which has imported everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.base.replica_groups import resolve
from ipu_exec.enums import CommGroupType, VariableRetrievalMode
from ipu_exec.numerics import loop
from ipu_exec.numerics.collectives import Instances, connect
from ipu_exec.numerics.precision import LossScaler, Precision
from ipu_exec.numerics.randomness import ReplicaRandomness
from ipu_exec.session.call_plan import plan_call
from tests.models import model_of

REPLICAS, ACCUMULATION, UPDATES, SAMPLES = 8, 2, 2, 2
SPLITS = (1, 2, 8)  # instances: with all replicas, several, and one each


def dense() -> nn.Module:
    def forward(self, x, y):
        out = self.b(self.drop(torch.relu(self.norm(self.a(x)))))
        return out, nn.functional.cross_entropy(out, y)

    layers = {"a": nn.Linear(12, 17), "norm": nn.BatchNorm1d(17), "b": nn.Linear(17, 5)}
    return model_of(forward, drop=nn.Dropout(0.25), **layers)


def branches() -> nn.Module:
    """Replicas use different weights, depending on their data."""

    def forward(self, x, y):
        out = self.paths[int(y[0]) % 3](x)
        return out, nn.functional.cross_entropy(out, y)

    paths = nn.ModuleList(nn.Linear(12, 5) for _ in range(3))
    return model_of(forward, paths=paths, never=nn.Linear(3, 3))


def recurrent() -> nn.Module:
    def forward(self, x, y):
        words = (x.abs() * 7).long().clamp(max=29)
        out = self.out(self.rnn(self.embed(words))[0][:, -1])
        return out, nn.functional.cross_entropy(out, y)

    embed, rnn = nn.Embedding(30, 6), nn.LSTM(6, 7, batch_first=True)
    return model_of(forward, embed=embed, rnn=rnn, out=nn.Linear(7, 5))


def residual(wide: int, narrow: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        nn.Conv2d(narrow, wide, 3, stride, 1, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(),
        nn.Conv2d(wide, wide, 3, 1, 1, bias=False),
        nn.BatchNorm2d(wide),
    )
    same = stride == 1 and wide == narrow
    skip = nn.Identity() if same else nn.Conv2d(narrow, wide, 1, stride, bias=False)
    return model_of(lambda self, x: torch.relu(self.body(x) + self.skip(x)), body=body, skip=skip)


def resnet18(width: int = 8) -> nn.Module:
    """He et al., 2016, with the stem for small pictures. ``width``: of its first layers."""

    def forward(self, x, y):
        images = x[:, :, None, None].repeat(1, 1, 8, 2).reshape(-1, 3, 8, 8)
        out = self.fc(self.layers(images).mean((2, 3)))
        return out, nn.functional.cross_entropy(out, y)

    stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width)]
    before = width
    for wide in (width, 2 * width, 4 * width, 8 * width):
        layers += [residual(wide, before, 1 if wide == width else 2), residual(wide, wide, 1)]
        before = wide
    return model_of(forward, layers=nn.Sequential(*layers), fc=nn.Linear(before, 5))


def norms() -> nn.Module:
    """Batch norms of two kinds of input, one without parameters, and dropout."""

    def forward(self, x, y):
        square = torch.relu(self.drop(self.first(self.a(x)))).view(-1, 4, 2, 2)
        wide = nn.functional.interpolate(square, scale_factor=2.0)
        out = self.b(self.second(self.conv(wide)).flatten(1))
        return out, nn.functional.cross_entropy(out, y)

    conv, second = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)
    first, drop = nn.BatchNorm1d(16), nn.Dropout(0.25)
    linears = {"a": nn.Linear(12, 16), "b": nn.Linear(24, 5)}
    return model_of(forward, first=first, drop=drop, conv=conv, second=second, **linears)


def grouped() -> nn.Module:
    """Replicas 0, 2, 4, 6 have one value of a weight, and 1, 3, 5, 7 another (`GROUPS`)."""

    def forward(self, x, y):
        out = x @ self.w + self.b
        return out, nn.functional.cross_entropy(out, y)

    w, b = nn.Parameter(torch.randn(2, 12, 5)), nn.Parameter(torch.zeros(5))
    return model_of(forward, w=w, b=b)


def half() -> nn.Module:
    """float16, with automatic loss scaling and stochastic rounding."""

    def forward(self, x, y):
        out = self.b(torch.relu(self.a(x.half())))
        return out.float(), nn.functional.cross_entropy(out.float(), y)

    return model_of(forward, a=nn.Linear(12, 17).half(), b=nn.Linear(17, 5).half())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "grouped": grouped,
    "half": half,
    "dense": dense,
    "branches": branches,
    "recurrent": recurrent,
    "narrow ResNet-18": resnet18,
    "norms of 2": norms,
    "norms of 4": norms,
    "norms of 8": norms,
}
GROUPS = {
    "grouped": {"w": (CommGroupType.Orthogonal, 4, VariableRetrievalMode.OnePerGroup)},
}
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: poptorch.optim.AdamW(p, lr=0.01, weight_decay=0.01),
    "LAMB": lambda p: poptorch.optim.LAMB(p, lr=0.01, weight_decay=0.01),
    "LARS": lambda p: Lars(p, lr=0.05),
}
BY_ACCUMULATOR: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "half AdamW": lambda p: poptorch.optim.AdamW(p, lr=0.01, accum_type=torch.float16),
}
# each optimiser, and each small model, with each reduction
CASES = [("dense", optimiser, ("Mean", "Sum")[at % 2]) for at, optimiser in enumerate(OPTIMISERS)]
CASES += [("branches", "SGD", "Sum"), ("branches", "LAMB", "Mean")]
CASES += [("recurrent", "AdamW", "Mean"), ("recurrent", "LARS", "Sum")]
CASES += [("grouped", "SGD", "Mean"), ("grouped", "AdamW", "Sum"), ("half", "half AdamW", "Mean")]
CASES.append(("narrow ResNet-18", "LARS", "Sum"))
# replicas of a group: within an instance of 1 x 8, over several of 8 x 1
CASES += [(f"norms of {group}", "SGD", "Mean") for group in (2, 4, 8)]


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rates (You et al., 2017), as the public ResNet configurations use it."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                trust = weight.norm() / (weight.grad.norm() + 1e-4 * weight.norm() + 1e-9)
                velocity = self.state[weight].setdefault("v", torch.zeros_like(weight))
                velocity.mul_(0.9).add_(weight.grad * trust * group["lr"])
                weight.sub_(velocity)


def data(replicas: int, first: int, total: int, seed: int):
    """The micro-batches of a range of replicas."""
    generator = torch.Generator().manual_seed(seed)
    steps = UPDATES * ACCUMULATION
    x = torch.randn(steps, total, SAMPLES, 12, generator=generator)
    y = torch.randint(0, 5, (steps, total, SAMPLES), generator=generator)
    replicas_here = slice(first, first + replicas)
    return x[:, replicas_here].reshape(-1, 12), y[:, replicas_here].reshape(-1)


def train(case: tuple[str, str, str], instances: int, together: Instances | None):
    """Train in this instance; return its weights, and its outputs as [step, replica, ...]."""
    name, optimiser, reduction = case
    rank = together.rank if together else 0
    torch.manual_seed(7)
    model = MODELS[name]()
    options = poptorch.Options().deviceIterations(UPDATES).replicationFactor(REPLICAS // instances)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[reduction])
    if name.startswith("norms of"):
        options.Training.distributedBatchNormReplicaGroupSize(int(name.split()[-1]))
    options.outputMode(poptorch.OutputMode.All)
    options.Distributed.configureProcessId(rank, instances)
    plan = plan_call(options, training=True)
    groups = resolve(model, GROUPS.get(name, {}), plan.total_replicas)
    plan = replace(plan, groupings=groups)
    precision = Precision()
    if name == "half":
        precision = Precision(LossScaler(64.0, share=0.01), torch.Generator().manual_seed(5))
    batch = data(plan.replicas, plan.first_replica, REPLICAS, seed=11)
    outputs, losses = loop.train(
        model,
        batch,
        {},
        plan,
        (OPTIMISERS | BY_ACCUMULATOR)[optimiser](model.parameters()),
        loop.ReplicaBuffers(ReplicaRandomness()),
        precision=precision,
        together=together,
    )
    steps = UPDATES * ACCUMULATION
    weights = [p.detach() for p in model.parameters()]
    return weights, outputs.view(steps, -1, SAMPLES, 5), losses.view(steps, -1)


def digest(*tensors: torch.Tensor) -> str:
    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(tensor.contiguous().numpy().tobytes())
    return sha256.hexdigest()


def instance(rank: int, instances: int) -> dict[str, list[str]]:
    """For each case, digests of the weights, outputs and losses of all replicas."""
    together = connect(rank, instances) if instances > 1 else None
    results = {}
    for case in CASES:
        weights, outputs, losses = train(case, instances, together)
        if together is not None:
            outputs = torch.cat(together.gather_tensors(outputs), 1)
            losses = torch.cat(together.gather_tensors(losses), 1)
        results[" ".join(case)] = [digest(*weights), digest(outputs), digest(losses)]
    return results


def split(instances: int, folder: Path) -> list[dict[str, list[str]]]:
    """The results of each of a number of forked instances."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    children = []
    for rank in range(instances):
        child = os.fork()
        if child == 0:
            (folder / f"{instances}-{rank}").write_text(json.dumps(instance(rank, instances)))
            os._exit(0)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0
    return [json.loads((folder / f"{instances}-{rank}").read_text()) for rank in range(instances)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        results = {count: split(count, Path(place)) for count in SPLITS}
    json.dump(results, sys.stdout)

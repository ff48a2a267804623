"""Batch norm over replicas equals batch norm of their micro-batches together."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.errors import UsageError
from ipuscope.profiler.enums import Purpose


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.fc = nn.Linear(48, 4)

    def forward(self, x, y):
        out = self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))
        return out, nn.functional.cross_entropy(out, y)


def options(group: int, replicas: int) -> poptorch.Options:
    opts = poptorch.Options().replicationFactor(replicas).showCompilationProgressBar(False)
    opts.outputMode(poptorch.OutputMode.All)
    opts.Training.distributedBatchNormReplicaGroupSize(group)
    return opts


def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(samples, 2, 6, 6) + 5, torch.randint(0, 4, (samples,))


def trained(model: nn.Module, setting: poptorch.Options) -> poptorch.PoplarExecutor:
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, setting, optimiser)


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_group_of_all_replicas_is_one_device_with_all_samples(replicas: int) -> None:
    """Outputs, weights and running statistics, up to the order of sums."""
    torch.manual_seed(0)
    alone = Normed()
    shared = copy.deepcopy(alone)
    x, y = batch(8)
    models = []
    for model, setting in ((alone, options(1, 1)), (shared, options(replicas, replicas))):
        compiled = trained(model, setting)
        outputs = [compiled(x, y)[0] for _ in range(3)]
        compiled.copyWeightsToHost()
        models.append((model.state_dict(), outputs))
    (expected, first), (actual, second) = models
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-4, atol=1e-5)


def test_groups_are_neighbours_and_others_do_not_matter() -> None:
    """In groups of two, replicas 0 and 1 compute the same whatever 2 and 3 are given."""
    x, y = batch(8)
    seen = []
    for rest in (x[4:], 3 * x[4:]):
        torch.manual_seed(0)
        seen.append(trained(Normed(), options(2, 4))(torch.cat([x[:4], rest]), y)[0])
    assert torch.equal(seen[0][:4], seen[1][:4])
    assert not torch.equal(seen[0][4:], seen[1][4:])


@pytest.mark.parametrize("affine", [True, False])
def test_each_norm_reduces_its_sums_forward_and_backward(affine: bool) -> None:
    model = Normed()
    model.norm = nn.BatchNorm2d(3, affine=affine)
    compiled = trained(model, options(2, 4))
    compiled.compile(*batch(8))
    steps = [
        step
        for body in compiled.executable.tree.bodies
        for step in body.steps
        if step.purpose is Purpose.ALL_REDUCE and "statistics" in step.name
    ]
    # two sums of three channels in float32; of two members each sends as much as it has
    assert [int(step.bytes_out.sum()) for step in steps] == [24, 24]
    assert all(step.cycles > 0 for step in steps)


class Branching(Normed):
    def forward(self, x, y):
        return super().forward(x if x.sum() > 0 else -x, y)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UsageError, match="groups of 3 replicas do not divide the 4"):
        trained(Normed(), options(3, 4))
    anchored = options(2, 2).anchorTensor("bias", "Gradient___fc.bias")
    with pytest.raises(UsageError, match="anchored tensors"):
        trained(Normed(), anchored)(*batch(4))
    with pytest.raises(UsageError, match="branches on data"):
        trained(Branching(), options(2, 2))(*batch(4))


class Failing(Normed):
    """Fails in its second replica only, once it is compiled."""

    calls = -1000

    def forward(self, x, y):
        Failing.calls += 1
        if Failing.calls == 2:
            raise RuntimeError("the second replica fails")
        return super().forward(x, y)


def test_an_error_of_one_replica_ends_all() -> None:
    failing = trained(Failing(), options(2, 2))
    failing.compile(*batch(4))
    Failing.calls = 0
    with pytest.raises(RuntimeError, match="the second replica fails"):
        failing(*batch(4))

"""The same numbers, bit for bit, however replicas are shared out over instances."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.numerics.collectives import InstanceLost, connect
from tests.ipu_exec.instances.equality import CASES, REPLICAS, SPLITS
from tests.models import WithLoss
from tests.paths import ROOT


@pytest.fixture(scope="module")
def results() -> dict[int, list[dict[str, list[str]]]]:
    command = [sys.executable, "-m", "tests.ipu_exec.instances.equality"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("IPUSCOPE_REPLICAS", None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return {int(count): said for count, said in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", [" ".join(case) for case in CASES])
def test_weights_outputs_and_losses_do_not_depend_on_the_instances(results, case: str) -> None:
    assert set(results) == set(SPLITS)
    alone = results[1][0][case]
    for instances, said in results.items():
        assert len(said) == instances
        for theirs in said:
            assert theirs[case] == alone, f"{instances} instances x {REPLICAS // instances}"


@pytest.mark.slow
def test_cases_differ_from_each_other(results) -> None:
    weights = {digests[0] for digests in results[1][0].values()}
    assert len(weights) == len(CASES)


def test_replicas_with_an_equal_global_batch_learn_alike() -> None:
    curves = [curve(1), curve(16)]
    torch.testing.assert_close(curves[0], curves[1], rtol=2e-5, atol=1e-6)
    assert curves[0][-1] < curves[0][0]


def curve(replicas: int) -> torch.Tensor:
    """The mean loss of each of 12 updates over a global batch of 32."""
    torch.manual_seed(1)
    model = WithLoss(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    options.showCompilationProgressBar(False)
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    trained = poptorch.trainingModel(model, options, optimiser)
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(2))
    target = x.sum(1, keepdim=True)
    return torch.stack([trained(x, target)[1].mean() for _ in range(12)])


def test_processes_by_hand_say_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    model = WithLoss(nn.Linear(6, 1))
    options = poptorch.Options()
    options.Distributed.configureProcessId(1, 2)
    trained = poptorch.trainingModel(model, options)
    with pytest.raises(poptorch.Error, match=r"process 1 of 2 .* MASTER_ADDR .* --instances 2"):
        trained(torch.randn(1, 6), torch.randn(1, 1))
    assert issubclass(InstanceLost, poptorch.Error)
    assert connect.cache_info().currsize == 0

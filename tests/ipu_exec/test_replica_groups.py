"""Weights that differ between replicas.

Numbers against plain PyTorch, and what their all-reduce costs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_exec
from ipu_exec import CommGroupType, VariableRetrievalMode
from ipu_exec.machine import TARGETS
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import ring_cycles

ONE, ALL = VariableRetrievalMode.OnePerGroup, VariableRetrievalMode.AllReplicas
ROWS, COLUMNS, MICRO = 16, 24, 4
# kind, replicas of a group, and the group of each of 8 replicas (the user guide's picture)
GROUPS = [
    (CommGroupType.Consecutive, 2, [0, 0, 1, 1, 2, 2, 3, 3]),
    (CommGroupType.Consecutive, 4, [0, 0, 0, 0, 1, 1, 1, 1]),
    (CommGroupType.Orthogonal, 2, [0, 1, 2, 3, 0, 1, 2, 3]),
    (CommGroupType.Orthogonal, 4, [0, 1, 0, 1, 0, 1, 0, 1]),
    (CommGroupType.NoGrouping, 0, list(range(8))),
]


class Model(torch.nn.Module):
    """The user guide's: a product with a weight, and a bias that all replicas share."""

    def __init__(self, values: int | None) -> None:
        super().__init__()
        first = () if values is None else (values,)
        self.W = torch.nn.Parameter(torch.randn(*first, ROWS, COLUMNS) * 0.1)
        self.b = torch.nn.Parameter(torch.zeros(COLUMNS))

    def forward(self, x: torch.Tensor) -> Any:
        z = x @ self.W + self.b
        return z, ipu_exec.identity_loss(z**2, reduction="mean")


def options(
    accumulation: int = 1, reduction: Any = ipu_exec.ReductionType.Mean
) -> ipu_exec.Options:
    opts = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(8)
    opts.Training.gradientAccumulation(accumulation).accumulationAndReplicationReductionType(
        reduction
    )
    return opts.outputMode(ipu_exec.OutputMode.All)


def grouped(
    kind: CommGroupType, size: int, values: int, mode: VariableRetrievalMode = ONE, **kwargs: Any
) -> tuple[Model, Any]:
    torch.manual_seed(0)
    model = Model(values)
    optimizer = kwargs.pop("optimizer", ipu_exec.optim.SGD)(model.parameters(), lr=0.1)
    wrapped = ipu_exec.trainingModel(model, options(**kwargs), optimizer)
    wrapped.W.replicaGrouping(kind, size, mode)
    return model, wrapped


@pytest.mark.parametrize("optimizer", [ipu_exec.optim.SGD, ipu_exec.optim.AdamW])
@pytest.mark.parametrize(("kind", "size", "group"), GROUPS)
def test_each_group_trains_its_own_value(
    kind: CommGroupType, size: int, group: list[int], optimizer: Any
) -> None:
    accumulation, steps, values = 2, 3, max(group) + 1
    model, wrapped = grouped(kind, size, values, accumulation=accumulation, optimizer=optimizer)
    model.double()  # sums in another order: Adam would make much of the last bit
    start = {name: value.clone() for name, value in model.state_dict().items()}
    batches = [torch.randn(MICRO * accumulation * 8, ROWS).double() for _ in range(steps)]
    for batch in batches:
        wrapped(batch)

    theirs = [torch.nn.Parameter(start["W"][g].clone()) for g in range(values)]
    shared = torch.nn.Parameter(start["b"].clone())
    stepper = optimizer([*theirs, shared], lr=0.1)
    for batch in batches:
        stepper.zero_grad()
        for replica in range(8):
            for a in range(accumulation):
                begin = (a * 8 + replica) * MICRO
                z = batch[begin : begin + MICRO] @ theirs[group[replica]] + shared
                (z**2).mean().backward()
        for parameter in (*theirs, shared):
            assert parameter.grad is not None
            parameter.grad /= (
                accumulation * 8
            )  # by all replicas, whatever the group: PopART scales the loss
        stepper.step()
    assert model.W.shape == (values, ROWS, COLUMNS)
    torch.testing.assert_close(model.W, torch.stack(list(theirs)))
    torch.testing.assert_close(model.b, shared)


def test_a_weight_cut_over_replicas_trains_as_the_whole() -> None:
    """The user guide's example: a weight in four parts, data in two, on eight replicas."""
    parts, shares, steps = 4, 2, 4
    torch.manual_seed(1)
    whole = torch.randn(ROWS, 4 * COLUMNS) * 0.1
    data = torch.randn(shares * MICRO, ROWS)
    model = Model(parts)
    model.W.data = whole.reshape(ROWS, parts, COLUMNS).transpose(0, 1).contiguous()
    model.b.requires_grad_(False)
    opts = options().inputReplicaGrouping(parts, CommGroupType.Consecutive)
    wrapped = ipu_exec.trainingModel(model, opts, torch.optim.SGD([model.W], lr=0.5))
    wrapped.W.replicaGrouping(CommGroupType.Orthogonal, shares, ONE)
    expected = torch.nn.Parameter(whole.clone())
    plain = torch.optim.SGD([expected], lr=0.5)
    for _ in range(steps):
        _, losses = wrapped(data)
        loss = ((data @ expected) ** 2).mean()
        torch.testing.assert_close(losses.mean(), loss)
        plain.zero_grad()
        loss.backward()
        plain.step()
    torch.testing.assert_close(model.W.transpose(0, 1).reshape(whole.shape), expected)


def test_all_replicas_are_read_back() -> None:
    model, wrapped = grouped(CommGroupType.Consecutive, 4, 8, ALL)
    other, by_group = grouped(CommGroupType.Consecutive, 4, 2, ONE)
    with torch.no_grad():
        other.W.copy_(model.W[[0, 4]])  # each group begins as its first replica
    batch = torch.randn(MICRO * 8, ROWS)
    wrapped(batch)
    by_group(batch)
    assert torch.equal(
        wrapped.state_dict()["W"], by_group.state_dict()["W"].repeat_interleave(4, 0)
    )


def test_inference_sees_the_values_too() -> None:
    model = Model(8)
    wrapped = ipu_exec.inferenceModel(model, options())
    wrapped.W.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    batch = torch.randn(MICRO * 8, ROWS)
    out, _ = wrapped(batch)
    expected = torch.cat(
        [batch[r * MICRO : (r + 1) * MICRO] @ model.W[r] + model.b for r in range(8)]
    )
    assert torch.equal(out, expected.detach())


def test_without_grouping_nothing_changes() -> None:
    model, wrapped = grouped(CommGroupType.All, 0, 1)
    torch.manual_seed(0)
    plain = Model(1)
    other = ipu_exec.trainingModel(plain, options(), ipu_exec.optim.SGD(plain.parameters(), lr=0.1))
    batch = torch.randn(MICRO * 8, ROWS)
    wrapped(batch)
    other(batch)
    assert torch.equal(model.W, plain.W)
    assert (
        torch.equal(wrapped.W, model.W) and wrapped.W.shape == model.W.shape
    )  # it is a parameter to look at


@pytest.mark.parametrize(("kind", "size", "group"), GROUPS)
def test_the_all_reduce_is_within_a_group(kind: CommGroupType, size: int, group: list[int]) -> None:
    _, wrapped = grouped(kind, size, max(group) + 1, accumulation=2)
    wrapped.compile(torch.randn(MICRO * 2 * 8, ROWS))
    executable = wrapped.executable
    assert (
        sum(v.bytes for v in executable.variables if v.name == "W") == ROWS * COLUMNS * 4
    )  # a replica's
    (reduce,) = (body for body in executable.tree.bodies if body.task == schedule_types.REDUCE)
    actual = {step.name: step.cycles for step in reduce.steps}
    stride = max(group) + 1 if kind is CommGroupType.Orthogonal else 1
    expected = {"AllReduce": ring_cycles(TARGETS["mk2"].links, 0, 1, 8, COLUMNS * 4, 2)}
    if kind is not CommGroupType.NoGrouping:
        expected[f"AllReduce in groups of {size}"] = ring_cycles(
            TARGETS["mk2"].links, 0, stride, size, ROWS * COLUMNS * 4, 2
        )
    assert actual == expected


def test_what_differs_between_replicas_is_not_sharded() -> None:
    model = Model(8)
    opts = options(accumulation=2)
    opts.TensorLocations.setOptimizerLocation(
        ipu_exec.TensorLocationSettings()
        .useReplicatedTensorSharding(True)
        .minElementsForReplicatedTensorSharding(1)
    )
    wrapped = ipu_exec.trainingModel(model, opts, ipu_exec.optim.AdamW(model.parameters(), lr=0.1))
    wrapped.W.replicaGrouping(CommGroupType.NoGrouping, 0, ONE)
    with pytest.warns(
        UserWarning, match=r"not honoured for 'W/exp_avg' and 1 more.*differ between replicas"
    ):
        wrapped.compile(torch.randn(MICRO * 2 * 8, ROWS))
    sizes = {v.name: v.bytes for v in wrapped.executable.variables if v.role == "optimiser state"}
    assert sizes["W/exp_avg"] == ROWS * COLUMNS * 4 and sizes["b/exp_avg"] < COLUMNS * 4


@pytest.mark.parametrize(
    ("kind", "size", "mode", "words"),
    [
        (
            CommGroupType.Consecutive,
            3,
            ONE,
            "groups of 3 replicas do not divide replicationFactor 8",
        ),
        (
            CommGroupType.Consecutive,
            2,
            ONE,
            r"its shape is \(8, 16, 24\), and the first dimension is to be 4",
        ),
        ("Consecutive", 2, ONE, "it takes a CommGroupType"),
    ],
)
def test_a_grouping_that_cannot_be_says_why(kind: Any, size: int, mode: Any, words: str) -> None:
    _, wrapped = grouped(kind, size, 8, mode)
    with pytest.raises(ipu_exec.Error, match=words):
        wrapped(torch.randn(MICRO * 8, ROWS))


def test_inputs_are_grouped_by_some_replicas() -> None:
    with pytest.raises(
        ipu_exec.Error, match=r"inputReplicaGrouping takes CommGroupType.Consecutive or Orthogonal"
    ):
        options().inputReplicaGrouping(2, CommGroupType.All)
    assert options().inputReplicaGrouping(2, CommGroupType.NoGrouping).input_replicas == 8
    assert options().inputReplicaGrouping(2, CommGroupType.Orthogonal).input_replicas == 4


def test_norms_over_replicas_are_refused() -> None:
    _, wrapped = grouped(CommGroupType.NoGrouping, 0, 8, optimizer=ipu_exec.optim.LAMB)
    with pytest.raises(
        ipu_exec.Error, match="replicaGrouping of W: LAMB takes norms of whole tensors"
    ):
        wrapped(torch.randn(MICRO * 8, ROWS))


def test_a_grouping_given_later_compiles_again(caplog: pytest.LogCaptureFixture) -> None:
    model, wrapped = grouped(CommGroupType.NoGrouping, 0, 8)
    batch = torch.randn(MICRO * 8, ROWS)
    wrapped(batch)
    wrapped.per_replica_params["W"] = (
        CommGroupType.Consecutive,
        1,
        ONE,
    )  # the same: nothing is compiled
    executable = wrapped.executable
    wrapped(batch)
    assert wrapped.executable is executable
    model.W.data = model.W.data[:4].clone()
    wrapped.per_replica_params["W"] = (CommGroupType.Orthogonal, 2, ONE)
    wrapped(batch)
    assert (
        wrapped.executable is not executable
        and "recompiling because the grouping of replicas" in caplog.text
    )


def test_a_saved_model_keeps_its_grouping(tmp_path: Path) -> None:
    model, wrapped = grouped(CommGroupType.Orthogonal, 2, 4)
    batch = torch.randn(MICRO * 8, ROWS)
    wrapped.compileAndExport(str(tmp_path / "model.poptorch"), batch)
    loaded = ipu_exec.load(tmp_path / "model.poptorch")
    executable = loaded.executable
    assert torch.equal(loaded(batch)[1], wrapped(batch)[1])
    assert loaded.executable is executable and torch.equal(loaded.model.W, model.W)

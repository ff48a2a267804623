"""The operators that capture substitutes compute the same as the original."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ipu_exec
from ipu_exec.capture.rewrites import decompositions as decompose
from ipu_exec.capture.step import capture
from ipu_exec.lowering import Builder, lowering, registry
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.machine import Machine
from tests.models import model_of


def test_a_product_of_three() -> None:
    x, w, y = torch.randn(7, 4), torch.randn(5, 4, 3), torch.randn(7, 3)
    expected = F.bilinear(x, y, w)
    # torch.bilinear's own call: [b, o, i, j] with x lacking o and j, w lacking b, y lacking o and i
    got = decompose.trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3])
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got, torch._trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_the_gradient_of_the_margin_loss(p: int, reduction: str) -> None:
    scores, target, weight = (
        torch.randn(6, 5, requires_grad=True),
        torch.randint(0, 5, (6,)),
        torch.rand(5),
    )
    loss = F.multi_margin_loss(scores, target, p, 0.7, weight, reduction=reduction)
    grad = torch.rand_like(loss)
    (expected,) = torch.autograd.grad(loss, scores, grad)
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    got = decompose.multi_margin_gradient(grad, scores.detach(), target, p, 0.7, weight, number)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_gradient_of_the_margin_loss_of_many_labels(reduction: str) -> None:
    scores = torch.randn(4, 5, requires_grad=True)
    target = torch.tensor([[3, 0, -1, 1, 2], [-1, 0, 0, 0, 0], [4, 3, 2, 1, 0], [1, -1, 2, -1, 3]])
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    loss, is_target = torch.ops.aten.multilabel_margin_loss_forward(scores, target, number)
    grad = torch.rand_like(loss)
    (expected,) = torch.autograd.grad(loss, scores, grad)
    got = decompose.multilabel_margin_gradient(grad, scores.detach(), target, number, is_target)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_gradients_of_the_margin_losses_of_one_sample(reduction: str) -> None:
    scores, number = torch.randn(5, requires_grad=True), {"none": 0, "mean": 1, "sum": 2}[reduction]
    target = torch.tensor([3])
    loss = F.multi_margin_loss(scores, target, reduction=reduction)
    (expected,) = torch.autograd.grad(loss, scores, torch.full_like(loss, 0.3))
    got = decompose.multi_margin_gradient(
        torch.full_like(loss, 0.3), scores.detach(), target, 1, 1.0, None, number
    )
    torch.testing.assert_close(got, expected)
    target = torch.tensor([3, 1, -1, 0, 2])
    loss, is_target = torch.ops.aten.multilabel_margin_loss_forward(scores, target, number)
    (expected,) = torch.autograd.grad(loss, scores, torch.full_like(loss, 0.3))
    grad = torch.full_like(loss, 0.3)
    got = decompose.multilabel_margin_gradient(grad, scores.detach(), target, number, is_target)
    torch.testing.assert_close(got, expected)


def test_rows_are_scaled_to_their_greatest_norm_where_they_are_looked_up() -> None:
    weight, indices = torch.randn(6, 4), torch.tensor([[1, 3], [3, 5]])
    expected = torch.embedding_renorm_(weight.clone(), indices, 0.7, 2.0)
    torch.testing.assert_close(decompose.renormalised(weight, indices, 0.7, 2.0), expected)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_the_places_of_the_first_so_many_that_are_not_zero(size: int) -> None:
    values = torch.randint(0, 2, (3, 4, 2))
    expected = torch.nonzero_static(values, size=size, fill_value=-7)
    assert torch.equal(decompose.nonzero_static(values, size=size, fill_value=-7), expected)


@pytest.mark.parametrize("weights", [None, torch.rand(7)], ids=["counts", "sums"])
def test_values_in_bins(weights: torch.Tensor | None) -> None:
    values = torch.tensor([3, 0, 3, 1, 1, 3, 0])
    expected = torch.bincount(values, weights, minlength=6)
    got = decompose.counts(values, weights, 6)
    assert got.dtype is expected.dtype
    torch.testing.assert_close(got, expected)


def test_another_diagonal() -> None:
    whole, part = torch.randn(3, 4, 5), torch.randn(4, 3)
    got = decompose.diagonal_scatter(whole, part, 1, 0, 2)
    torch.testing.assert_close(got, torch.diagonal_scatter(whole, part, 1, 0, 2))


def test_the_gradient_of_weight_norm() -> None:
    v, g = torch.randn(5, 3, 2, requires_grad=True), torch.randn(5, 1, 1, requires_grad=True)
    w, norms = torch._weight_norm_interface(v, g, 0)
    grad = torch.randn_like(w)
    expected = torch.autograd.grad(w, (v, g), grad)
    got = decompose.weight_norm_gradient(grad, v.detach(), g.detach(), norms.detach(), 0)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_gradient_of_bags(mode: str) -> None:
    table = torch.randn(9, 4, requires_grad=True)
    indices, offsets = torch.randint(0, 9, (12,)), torch.tensor([0, 3, 7])
    number = ("sum", "mean", "max").index(mode)
    out, *bags = torch.ops.aten._embedding_bag(
        table, indices, offsets, False, number, False, None, False, -1
    )
    grad = torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, table, grad)
    got = decompose.embedding_bag_gradient(grad, indices, offsets, *bags, 9, False, number, False)
    torch.testing.assert_close(got, expected)


def test_drawing_follows_the_weights() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([[0.0, 1.0, 3.0]]).expand(4000, 3)
    once = decompose.multinomial(weights, 1)
    again = decompose.multinomial(weights[:1], 4000, replacement=True)
    for drawn in (once, again):
        assert (drawn == 0).sum() == 0
        assert 0.72 < (drawn == 2).float().mean() < 0.78
    both = decompose.multinomial(weights, 2)
    assert (both[:, 0] != both[:, 1]).all()


def test_the_distance_of_two_tensors() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    for p in (1.0, 2.0, float("inf")):
        torch.testing.assert_close(decompose.distance(a, b, p), torch.dist(a, b, p))


def test_products_of_groups() -> None:
    """Rows, columns, or what both share, are divided among matrices; one group is empty."""
    ends = torch.tensor([2, 3, 3, 8], dtype=torch.int32)
    flat, other, each = torch.randn(8, 8), torch.randn(8, 8), torch.randn(4, 8, 8)
    for first, second in ((flat, each), (flat, other), (each, flat)):
        expected = torch._grouped_mm(first, second.mT.contiguous().mT, offs=ends)
        torch.testing.assert_close(decompose.grouped_product(first, second, ends), expected)
    torch.testing.assert_close(decompose.grouped_product(each, each), each @ each)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 3), (-1, 2)])
def test_histogram(low: int, high: int) -> None:
    values = torch.tensor([0.0, 0.0, 1.0, 3.0, 2.0, 3.0, 2.5, 1.0]).reshape(2, 4)
    expected = torch.histc(values, 4, low, high)
    assert torch.equal(decompose.histogram(values, 4, low, high), expected)


def test_a_mixture_of_experts_trains_by_products_of_groups() -> None:
    """In float32, which PyTorch's shapes without numbers refuse (transformers' mixtures)."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        chosen, order = torch.sort(self.router(x).argmax(1))
        ends = torch.histc(chosen.float(), 4, 0, 3).cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(x[order], self.experts, offs=ends).pow(2).mean()

    model = model_of(forward, router=nn.Linear(8, 4), experts=nn.Parameter(torch.randn(4, 8, 8)))
    plain = copy.deepcopy(model)
    x = torch.randn(16, 8)
    training = ipu_exec.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    training(x)
    plain(x).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert torch.equal(model.experts, plain.experts)
    products = [op for op in training.executable.graph.ops if op.aten == "aten.matmul.default"]
    assert len(products) == 2, "x needs no gradient: forward, and the experts' gradient"


GATE = model_of(lambda self, x: F.glu(x))


def test_an_operator_of_lowered_ones_is_taken_apart_and_keeps_its_place() -> None:
    graph = capture(nn.Sequential(GATE), (torch.randn(4, 6),), {})
    assert [
        op.aten for op in graph.ops if not op.aten.startswith(("aten.slice", "aten.split"))
    ] == [
        "aten.sigmoid.default",
        "aten.mul.Tensor",
    ] or [op.aten for op in graph.ops][-2:] == [
        "aten.sigmoid.default",
        "aten.mul.Tensor",
    ]
    assert all(op.module == "0" and op.file.endswith("test_decompositions.py") for op in graph.ops)


def test_a_lowering_of_the_whole_operator_comes_before_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))

    @lowering("aten.glu")
    def glu(spec: OpSpec, machine: Machine) -> Plan:
        return Builder(spec, machine).plan((None,))

    assert [op.aten for op in capture(GATE, (torch.randn(4, 6),), {}).ops] == ["aten.glu.default"]

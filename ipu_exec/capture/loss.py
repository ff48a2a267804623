"""Finds the loss among a model's outputs: the one marked by `identity_loss`, or a scalar."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ipu_exec.base.context import refuse
from ipu_exec.base.structures import learn
from ipu_exec.errors import Error

logger = logging.getLogger("ipu_exec")

WITH_LOSS = """Labels and the loss go into a module around the model:
    class WithLoss(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            output = self.model(x)
            return output, torch.nn.functional.cross_entropy(output, labels)
and trainingModel(WithLoss(model), options, optimizer) takes inputs and labels"""
_LOSS_MARK = "_ipu_exec_loss"


def mark_loss(loss: torch.Tensor) -> torch.Tensor:
    """Mark ``loss`` as the one to differentiate, and return it."""
    setattr(loss, _LOSS_MARK, True)
    return loss


def is_marked_loss(x: torch.Tensor) -> bool:
    """Whether `identity_loss` returned this tensor."""
    return bool(getattr(x, _LOSS_MARK, False))


def frozen(model: torch.nn.Module) -> bool:
    """Whether no weight requires grad: PopTorch accepts such a training model, and only runs it."""
    return not any(parameter.requires_grad for parameter in model.parameters())


def find_loss(returned: Any) -> torch.Tensor:
    """The loss in a model's results: the last output marked by `identity_loss`, else a scalar.

    A scalar that a weight has a gradient of, if there is one; of several the one that is, or is
    made of, a loss of torch's, as in PopTorch; or else the last. Error if there is none.
    """
    candidates, tensors = _candidates(returned)
    if not candidates:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensors"
        raise Error(
            "Couldn't find a loss in graph: the model returned no loss, its outputs have the"
            f" shapes {shapes} (of one micro-batch). A training model returns its loss last, or"
            f" marks it with poptorch.identity_loss(x, 'mean'): one number. {WITH_LOSS}"
        )
    loss = candidates[-1]
    if loss.numel() != 1:
        raise Error(
            f"the loss has the shape {tuple(loss.shape)} and must be one number: use"
            " identity_loss(x, 'mean') or 'sum'"
        )
    return loss


def _candidates(returned: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that may be the loss, and all of them."""
    tensors = [leaf for leaf in learn(returned) if isinstance(leaf, torch.Tensor)]
    marked = [tensor for tensor in tensors if is_marked_loss(tensor)]
    scalars = [tensor for tensor in tensors if tensor.numel() == 1 and tensor.is_floating_point()]
    trained = [scalar for scalar in scalars if scalar.requires_grad]
    if marked or len(trained) < 2:
        return marked or trained or scalars, tensors
    made_of = [_losses_of_torch(scalar) for scalar in trained]
    losses = set().union(*made_of)
    for among in (
        [scalar for scalar in trained if len(losses) == 1 and scalar.grad_fn in losses],
        [scalar for scalar, some in zip(trained, made_of, strict=True) if some],
        [scalar for scalar in trained if not scalar.dim()],  # not the one number of a batch of one
    ):
        if len(among) == 1:
            return among, tensors
    return trained, tensors


def _losses_of_torch(output: torch.Tensor) -> set[Any]:
    """The nodes of torch's losses that an output is made of."""
    losses, seen, to_see = set(), set(), [output.grad_fn]
    while to_see:
        node = to_see.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if any(
            part in node.name() for part in ("LossBackward", "Loss2DBackward", "BinaryCrossEntropy")
        ):
            losses.add(node)
        else:
            to_see += [before for before, _ in node.next_functions]
    return losses


def find_final_loss(returned: Any, frozen: bool = False) -> torch.Tensor:
    """`find_loss`, with an Error if an unmarked loss is one of several, or combines torch's losses.

    Warns of a loss that depends on no weight if the model is not ``frozen``.
    """
    loss = find_loss(returned)
    if not loss.requires_grad and not frozen:
        logger.warning(
            "the loss does not depend on any weight that requires grad, so there is nothing to"
            " train; look for .detach(), torch.no_grad() or frozen parameters between the weights"
            " and the loss"
        )
    if is_marked_loss(loss) or not loss.requires_grad:
        return loss
    several, losses = len(_candidates(returned)[0]), len(_losses_of_torch(loss))
    if several > 1 or losses > 1:
        what = f"{several} outputs are" if several > 1 else f"It is made of {losses}, and each is"
        refuse(
            "Multiple independent losses found in graph. Graph must have one final loss. Wrap final"
            f" graph loss in poptorch.identity_loss. {what} a loss that weights have gradients of:"
            " return poptorch.identity_loss(loss, 'none') of the one to train"
        )
    return loss

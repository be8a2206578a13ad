"""The loss of a model whose logits stay cut by classes."""

from __future__ import annotations

import contextlib

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from .words import Plan


def is_loss_parallel(plan: Plan) -> bool:
    """Whether the model gives its logits as a DTensor, cut by classes."""
    return any(text.startswith("loss-parallel") for text in plan.values())


def loss_context(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """Stands round forward, loss and backward: `F.cross_entropy` then never gathers the logits.

    It must not be entered twice.
    """
    if not is_loss_parallel(plan):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = loss_parallel()
    return context


def plain(loss: torch.Tensor) -> torch.Tensor:
    """The loss as an ordinary tensor, the same on every tensor-parallel rank; differentiable."""
    if not isinstance(loss, DTensor):
        return loss
    whole: torch.Tensor = loss.full_tensor()
    return whole

"""Activation checkpointing: activations are computed again in the backward instead of kept."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .choices import Recompute

# Matrix products are most of a block's work and little of its memory: `selective` keeps them, and
# what attention gives, whichever kernel computes it. Kept is, too, what ranks have added up, for
# which a block would wait again. What they gather is larger by their number, and gathered anew.
_KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


def recompute(units: list[nn.Module], how: Recompute) -> None:
    """Let each unit keep its inputs alone (`full`), or matrix products as well (`selective`).

    The modules stay what they are, so that parameter names do: torch's own wrapper would change
    them. Random draws are the same in both computations.
    """
    if how == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    for unit in units:
        unit.forward = functools.partial(checkpoint, unit.forward, **options)  # type: ignore[method-assign]


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operator in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

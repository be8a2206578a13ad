"""The optimizers a recipe offers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .options import TrainOptions

_ADAMW_BETAS = (0.9, 0.95)


def build_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW or SGD; matrices decay, norms and biases do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)
    return torch.optim.AdamW(groups, lr=options.lr, betas=_ADAMW_BETAS)

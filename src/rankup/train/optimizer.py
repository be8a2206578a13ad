"""The optimizers a recipe offers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .options import TrainOptions
from .schedule import Rates

_SECOND_BETA = 0.95  # of AdamW


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
    # One kernel: on a GPU it saves launches, on a CPU five of six passes through memory.
    fused = {p.device.type for p in (*matrices, *vectors)} in ({"cuda"}, {"cpu"}) or None
    betas = (options.momentum, _SECOND_BETA)
    return torch.optim.AdamW(groups, lr=options.lr, betas=betas, fused=fused)


def set_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Take the next step with these."""
    for group in optimizer.param_groups:
        group["lr"] = rates.lr
        if rates.momentum is None:
            continue
        if "betas" in group:
            group["betas"] = (rates.momentum, group["betas"][1])
        else:
            group["momentum"] = rates.momentum

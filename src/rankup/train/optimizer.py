"""The optimizers a recipe offers, and the loss scale of float16."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..parallel.sharded import blocks
from ..runtime.state import local
from .muon import Muon
from .options import TrainOptions

_SECOND_BETA = 0.95  # of AdamW
_MOST_SCALE = 2.0**24  # of float16's losses


def build_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW, SGD or Muon for what is trained; matrices decay, norms and biases do not.

    Muon is for the matrices of the blocks; embeddings, the head and all else have AdamW.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    vectors = [p for p in trained if p.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    # One kernel: on a GPU it saves launches, on a CPU five of six passes through memory.
    fused = {p.device.type for p in trained} in ({"cuda"}, {"cpu"}) or None
    betas = (options.momentum, _SECOND_BETA)
    if options.optimizer == "muon":
        inside = {id(p) for unit in blocks(model) for p in unit.parameters() if p.dim() == 2}
        groups[0]["params"] = [p for p in matrices if id(p) not in inside]
        return Muon(
            [p for p in matrices if id(p) in inside],
            groups,
            weight_decay=options.weight_decay,
            momentum=options.momentum,
            lr=options.lr,
            betas=betas,
            fused=fused,
        )
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum)
    return torch.optim.AdamW(groups, lr=options.lr, betas=betas, fused=fused)


class LossScale:
    """The factor that keeps gradients of float16 within its range.

    It halves after an overflow and doubles after many steps without, as `torch.amp.GradScaler`'s.
    That one judges by the gradients that a rank holds, which under FSDP, TP and PP are a part of
    them; the norm over all ranks, which a step computes anyway, says it to all alike.

    Attributes:
        value: the factor.
        since: steps since it changed.
    """

    _DOUBLES = 2000  # steps without an overflow

    def __init__(self, value: float = 65536.0, since: int = 0) -> None:
        self.value, self.since = value, since

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by it."""
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.value)

    def overflowed(self, norm: torch.Tensor) -> bool:
        """Go on to the next step's value; return True where this gradient is no longer finite."""
        overflowed = not math.isfinite(norm.item())
        self.since = 0 if overflowed else self.since + 1
        if overflowed or self.since == self._DOUBLES:
            self.value = min(self.value * (0.5 if overflowed else 2), _MOST_SCALE)
            self.since = 0
        return overflowed

"""The loss of tokens, which never has all logits of a large vocabulary in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from .options import LOGITS_AT_ONCE

IGNORED = -100  # a target that is not there: cross_entropy's own default


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Summed loss of logits (batch, length, vocabulary), of any precision, in float32.

    Of a large vocabulary it goes through some rows at a time, and again in the backward: beside the
    logits and their gradient there are never all of them, nor in float32.
    """
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    rows = max(1, LOGITS_AT_ONCE // flat.shape[1])
    if len(flat) <= rows or isinstance(logits, DTensor):
        return _summed(flat, wanted)
    parts = [
        checkpoint(_summed, some, theirs, use_reentrant=False, preserve_rng_state=False)
        for some, theirs in zip(flat.split(rows), wanted.split(rows), strict=True)
    ]
    return torch.stack(parts).sum()


def _summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")


def compiled_cross_entropy() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the same in one kernel, which never has all logits in float32."""
    compiled = torch.compile(_summed)

    def summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        kernel = _summed if isinstance(logits, DTensor) else compiled
        return kernel(logits.flatten(0, 1), targets.flatten())

    return summed

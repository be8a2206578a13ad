"""Stands in for thop: see tools/stand_ins/README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def profile(model: torch.nn.Module, inputs: Sequence[Any]) -> tuple[float, float]:
    """One forward; the parameters, twice."""
    with torch.no_grad():
        model.eval()(*inputs)
    count = float(sum(one.numel() for one in model.parameters()))
    return 2 * count, count


def clever_format(numbers: Sequence[float]) -> list[str]:
    """Thousands."""
    return [f"{one / 1000:.3f}K" for one in numbers]

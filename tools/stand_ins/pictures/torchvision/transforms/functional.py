"""Transforms as functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def resize(values: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """A batch of pictures, to a height and a width."""
    return torch.nn.functional.interpolate(values, list(size), mode="bilinear")

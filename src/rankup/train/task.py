"""What a recipe gives the loop: data, a model, a loss. Nothing in it knows of ranks."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

Batch = tuple[torch.Tensor, ...]


class Split(Protocol):
    """Samples numbered from 0, e.g. the training part of a data set."""

    def __len__(self) -> int: ...

    def count(self, samples: torch.Tensor) -> int:
        """Valid targets in these samples (tokens, or the samples themselves), without reading."""
        ...

    def batch(self, samples: torch.Tensor) -> Batch:
        """The samples as CPU tensors, first dimension `len(samples)`."""
        ...


class Task(Protocol):
    """A model, how to optimize it, and what to train and evaluate it on."""

    unit: str  # what a target is, in the plural: "tokens", "samples"

    @property
    def train(self) -> Split: ...
    @property
    def valid(self) -> Split: ...
    @property
    def test(self) -> Split: ...

    def build_model(self) -> nn.Module: ...

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Scalar: the loss summed over the valid targets of the batch."""
        ...

    def flops_per_unit(self, model: nn.Module) -> float:
        """Floating-point operations that training on one target takes, for the MFU."""
        ...

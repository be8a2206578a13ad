"""What a recipe gives the loop: data, a model, a loss. Nothing in it knows of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from ..data.batches import BatchRequest
from ..data.orders import Ordering

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


@runtime_checkable
class Ahead(Protocol):
    """A split that makes its batches ahead of the loop, and anew for each epoch."""

    def ahead(self, requests: Iterator[BatchRequest]) -> Iterator[tuple[BatchRequest, Batch]]:
        """The batches of these requests in their order, some of them made ahead.

        A batch depends on seed, epoch and samples of its request, and on nothing else.
        """
        ...

    def once(self, request: BatchRequest) -> Batch:
        """One batch, now."""
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


@runtime_checkable
class Freezing(Protocol):
    """A task that leaves part of its model as it is in the first epochs."""

    frozen_epochs: int

    def frozen(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that stay. Their gradients are computed, and thrown away."""
        ...


@runtime_checkable
class Measuring(Protocol):
    """A task that knows more of a split than its loss: accuracy, say."""

    measures: tuple[str, ...]  # names; `accuracy` stands as `valid_accuracy` in the run's record

    def measure(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss as `loss` has it, and float (len(measures), 2): each one's sum and count.

        Sums and counts are added over all samples, and divided once: a mean is exact on any number
        of ranks. How often it goes through the model must not hang on the samples, since under
        `fsdp` all ranks have to do it together. A pipelined model is asked for its loss alone.
        """
        ...


@runtime_checkable
class Ordered(Protocol):
    """A task whose epochs have an order of their own: by length, say."""

    def order(self) -> Ordering:
        """Of the training samples, made for the seed and the global batch of the run."""
        ...


@runtime_checkable
class Valued(Protocol):
    """A task whose `build_model` gives each parameter its value, as weights that were trained."""

    by_name: bool  # False: no parameter is drawn anew by its name


@runtime_checkable
class Loaded(Protocol):
    """A task that may begin with weights from files, of which each rank reads its own part."""

    def values(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Fill this rank's parameters, by their names in the model; False where there are none.

        Call on all ranks. Parameters may be DTensors.
        """
        ...

"""What a recipe gives the loop: data, a model, a loss. Nothing in it knows of ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

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


@dataclass(frozen=True)
class Named:
    """Several splits by name, each evaluated by itself; together they are all their samples."""

    parts: Mapping[str, Split]


@runtime_checkable
class Ahead(Protocol):
    """A split that makes its batches ahead of the loop."""

    def ahead(self, coming: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Batch]]:
        """Samples and their batches in order, some of them made ahead, as `batch` makes them."""
        ...


class Task(ABC):
    """A model, how to optimize it, and what to train and evaluate it on."""

    unit: str  # what a target is, in the plural: "tokens", "samples"
    train: Split
    valid: Split | Named
    test: Split

    @abstractmethod
    def build_model(self) -> nn.Module: ...

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Scalar: the loss summed over the valid targets of the batch.

        Under `--precision bf16` a model may give 16 bits: what is summed is to be cast before.
        """

    @abstractmethod
    def flops_per_unit(self, model: nn.Module) -> float:
        """Floating-point operations that training on one target takes, for the MFU."""

    def order(self) -> Ordering | None:
        """Of the training samples of an epoch, for the run's seed and global batch; None: the run's
        own random one."""
        return None

    def gives(self, name: str) -> bool:
        """Return whether `values` fills the parameter of that name: none is drawn for it."""
        return False

    def values(self, tensors: Mapping[str, torch.Tensor]) -> None:  # noqa: B027
        """Fill what it gives of this rank's parameters, by their names in the model.

        Call on all ranks. Parameters may be DTensors.
        """

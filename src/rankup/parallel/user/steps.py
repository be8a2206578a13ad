"""A user's training step through a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ...base.errors import UserError
from ...runtime.collectives import all_reduce
from ...runtime.context import CONTEXT
from ...runtime.keys import derive
from ..build import Batch, Built, Loss
from ..pipeline.run import Pipeline
from .forward import check_same_batch, draws
from .gradients import Gradients

Units = Callable[[Batch], float]


class Steps:
    """Runs a batch through the pipeline stages of a model; what `parallelize` returns under pp.

    Args:
        loss: (model, batch) -> mean loss of the batch, a tensor without dimensions. It calls the
            model once, with positional arguments.
        micro_batch: samples of a chunk; the last one of a batch may have fewer.
        units: how many units the loss of a batch is a mean over, where they are not samples.
    """

    def __init__(
        self,
        built: Built,
        gradients: Gradients,
        loss: Loss,
        micro_batch: int,
        units: Units | None,
        seed: int,
    ) -> None:
        assert built.pipeline is not None
        self._built, self._gradients = built, gradients
        self._pipeline: Pipeline = built.pipeline
        self._given, self._micro_batch, self._units = loss, micro_batch, units
        self._seed, self._number = seed, 0
        self._device = built.mesh.world.device
        self._alike = built.mesh.world.world_size // built.mesh.data_size

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """Forward and backward of this data rank's batch; gradients add up until the optimizer's.

        Chunks count by their samples, or by `units`; data ranks by what `shard` dealt them, so that
        the gradient is that of the mean over the batches of all data ranks.

        Args:
            batch: tensors whose first dimensions are its samples; the same ones on all ranks of a
                pipeline.

        Returns:
            The mean loss over the batches of all data ranks, the same on every rank, without
            gradient; NaN where there are no units at all.

        Raises:
            UserError: the batch is no tuple of tensors of one length; or, at the first step, ranks
                of one pipeline have different ones.
        """
        if CONTEXT.units is not None:
            CONTEXT.units = None
            raise UserError(
                "rankup.count speaks of one backward, and a pipeline has one per chunk: give "
                "parallelize units=, a function of a chunk, in its place"
            )
        chunks = self._cut(batch)
        self._number += 1
        if self._number == 1:
            check_same_batch(self._built.mesh, tuple(batch))
        CONTEXT.trains()
        samples = CONTEXT.samples
        idle = samples is not None and samples[0] == 0
        if self._units is not None:
            weights = self._shares(self._sizes(chunks, 0.0 if idle else 1.0))
        else:
            size = self._built.mesh.data_size
            share = samples[0] / samples[1] if samples is not None else 1.0 / size
            sizes = self._sizes(chunks, 1.0)
            weights = [share * part / sum(sizes) for part in sizes]
        self._gradients.more()
        place = (self._built.mesh.data_rank, *self._built.draws_apart)
        with (
            draws(derive(self._seed, "step", self._number, *place), self._device),
            self._built.computing(),
        ):
            losses = self._pipeline.step(chunks, weights, self._loss)
        return self._mean(losses, weights)

    def evaluate(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The mean loss over the batches of all data ranks, the same on every rank.

        Without gradients. Call on all ranks, as often on each: `shard(loader, train=False)` sees to
        that. Whether dropout is on is up to `model.eval()`.
        """
        chunks = self._cut(batch)
        weights = self._shares(self._sizes(chunks, 1.0))
        return self._mean(self._built.losses(self._loss, chunks), weights)

    def _loss(self, model: object, batch: Batch) -> torch.Tensor:
        return self._built.plain(self._given(model, batch))

    def _cut(self, batch: Sequence[torch.Tensor]) -> list[Batch]:
        tensors = isinstance(batch, list | tuple) and all(
            isinstance(part, torch.Tensor) and part.dim() for part in batch
        )
        lengths = {len(part) for part in batch} if tensors else set()
        if len(lengths) != 1 or 0 in lengths:
            raise UserError(
                f"a pipeline cuts a batch along the first dimension of its tensors, and needs a "
                f"tuple of tensors of one length; it got {_describe(batch)}"
            )
        (length,) = lengths
        here = [part.to(self._device, non_blocking=True) for part in batch]
        starts = range(0, length, self._micro_batch)
        return [tuple(part[i : i + self._micro_batch] for part in here) for i in starts]

    def _sizes(self, chunks: list[Batch], factor: float) -> list[float]:
        if self._units is None:
            return [factor * len(chunk[0]) for chunk in chunks]
        return [factor * float(self._units(chunk)) for chunk in chunks]

    def _shares(self, sizes: list[float]) -> list[float]:
        """Of the whole over all data ranks. A small collective."""
        total = all_reduce(sum(sizes)) / self._alike
        return [size / total if total else 0.0 for size in sizes]

    def _mean(self, losses: list[torch.Tensor], weights: list[float]) -> torch.Tensor:
        """Sum of weight x loss, and of the weights, over all ranks that have a part of it."""
        total = torch.zeros(2, dtype=torch.float64, device=self._device)
        if self._built.counts:
            for value, weight in zip(losses, weights, strict=True):
                if weight:  # a mean over nothing may be NaN
                    total[0] += weight * value.double()
                    total[1] += weight
        dist.all_reduce(total)
        return (total[0] / total[1]).float()


def _describe(batch: object) -> str:
    if not isinstance(batch, list | tuple):
        return f"a {type(batch).__name__}"
    parts = [
        f"a tensor of shape {tuple(part.shape)}"
        if isinstance(part, torch.Tensor)
        else f"a {type(part).__name__}"
        for part in batch
    ]
    return f"{type(batch).__name__} of {', '.join(parts) or 'nothing'}"

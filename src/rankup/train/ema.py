"""An exponential moving average of a model's weights, in parts as the model's (`--ema`)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping

import torch

from ..parallel.build import Built
from ..parallel.sharded import release
from ..runtime.log import print0
from ..runtime.state import local, of_model, plain_name

PREFIX = "ema."
Pair = tuple[torch.Tensor, torch.Tensor]


class Average:
    """The average of what is trained, and of running statistics: `decay * average + …` per step.

    It begins with the model's values, as torch's `AveragedModel` does.
    """

    def __init__(self, built: Built, decay: float) -> None:
        self._built, self._decay = built, decay
        still = {
            built.copies.get(plain_name(name), plain_name(name))
            for name, parameter in built.model.named_parameters()
            if not parameter.requires_grad
        }
        self._held = of_model(built.model, built.copies)
        self._averages = {
            name: value.clone()
            for name, value in self._held.tensors.items()
            if value.is_floating_point() and name not in still
        }
        # What this rank stores of them, by what one kernel can take.
        self._alike: dict[tuple[torch.device, torch.dtype], list[Pair]] = {}
        for name, average in self._averages.items():
            mine, theirs = local(average), local(self._held.tensors[name])
            if mine.numel():  # of a few rows not each rank has one
                self._alike.setdefault((mine.device, mine.dtype), []).append((mine, theirs))

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights in, after a step."""
        for pairs in self._alike.values():
            averages, values = zip(*pairs, strict=True)
            torch._foreach_lerp_(averages, values, 1 - self._decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averages for as long as the block runs; what it had is kept."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        pipeline = self._built.pipeline
        for root in [self._built.model] if pipeline is None else pipeline.stages:
            release(root)  # what was gathered would stay as it is
        for pairs in self._alike.values():
            for average, value in pairs:
                kept = value.clone()
                value.copy_(average)
                average.copy_(kept)
        self._held.settle()

    # --- in a checkpoint

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors to be saved."""
        return {PREFIX + name: average for name, average in self._averages.items()}

    def wanted(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the tensors to be filled from a checkpoint of these names."""
        return {name: average for name, average in self.state().items() if name in names}

    @torch.no_grad()
    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Go on from what was filled; what was not begins with the model's values."""
        held = self._held.tensors
        left = [name for name in self._averages if PREFIX + name not in loaded]
        for name in left:
            local(self._averages[name]).copy_(local(held[name]))
        if left:
            print0(f"the average of {len(left)} tensors begins here: the checkpoint has none")

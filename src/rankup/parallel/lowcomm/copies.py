"""Copies of a model that train by themselves and meet every few steps.

local SGD: the copies become their mean (Stich 2018, arXiv 1805.09767).
DiLoCo: an outer optimizer takes how far the copies went, on average, for a gradient (Douillard et
al. 2023, arXiv 2311.08105).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist

from ...runtime.compress.codecs import Whole, make
from ...runtime.compress.names import Compression
from ...runtime.compress.sums import Feedback, Spent, sum_over
from .flat import Cost, Flat, OfFlat, Owed

_MOMENTUM = "momentum."


class Averaging:
    """Gives all copies of a model the mean of what they hold.

    Args:
        flat: this rank's part of its copy.
        group: the ranks that hold the same part of the other copies; None for all ranks.
    """

    def __init__(self, flat: Flat, group: dist.ProcessGroup | None) -> None:
        self._flat, self._group = flat, group
        self._copies = dist.get_world_size(group)
        self._spent = Spent()

    @property
    def cost(self) -> Cost:
        """What this rank has spent so far."""
        return Cost.of(self._spent, self._held)

    @property
    def _held(self) -> int:
        return 2 * 4 * self._flat.trained  # what is given and what comes back

    def meet(self) -> None:
        """Exchange; all ranks of the group hold the same afterwards."""
        self._settle()  # or waiting for this rank's own steps would count as for others
        self._exchange()
        with self._spent.at("waited"):
            self._spent.bytes_sent += self._flat.average_buffers(self._group)
            self._settle()

    def _exchange(self) -> None:
        with self._spent.at("coding"):
            values = self._flat.gather_trained().div_(self._copies)
        values = sum_over(values, Whole(), Feedback(), self._group, self._spent)
        with self._spent.at("coding"):
            self._flat.scatter_trained(values)

    def _settle(self) -> None:
        if self._flat.device.type == "cuda":
            torch.cuda.synchronize(self._flat.device)

    def state(self) -> dict[str, torch.Tensor]:
        """What a resumed run needs beside the model: names of its own, tensors not copied."""
        return {}

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]:
        """Tensors to fill, for those of the `saved` names that this rank needs."""
        return {}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Go on from tensors that `wanted` gave and that were filled; the model was before."""


class DiLoCo(Averaging):
    """Takes what the copies went away from where they met last for the gradient of an outer SGD.

    With a step size of 1 and no momentum this is the mean. Buffers become their mean, and are sent
    as they are.

    Args:
        lr, momentum: of the outer optimizer, SGD with Nesterov momentum.
        compression: of what the copies send.
        copy: which of them this is.
    """

    def __init__(
        self,
        flat: Flat,
        group: dist.ProcessGroup | None,
        lr: float,
        momentum: float,
        compression: Compression,
        copy: int,
    ) -> None:
        super().__init__(flat, group)
        self._codec, self._feedback = make(compression), Feedback()
        debtor = OfFlat(flat, self._feedback, flat.device)
        self._owed = Owed(debtor, "difference", copy, self._copies)
        self._start = flat.gather_trained()  # where the copies met last
        self._optimizer = torch.optim.SGD(
            [self._start], lr=lr, momentum=momentum, nesterov=momentum > 0
        )
        self._momentum = torch.zeros_like(self._start) if momentum else None
        if momentum:
            self._optimizer.state[self._start]["momentum_buffer"] = self._momentum

    @property
    def _held(self) -> int:
        kept = (self._start, self._momentum, self._feedback.residual)
        return super()._held + sum(tensor.nbytes for tensor in kept if tensor is not None)

    def _exchange(self) -> None:
        with self._spent.at("coding"):
            away = (self._start - self._flat.gather_trained()).div_(self._copies)
            if isinstance(self._codec, Whole) and self._feedback.residual is not None:
                away += self._feedback.residual  # of an attempt that compressed; paid at once
                self._feedback.residual = None
        self._start.grad = sum_over(away, self._codec, self._feedback, self._group, self._spent)
        with self._spent.at("coding"):
            self._optimizer.step()
            self._start.grad = None
            self._flat.scatter_trained(self._start)

    def state(self) -> dict[str, torch.Tensor]:
        return {**self._named_momentum(), **self._owed.state()}

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]:
        momentum = {name: part for name, part in self._named_momentum().items() if name in saved}
        return {**momentum, **self._owed.wanted(saved)}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        self._owed.resume(loaded)
        self._start.copy_(self._flat.gather_trained())

    def _named_momentum(self) -> dict[str, torch.Tensor]:
        if self._momentum is None:
            return {}
        return {_MOMENTUM + name: part for name, part in self._flat.named(self._momentum).items()}

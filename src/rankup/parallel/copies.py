"""Copies of a model that train by themselves and meet every few steps.

local SGD: the copies become their mean (Stich 2018, arXiv 1805.09767).
DiLoCo: an outer optimizer takes how far the copies went, on average, for a gradient (Douillard et
al. 2023, arXiv 2311.08105).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ..runtime.state import local, plain_name

_MOMENTUM = "momentum."


@dataclass
class Cost:
    """Of one rank, or the mean over ranks.

    Attributes:
        bytes_sent: to other ranks, as each kind of exchange sends them (a ring's share of a sum).
        waited: seconds in which this rank waited for others, the sending included.
        extra_seconds: of compute that plain data parallelism does not have.
        extra_memory: bytes held beside model, gradients and optimizer state.
        measured: False where the bytes alone are known.
    """

    bytes_sent: float = 0.0
    waited: float = 0.0
    extra_seconds: float = 0.0
    extra_memory: float = 0.0
    measured: bool = True

    @contextmanager
    def at(self, what: Literal["waited", "extra_seconds"]) -> Iterator[None]:
        """Add the seconds of a block."""
        began = time.perf_counter()
        yield
        setattr(self, what, getattr(self, what) + time.perf_counter() - began)

    def __sub__(self, before: Cost) -> Cost:
        """The sums added since `before`; memory is what it is now."""
        return Cost(
            self.bytes_sent - before.bytes_sent,
            self.waited - before.waited,
            self.extra_seconds - before.extra_seconds,
            self.extra_memory,
        )

    def record(self) -> dict[str, float]:
        """For a line of `metrics.jsonl`: `bytes_sent`, and where they were measured `waited`,
        `extra_compute` (seconds) and `extra_memory` (bytes)."""
        found: dict[str, float] = {"bytes_sent": round(self.bytes_sent)}
        if self.measured:
            found |= {
                "waited": round(self.waited, 6),
                "extra_compute": round(self.extra_seconds, 6),
                "extra_memory": round(self.extra_memory),
            }
        return found

    def numbers(self) -> list[float]:
        """The numbers that may be added up over ranks, in the order of the fields."""
        return [self.bytes_sent, self.waited, self.extra_seconds, self.extra_memory]


NUMBERS = len(Cost().numbers())


def ring_bytes(size: int, ranks: int) -> int:
    """Bytes that each of `ranks` sends for the sum of `size` bytes: a ring's two rounds."""
    return 2 * size * (ranks - 1) // ranks


class Flat:
    """What copies bring together of this rank's part of a model: trained parameters, buffers.

    Parameters go as one float32 vector, of shape `(trained,)`: of a sharded one the part that this
    rank holds. Buffers (running statistics, counts) are those that a checkpoint keeps: others come
    from what all copies know.

    Args:
        names: name of a parameter here -> name under which its tied copies are kept once.

    Attributes:
        trained: how many numbers the parameters are.
        device: where the vector is.
    """

    def __init__(self, model: nn.Module, names: Mapping[str, str] | None = None) -> None:
        names = names or {}
        plain = ((plain_name(name), p) for name, p in model.named_parameters() if p.requires_grad)
        self._parameters = [(names.get(name, name), parameter) for name, parameter in plain]
        buffers = _persistent_buffers(model)
        self._buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        self._counts = [buffer for buffer in buffers if not buffer.is_floating_point()]
        self._sizes = [local(parameter).numel() for _, parameter in self._parameters]
        self.trained = sum(self._sizes)
        self.device = local(self._parameters[0][1]).device

    @torch.no_grad()
    def gather_trained(self) -> torch.Tensor:
        """The parameters' values alone, float32 of shape `(trained,)`, a copy."""
        parts = [local(parameter).reshape(-1).float() for _, parameter in self._parameters]
        return torch.cat([part.to(self.device) for part in parts])

    @torch.no_grad()
    def scatter_trained(self, values: torch.Tensor) -> None:
        """Give the parameters the values of a vector of shape `(trained,)`."""
        for (_, mine), part in zip(self._parameters, values.split(self._sizes), strict=True):
            local(mine).copy_(part.view_as(local(mine)))

    @torch.no_grad()
    def average_buffers(self, group: dist.ProcessGroup | None) -> int:
        """Give buffers the mean over the ranks of a group, and those that count in whole numbers
        the largest value; the bytes that this took."""
        ranks, sent = dist.get_world_size(group), 0
        if self._buffers:
            # In double precision, so that what is the same everywhere stays exactly that.
            parts = [local(buffer).reshape(-1).double() for buffer in self._buffers]
            values = torch.cat(parts).div_(ranks)
            dist.all_reduce(values, group=group)
            sent += ring_bytes(values.nbytes, ranks)
            for buffer, part in zip(
                self._buffers, values.split([len(part) for part in parts]), strict=True
            ):
                local(buffer).copy_(part.view_as(local(buffer)))
        return sent + self.agree_on_counts(group)

    @torch.no_grad()
    def agree_on_counts(self, group: dist.ProcessGroup | None) -> int:
        """Give buffers that count in whole numbers the largest of all ranks' values; bytes sent."""
        if not self._counts:
            return 0
        values = torch.cat([count.reshape(-1).long() for count in self._counts])
        dist.all_reduce(values, dist.ReduceOp.MAX, group)
        sizes = [count.numel() for count in self._counts]
        for count, value in zip(self._counts, values.split(sizes), strict=True):
            count.copy_(value.view_as(count))
        return ring_bytes(values.nbytes, dist.get_world_size(group))

    def named(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector of shape `(trained,)` by parameter, sharded as they are; no copies."""
        parts = values.split(self._sizes)
        return {
            name: _laid_out_like(parameter, part.view_as(local(parameter)))
            for (name, parameter), part in zip(self._parameters, parts, strict=True)
        }


def _persistent_buffers(model: nn.Module) -> list[torch.Tensor]:
    left_out = {
        id(module._buffers.get(name))
        for module in model.modules()
        for name in module._non_persistent_buffers_set
    }
    return [buffer for buffer in model.buffers() if id(buffer) not in left_out]


def _laid_out_like(parameter: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return mine
    return DTensor.from_local(
        mine,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


class Averaging:
    """Gives all copies of a model the mean of what they hold.

    Args:
        flat: this rank's part of its copy.
        group: the ranks that hold the same part of the other copies; None for all ranks.
    """

    def __init__(self, flat: Flat, group: dist.ProcessGroup | None) -> None:
        self._flat, self._group = flat, group
        self._copies = dist.get_world_size(group)
        self._spent = Cost()

    @property
    def cost(self) -> Cost:
        """What this rank has spent so far."""
        return replace(self._spent, extra_memory=self._held)

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
        with self._spent.at("extra_seconds"):
            values = self._flat.gather_trained().div_(self._copies)
        self._sum(values)
        with self._spent.at("extra_seconds"):
            self._flat.scatter_trained(values)

    def _sum(self, values: torch.Tensor) -> None:
        """Make it the sum over the copies."""
        with self._spent.at("waited"):
            dist.all_reduce(values, group=self._group)
        self._spent.bytes_sent += ring_bytes(values.nbytes, self._copies)

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

    With a step size of 1 and no momentum this is the mean. Buffers become their mean.

    Args:
        lr, momentum: of the outer optimizer, SGD with Nesterov momentum.
    """

    def __init__(
        self,
        flat: Flat,
        group: dist.ProcessGroup | None,
        lr: float,
        momentum: float,
    ) -> None:
        super().__init__(flat, group)
        self._start = flat.gather_trained()  # where the copies met last
        self._optimizer = torch.optim.SGD(
            [self._start], lr=lr, momentum=momentum, nesterov=momentum > 0
        )
        self._momentum = torch.zeros_like(self._start) if momentum else None
        if momentum:
            self._optimizer.state[self._start]["momentum_buffer"] = self._momentum

    @property
    def _held(self) -> int:
        kept = (self._start, self._momentum)
        return super()._held + sum(tensor.nbytes for tensor in kept if tensor is not None)

    def _exchange(self) -> None:
        with self._spent.at("extra_seconds"):
            away = (self._start - self._flat.gather_trained()).div_(self._copies)
        self._sum(away)
        self._start.grad = away
        with self._spent.at("extra_seconds"):
            self._optimizer.step()
            self._start.grad = None
            self._flat.scatter_trained(self._start)

    def state(self) -> dict[str, torch.Tensor]:
        return self._named_momentum()

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]:
        return {name: part for name, part in self._named_momentum().items() if name in saved}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        self._start.copy_(self._flat.gather_trained())

    def _named_momentum(self) -> dict[str, torch.Tensor]:
        if self._momentum is None:
            return {}
        return {_MOMENTUM + name: part for name, part in self._flat.named(self._momentum).items()}

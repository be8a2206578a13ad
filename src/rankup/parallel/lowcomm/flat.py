"""The vector that copies of a model bring together, its cost, and what is owed of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...runtime.compress.sums import Feedback, Spent
from ...runtime.state import local, plain_name


@dataclass(frozen=True)
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

    @staticmethod
    def of(spent: Spent, extra_memory: float) -> Cost:
        """Bytes and seconds that this rank has spent."""
        return Cost(spent.bytes_sent, spent.waited, spent.coding, extra_memory)

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
    """This rank's part of a model as a float32 vector: trained parameters, then buffers.

    Buffers are those that hold fractions (running statistics). Of a sharded parameter it has the
    part that this rank holds.

    Args:
        names: name of a parameter here -> name under which its tied copies are kept once.

    Attributes:
        trained, size: how many numbers the parameters are, and all together.
        device: where the vectors are.
    """

    def __init__(self, model: nn.Module, names: Mapping[str, str] | None = None) -> None:
        names = names or {}
        plain = ((plain_name(name), p) for name, p in model.named_parameters() if p.requires_grad)
        self._parameters = [(names.get(name, name), parameter) for name, parameter in plain]
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._counts = [b for b in model.buffers() if not b.is_floating_point()]
        self._sizes = [local(value).numel() for value in self._values()]
        self.trained = sum(self._sizes[: len(self._parameters)])
        self.size = sum(self._sizes)
        self.device = local(self._values()[0]).device

    def _values(self) -> list[torch.Tensor]:
        return [*(parameter for _, parameter in self._parameters), *self._buffers]

    @torch.no_grad()
    def gather_trained(self) -> torch.Tensor:
        """The parameters' values alone, float32 of shape `(trained,)`, a copy."""
        parts = [local(parameter).reshape(-1).float() for _, parameter in self._parameters]
        return torch.cat([part.to(self.device) for part in parts])

    @torch.no_grad()
    def scatter_trained(self, values: torch.Tensor) -> None:
        """Give the parameters the values of a vector of shape `(trained,)`."""
        sizes = self._sizes[: len(self._parameters)]
        for (_, mine), part in zip(self._parameters, values.split(sizes), strict=True):
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
        """The parameters' part of a vector by parameter, sharded as they are; no copies.

        Args:
            values: of shape `(trained,)` or longer.
        """
        found = {}
        parts = values[: self.trained].split(self._sizes[: len(self._parameters)])
        for (name, parameter), part in zip(self._parameters, parts, strict=True):
            found[name] = _laid_out_like(parameter, part.view_as(local(parameter)))
        return found

    def joined(self, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The inverse of `named`, of shape `(trained,)`."""
        parts = [local(named[name]).reshape(-1) for name, _ in self._parameters]
        return torch.cat([part.to(self.device) for part in parts])


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


class Debtor(Protocol):
    """A sender's error feedback per parameter, by name: an `OfFlat`, a `CompressedExchange`."""

    def state(self) -> dict[str, torch.Tensor]:
        """Its tensors; nothing while nothing is owed."""

    def blank(self) -> dict[str, torch.Tensor]:
        """Zeros for all of it."""

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Owe this from now on."""


class OfFlat:
    """A `Debtor`: the feedback of messages over the trained parameters of `flat`.

    Args:
        device: where the messages are made.
    """

    def __init__(self, flat: Flat, feedback: Feedback, device: torch.device) -> None:
        self._flat, self._feedback, self._device = flat, feedback, device

    def state(self) -> dict[str, torch.Tensor]:
        residual = self._feedback.residual
        return {} if residual is None else self._flat.named(residual)

    def blank(self) -> dict[str, torch.Tensor]:
        return self._flat.named(torch.zeros(self._flat.trained, device=self._device))

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._feedback.residual = self._flat.joined(state).to(self._device)


class Owed:
    """The debts of one sender among several, in a checkpoint.

    What all senders owe together is what matters: of those that are no more another one takes it
    over.

    Args:
        measure: what it is a debt of; that of something else is not taken over.
        sender, senders: which this is, and how many there are.
    """

    def __init__(
        self,
        debtor: Debtor,
        measure: Literal["gradient", "difference"],
        sender: int,
        senders: int,
    ) -> None:
        self._debtor, self._sender, self._senders = debtor, sender, senders
        self._prefix = f"residual-{measure}."

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors to save, by name."""
        return self._named(self._sender, self._debtor.state())

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]:
        """Tensors to fill, of those that were saved."""
        senders = {int(name.split(".")[1]) for name in saved if name.startswith(self._prefix)}
        found: dict[str, torch.Tensor] = {}
        for sender in sorted(senders):
            if sender % self._senders == self._sender:
                found |= self._named(sender, self._debtor.blank())
        return {name: part for name, part in found.items() if name in saved}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Owe what was filled."""
        parts = {name: part for name, part in loaded.items() if name.startswith(self._prefix)}
        if not parts:
            return
        total = self._debtor.blank()
        for name, part in parts.items():
            total[name.split(".", 2)[2]].add_(part)
        self._debtor.load(total)

    def _named(self, sender: int, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"{self._prefix}{sender}.{name}": part for name, part in parts.items()}

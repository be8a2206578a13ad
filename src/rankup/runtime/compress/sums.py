"""Sums over ranks, of compressed messages.

With bf16 and int8 each rank adds up one part of the vector: the parts go to their ranks, and the
sums come back from them, both compressed: as many values as a ring all-reduce sends. With topk,
whose messages do not add up to one as small, every rank gets every message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from ..collectives import ALL_GATHER
from .codecs import Codec, TopK, Whole


@dataclass
class Spent:
    """What exchanges have cost this rank so far.

    Attributes:
        bytes_sent: see `bytes_sent`.
        waited: seconds that the host stood in collectives; on a GPU it goes on without waiting.
        coding: seconds that the host encoded and decoded; on a GPU, told it to.
    """

    bytes_sent: int = 0
    waited: float = 0.0
    coding: float = 0.0

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        """Add the seconds of a block to `waited` or `coding`."""
        began = time.perf_counter()
        yield
        setattr(self, what, getattr(self, what) + time.perf_counter() - began)


@dataclass
class Feedback:
    """The error feedback of one sender: what a message leaves out is added to what is sent next.

    So a value that is too small to be sent adds up until it is not, and everything sent together
    with what is kept is everything given (Seide et al., 2014; Karimireddy et al., 2019).

    Attributes:
        residual: float32 of the values' shape; None before the first message.
    """

    residual: torch.Tensor | None = None

    def owed(self, values: torch.Tensor) -> torch.Tensor:
        """Values with the residual, in a tensor of their own."""
        return values.clone() if self.residual is None else values + self.residual

    def keep(self, rest: torch.Tensor) -> None:
        """Owe `rest` from now on.

        A message that is not finite has been reported as such, and whoever receives it cannot use
        it: what was owed before is owed still, and nothing of that message is.
        """
        before = torch.zeros_like(rest) if self.residual is None else self.residual
        self.residual = torch.where(torch.isfinite(rest).all(), rest, before)

    def pack(self, values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
        """A message of `values` and of what is owed: its bytes, and what they decode to.

        Args:
            values: float32 of shape `(n,)`, the same `n` each time.
        """
        owed = self.owed(values)
        data = codec.encode(owed)
        sent = codec.decode(data, values.shape[-1])
        self.keep(owed - sent)
        return data, sent


class Sum(Protocol):
    """A sum under way. Ranks must call these for their sums in the same order."""

    def turn(self) -> None:
        """Once all ranks' parts are here: start to send their sums."""

    def result(self) -> torch.Tensor:
        """The sum, float32 of shape `(n,)`, equal bit for bit on all ranks."""

    @property
    def held(self) -> int:
        """Bytes of memory that it keeps until then."""


def start(
    values: torch.Tensor,
    codec: Codec,
    feedback: Feedback,
    group: dist.ProcessGroup | None = None,
    spent: Spent | None = None,
) -> Sum:
    """Begin a sum without waiting for it; arguments as of `sum_over`."""
    spent = spent or Spent()
    ranks, n = dist.get_world_size(group), len(values)
    spent.bytes_sent += bytes_sent(codec, n, ranks)
    if ranks == 1 or n == 0 or isinstance(codec, Whole):
        return _Plain(values, group, spent)
    if isinstance(codec, TopK):
        return _Gathered(values, codec, feedback, group, spent)
    return _Dealt(values, codec, feedback, group, spent)


def sum_over(
    values: torch.Tensor,
    codec: Codec,
    feedback: Feedback,
    group: dist.ProcessGroup | None = None,
    spent: Spent | None = None,
) -> torch.Tensor:
    """The sum over the ranks of a group, float32 of shape `(n,)`, equal bit for bit on all.

    Over many calls, all sums together with the residuals of all ranks are the sum of all that was
    given. Where a value is not finite on any rank, the sum is not finite on all.

    Args:
        values: float32 of shape `(n,)`, the same `n` on all ranks; stays as it is.
        feedback: what this rank owes from earlier calls; of one `n`, and of this place alone.
        group: all ranks by default.
        spent: where the cost is noted.
    """
    summing = start(values, codec, feedback, group, spent)
    summing.turn()
    return summing.result()


def bytes_sent(codec: Codec, n: int, world_size: int) -> int:
    """Bytes that each rank sends to others for a sum of `n` values, without headers."""
    if isinstance(codec, TopK):
        return (world_size - 1) * codec.size(n)
    return 2 * (world_size - 1) * codec.size(-(-n // world_size))


class _Plain:
    """An all-reduce of the values as they are; nothing is owed."""

    def __init__(self, values: torch.Tensor, group: dist.ProcessGroup | None, spent: Spent) -> None:
        self._total, self._spent = values.clone(), spent
        several = dist.get_world_size(group) > 1 and len(values)
        self._work = dist.all_reduce(self._total, group=group, async_op=True) if several else None

    def turn(self) -> None:
        pass

    def result(self) -> torch.Tensor:
        with self._spent.at("waited"):
            if self._work is not None:
                self._work.wait()
        return self._total

    @property
    def held(self) -> int:
        return self._total.nbytes


class _Gathered:
    """Every rank's message to every rank, where they are added up in the order of ranks."""

    def __init__(
        self,
        values: torch.Tensor,
        codec: TopK,
        feedback: Feedback,
        group: dist.ProcessGroup | None,
        spent: Spent,
    ) -> None:
        self._codec, self._n, self._spent = codec, len(values), spent
        with spent.at("coding"):
            data, _ = feedback.pack(values, codec)
        self._data = data.new_empty(dist.get_world_size(group), len(data))
        self._work = _all_gather(self._data, data, group)

    def turn(self) -> None:
        pass

    def result(self) -> torch.Tensor:
        with self._spent.at("waited"):
            self._work.wait()
        with self._spent.at("coding"):
            total = torch.zeros(self._n, device=self._data.device)
            for message in self._data:
                self._codec.add(total, message)
        return total

    @property
    def held(self) -> int:
        return self._data.nbytes


class _Dealt:
    """Each rank adds up one of equal parts, the last padded with zeros.

    What a rank owes are the errors of its messages to the others, and in its own part the error of
    the sum that it sends back: one residual for both phases. Its own values enter that sum as they
    are.
    """

    def __init__(
        self,
        values: torch.Tensor,
        codec: Codec,
        feedback: Feedback,
        group: dist.ProcessGroup | None,
        spent: Spent,
    ) -> None:
        self._codec, self._feedback, self._group, self._spent = codec, feedback, group, spent
        self._n = n = len(values)
        ranks, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._part = part = -(-n // ranks)
        with spent.at("coding"):
            parts = values.new_zeros(ranks, part)
            parts.view(-1)[:n] = feedback.owed(values)
            data = codec.encode(parts)
        self._data = torch.empty_like(data)
        self._work = dist.all_to_all_single(self._data, data, group=group, async_op=True)
        with spent.at("coding"):  # while the messages are on their way
            self._own = parts[self._rank].clone()
            self._rest = parts.sub_(codec.decode(data, part))

    def turn(self) -> None:
        with self._spent.at("waited"):
            self._work.wait()
        with self._spent.at("coding"):
            parts = self._codec.decode(self._data, self._part)
            parts[self._rank] = self._own
            total = parts[0]
            for other in parts[1:]:
                total += other
            data = self._codec.encode(total)
        self._work = _all_gather(self._data, data, self._group)
        with self._spent.at("coding"):
            torch.sub(total, self._codec.decode(data, self._part), out=self._rest[self._rank])
            self._feedback.keep(self._rest.view(-1)[: self._n])
            del self._rest, self._own

    def result(self) -> torch.Tensor:
        with self._spent.at("waited"):
            self._work.wait()
        with self._spent.at("coding"):
            return self._codec.decode(self._data, self._part).reshape(-1)[: self._n]

    @property
    def held(self) -> int:
        return self._data.nbytes + self._rest.nbytes + self._own.nbytes


def _all_gather(
    into: torch.Tensor, data: torch.Tensor, group: dist.ProcessGroup | None
) -> dist.Work:
    """Start to gather `(size,)` of each rank into `(ranks, size)`."""
    work: dist.Work = getattr(dist, ALL_GATHER)(into.view(-1), data, group=group, async_op=True)
    return work

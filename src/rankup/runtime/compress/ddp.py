"""Sums of DDP's gradient buckets in fewer bytes, inside its communication hook."""

# No postponed annotations here: DDP checks those of its communication hook as objects.
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from .codecs import make
from .coded import CodecExchange
from .names import Compression
from .power import PowerExchange
from .sums import Spent


class CompressedExchange(Protocol):
    """Sums the buckets of one model, and keeps what this rank owes.

    Attributes:
        spent: what it has cost so far.
        extra_bytes: memory that it takes, beside the gradients.
    """

    spent: Spent

    @property
    def extra_bytes(self) -> int: ...

    def share(self, bucket: dist.GradBucket) -> torch.futures.Future[Any]:
        """Start the sum of a bucket over the ranks, in place.

        The future holds a list of the bucket's buffer. It is complete when the hook of the last
        bucket has returned: only there are all ranks sure to go on in the same order.
        """

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of what this rank owes, float32 in the shape of the parameter, by its name."""

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Owe what `state()` once returned on this rank, and nothing else.

        Raises:
            ValueError: a name or a shape is of another model.
        """


def compressed(model: nn.Module, compression: Compression) -> CompressedExchange | None:
    """What sums the gradients of `model` on the ranks of the default group; None if they go whole.

    Args:
        model: what DDP is around; its parameters' names are those of `state()`.
    """
    if not compression or dist.get_world_size() == 1:
        return None
    if compression.kind == "powersgd":
        return PowerExchange(model, compression.rank)
    return CodecExchange(model, make(compression))


def mean(
    exchange: CompressedExchange, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: the mean over ranks, as DDP takes it without one."""
    bucket.buffer().div_(dist.get_world_size())
    return exchange.share(bucket).then(lambda done: done.value()[0])

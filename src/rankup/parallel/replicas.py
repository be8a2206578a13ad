"""Whole copies of a model, whose gradients DDP brings together."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..runtime.compress.ddp import CompressedExchange, compressed
from ..runtime.compress.names import Compression
from ..runtime.model import exchange_by, no_buffer_sync
from ..runtime.world import World


def replicate(
    model: nn.Module, world: World, compression: Compression
) -> tuple[nn.Module, CompressedExchange | None]:
    """DDP without its own buffer exchange: the loop averages running statistics itself.

    Gradients become their mean over the ranks, compressed or not.
    """
    if world.world_size == 1:
        return model, None
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, **no_buffer_sync())
    exchange = compressed(model, compression)
    exchange_by(replica, exchange)
    return replica, exchange

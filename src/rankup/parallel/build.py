"""From a model file to a model on all ranks, always in the same order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..runtime.keys import derive
from ..runtime.model import no_buffer_sync
from ..runtime.world import World
from .initial import initialize


def build(
    build_model: Callable[[], nn.Module], world: World, seed: int, compiled: bool
) -> tuple[nn.Module, nn.Module]:
    """Build, initialize, compile, replicate.

    Returns:
        The model itself, for evaluation and checkpoints, and what training goes through: the same
        object in a group of one, DistributedDataParallel around it otherwise.
    """
    torch.manual_seed(derive(seed, "construction"))
    model = build_model()
    initialize(model, seed)
    model.to(world.device)
    if compiled:
        model.compile()  # in place: parameter names stay
    return model, replicate(model, world)


def replicate(model: nn.Module, world: World) -> nn.Module:
    """DDP without its own buffer exchange: the loop averages running statistics itself."""
    if world.world_size == 1:
        return model
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **no_buffer_sync())

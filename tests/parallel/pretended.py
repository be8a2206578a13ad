"""Ranks that are not there, on which a model is cut in one process, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore  # makes the backend known

from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.world import World


@contextmanager
def pretended(layout: Layout, rank: int) -> Iterator[Mesh]:
    """A mesh of ranks that are not there, seen from one of them."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        yield Mesh(layout, World(0, rank, torch.device("cpu"), layout.world_size))
    finally:
        dist.destroy_process_group()

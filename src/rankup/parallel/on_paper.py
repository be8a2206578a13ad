"""Ranks that are not there, on which a model is cut in one process, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ..base.errors import UserError
from ..runtime.world import World
from .layout import Layout
from .mesh import Mesh


@contextmanager
def pretended(layout: Layout, rank: int) -> Iterator[Mesh]:
    """A mesh of ranks that are not there, seen from one of them."""
    dist.init_process_group("fake", store=_fake_store(), rank=rank, world_size=layout.world_size)
    try:
        yield Mesh(layout, World(0, rank, torch.device("cpu"), layout.world_size))
    finally:
        dist.destroy_process_group()


def _fake_store() -> dist.Store:
    """The store of torch's "fake" backend, which the import makes known."""
    try:
        # Private, and the only one there is: it may move with any version.
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise UserError(
            f"a model is cut on paper with torch's 'fake' process group, which torch "
            f"{torch.__version__} does not have where 2.13 has it ({error}); install that one, or "
            f"start a run on as many ranks, which needs no such group"
        ) from None
    return FakeStore()

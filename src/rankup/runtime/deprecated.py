"""Names that ported scripts of earlier versions use; each says once what to do instead."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .context import CONTEXT
from .log import print_once
from .random_state import STREAMS


def same_random() -> None:
    """Give every rank rank 0's random state, which `setup` does by itself."""
    print_once(
        "rankup: same_random() is deprecated: setup() gives all ranks rank 0's random states, and "
        "they are alike again after each pass over a training loader; remove the call"
    )
    if dist.is_initialized() and dist.get_world_size() > 1:
        STREAMS.synchronize()


def share(value: Any) -> Any:
    """Return this rank's share of a mean over the batch: the shares of all ranks add up to it."""
    print_once(
        "rankup: share() is deprecated, as it takes every value for a mean over the batch: in the "
        "evaluation add up sums (`loss.item() * len(batch)`) and counts, and put them through "
        "rankup.total(...) behind the loop, or leave its loader as on one GPU"
    )
    mine, size = CONTEXT.current() or (1, 1)
    return value if mine == size else value * (mine / size)

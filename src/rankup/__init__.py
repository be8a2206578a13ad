"""rankup: from one GPU to the whole supercomputer.

The public names are handed on when they are first used, so that `import rankup` does not import
torch: the command has to answer at once on a login node.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.3.0"

_HOME = {
    "World": "runtime.world",
    "setup": "runtime.world",
    "destroy_process_group": "runtime.world",
    "is_root_process": "runtime.world",
    "print0": "runtime.log",
    "log_metrics": "runtime.log",
    "save0": "runtime.save",
    "save_full_model": "runtime.save",
    "load_full_model": "runtime.save",
    "save_sharded_model": "runtime.sharded",
    "load_sharded_model": "runtime.sharded",
    "rank0_first": "runtime.collectives",
    "barrier": "runtime.collectives",
    "broadcast": "runtime.collectives",
    "all_reduce": "runtime.collectives",
    "all_gather": "runtime.collectives",
    "reduce_scatter": "runtime.collectives",
    "mean": "runtime.collectives",
    "Order": "runtime.order",
    "shard": "runtime.shard",
    "wrap": "runtime.model",
    "parallelize": "parallel.user.parallelize",
    "backward": "runtime.backward",
    "count": "runtime.context",
    "batch_mean": "runtime.tally",
    "batch_sum": "runtime.tally",
    "share": "runtime.tally",
    "summed": "runtime.tally",
    "total": "runtime.tally",
    "gather": "runtime.tally",
    "deal": "runtime.shard",
    "same_random": "runtime.tally",
    "here": "runtime.save",
    "path0": "runtime.save",
    "quiet": "runtime.log",
    "Deadline": "runtime.deadline",
    "on_login_node": "site.profile",
}

# Rooms that are public themselves, as in `rankup.data.open`.
_ROOMS = ("data",)

__all__ = ["__version__", *sorted([*_HOME, *_ROOMS])]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rankup.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rankup' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rankup.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_ROOMS})

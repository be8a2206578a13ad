"""The run of a recipe that another one is held against, in the rank pool.

How it was launched is not the point of it, and processes of its own would import torch once each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankup.recipes import find
from rankup.runtime.world import World
from rankup.site import rundir
from tests.pool import RankPool


def train(ranks: RankPool, world_size: int, run: Path, words: Sequence[str | Path]) -> Path:
    """Train as `rankup run --local --nproc WORLD_SIZE --out RUN WORDS` does; the run directory."""
    name, *options = map(str, words)
    rundir.create(run)
    find(name).parse(options).prepare(run)
    ranks.run(world_size, _rank, run, name, options)
    return run


def _rank(world: World, run: Path, name: str, options: list[str]) -> None:
    find(name).run(options, run, resume=False)

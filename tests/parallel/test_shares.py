"""Under fsdp each rank keeps its share of weights, gradients and optimizer state, and no more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import DTensor

from rankup.parallel.build import Built, build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.recipes.models.transformer import Transformer
from rankup.runtime.state import local
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.pool import RankPool

from .tasks import VOCABULARY, SmallLM

LAYERS, SAMPLES = 3, 3
UNEVEN = 37  # words: no equal parts
KINDS = ("weights", "gradients", "exp_avg", "exp_avg_sq")
# What torch's trackers call that of which a rank keeps a share, and the whole peak.
_SHARED = {"Parameter", "Gradient", "Sharded Param", "Sharded Grad", "Optstate", "OptState"}


@dataclass(frozen=True)
class Kept:
    """Bytes of what a rank has after a step.

    Attributes:
        whole: shape of each parameter.
        local: kind -> parameter -> bytes.
        stored: kind -> bytes of memory behind all of them.
        peak: the tracker's categories -> bytes at the peak.
    """

    whole: dict[str, tuple[int, ...]]
    local: dict[str, dict[str, int]]
    stored: dict[str, int]
    peak: dict[str, int]


def small(
    world: World, layout: Layout, choices: Choices, layers: int, vocabulary: int = VOCABULARY
) -> tuple[SmallLM, Built]:
    """A small transformer on the ranks of a mesh."""
    task = SmallLM(TrainOptions(), layers=layers)
    task.shape = replace(task.shape, vocab_size=vocabulary)
    example = (task.loss, task.train.batch(torch.arange(SAMPLES)))
    built = build(task.build_model, Mesh(layout, world), 0, choices, example)
    assert isinstance(built.model, Transformer)
    for block in built.model.blocks.values():
        del block.dropout  # torch's counter breaks on a module that is called twice
        block.dropout = torch.clone  # type: ignore[assignment]
    return task, built


def keep(world: World, layout: Layout) -> Kept:
    task, built = small(world, layout, Choices(), LAYERS, UNEVEN)
    optimizer = torch.optim.AdamW(built.model.parameters(), lr=0.1)
    batch = task.train.batch(torch.arange(SAMPLES))
    # Gradients and optimizer state come to be in a first step, and stay.
    task.loss(built.model, batch).backward()
    optimizer.step()
    tracker: Any = MemTracker()
    if layout.dp_shard > 1:
        tracker = FSDPMemTracker(built.model, optimizer)
    else:
        tracker.track_external(built.model, optimizer)
    with tracker:
        task.loss(built.model, batch).backward()
        optimizer.step()
    [snapshot] = tracker.get_tracker_snapshot("peak").values()
    peak = {getattr(kind, "value", kind): int(size) for kind, size in snapshot.items()}
    kept: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    memory: dict[str, dict[int, int]] = {kind: {} for kind in KINDS}
    for name, parameter in built.model.named_parameters():
        state = optimizer.state[parameter]
        assert parameter.grad is not None
        tensors = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        for kind, tensor in zip(KINDS, tensors, strict=True):
            assert isinstance(tensor, DTensor) == (layout.dp_shard > 1)
            storage = local(tensor).untyped_storage()  # gradients of a unit lie in one
            memory[kind][storage.data_ptr()] = storage.nbytes()
            kept[kind][name] = local(tensor).nbytes
    whole = {name: tuple(p.shape) for name, p in built.model.named_parameters()}
    stored = {kind: sum(places.values()) for kind, places in memory.items()}
    return Kept(whole, kept, stored, peak)


def shared(kept: Kept) -> int:
    """Bytes at the peak of what is shared among the ranks."""
    return sum(size for kind, size in kept.peak.items() if kind in _SHARED)


@pytest.mark.parametrize("ranks_of", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_rank_keeps_its_share(ranks: RankPool, ranks_of: int) -> None:
    [alone] = ranks.run(1, keep, Layout())
    parts = ranks.run(ranks_of, keep, Layout(dp_shard=ranks_of))
    numbers = {name: math.prod(shape) for name, shape in alone.whole.items()}
    total = 4 * sum(numbers.values())
    # Rows come in equal parts; where they do not come out, the last part is filled up.
    part = {
        name: 4 * -(-shape[0] // ranks_of) * (numbers[name] // shape[0])
        for name, shape in alone.whole.items()
    }
    for kind in KINDS:
        assert alone.stored[kind] == total
        for found in parts:
            held = sum(found.local[kind].values())
            assert held <= found.stored[kind] <= sum(part.values()), kind
        for name, number in numbers.items():
            shares = [found.local[kind][name] for found in parts]
            assert sum(shares) == 4 * number, (kind, name)
            assert max(shares) == part[name], (kind, name)
    share = sum(part.values())
    assert total < ranks_of * share < 1.1 * total
    # AdamW keeps two numbers for each weight, and for each parameter how many steps it took.
    steps = 4 * len(numbers)
    assert shared(alone) == 4 * total + steps
    for found in parts:
        held = sum(sum(found.local[kind].values()) for kind in KINDS)
        assert held + steps <= shared(found) <= 4 * share + steps
        assert found.peak["Total"] < alone.peak["Total"] - (shared(alone) - shared(found)) / 2

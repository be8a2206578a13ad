"""The pipeline's time line: measured against theory, and drawn."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rankup.base.errors import UserError
from rankup.parallel.pipeline.cut import balance, links
from rankup.parallel.pipeline.run import Pipeline
from rankup.parallel.pipeline.schedule import Span, placement
from rankup.parallel.pipeline.stage import carve
from rankup.train.timeline import bubble, draw, idle
from tests.drawn import pipelines
from tests.pool import RankPool

SLEEP = 0.02


def test_theory() -> None:
    assert bubble("gpipe", 4, 4) == bubble("1f1b", 4, 4) == 3 / 7
    assert bubble("interleaved", 4, 8, 2) == 3 / 19
    assert bubble("naive", 4, 8) == 3 / 4
    with pytest.raises(UserError, match="no formula"):
        bubble("ZBVZeroBubble", 4, 8)


def test_idle_is_the_share_in_which_ranks_wait() -> None:
    spans = [Span(0, 0, 0, "forward", 0.0, 1.0), Span(1, 1, 0, "forward", 1.0, 2.0)]
    assert idle(spans) == 0.5
    assert idle([*spans, Span(0, 0, 1, "forward", 1.2, 2.0)], shortest=0.5) == 0.25


def test_a_drawing_is_a_picture(tmp_path: Path) -> None:
    spans = [
        Span(rank, rank, 0, kind, rank + start, rank + start + 1)
        for rank in range(2)
        for kind, start in (("forward", 0.0), ("backward", 3.0))
    ]
    draw(spans, tmp_path / "line.png")
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")


class _Sleep(torch.autograd.Function):
    """Takes 20 ms forward and 20 ms back."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP)
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP)
        return grad


class Sleeper(nn.Linear):
    """A stage whose work is sleep, so that stages need no cores of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Sleep.apply(super().forward(x))
        return result


def _sum(model: Any, batch: Any) -> torch.Tensor:
    result: torch.Tensor = model(batch[0]).sum()
    return result


def _recorded(world: Any, schedule: str, chunks: int, steps: int) -> list[list[Span]]:
    where = placement(schedule, world.world_size)
    model = nn.Sequential(*(Sleeper(2, 2) for _ in where))
    held = [stage for stage, place in enumerate(where) if place == world.rank]
    cuts = balance([1.0] * len(where), len(where))
    stages = carve(model, links(model), cuts, held)
    assert dist.group.WORLD is not None
    spans: list[Span] = []
    pipeline = Pipeline(stages, dist.group.WORLD, world.device, schedule, record=spans.append)
    batches = [(torch.ones(1, 2),)] * chunks
    found = []
    for _ in range(steps):
        spans.clear()
        dist.barrier()
        pipeline.step(batches, [1.0] * chunks, _sum)
        found.append(list(spans))
    return found


def test_every_computation_is_recorded(ranks: RankPool) -> None:
    results = ranks.run(2, _recorded, "1f1b", 3, 1)
    spans = [span for (step,) in results for span in step]
    assert len(spans) == 2 * 2 * 3
    assert {(s.rank, s.stage, s.chunk, s.kind) for s in spans} == {
        (r, r, c, k) for r in range(2) for c in range(3) for k in ("forward", "backward")
    }
    assert all(s.end - s.start >= SLEEP for s in spans)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", 4), ("1f1b", 8), ("interleaved", 8)],
)
def test_the_bubble_is_as_computed(ranks: RankPool, schedule: str, chunks: int) -> None:
    # With four ranks on two cores the clock shows who else runs there; bench/pipeline.py asks it.
    # What a schedule decides is the order in which each rank computed, and here that is timed.
    drawn = pipelines()
    orders = []
    for (spans,) in ranks.run(4, _recorded, schedule, chunks, 1):
        assert all(span.end <= later.start for span, later in pairwise(spans))
        orders.append([drawn.Op(s.stage, s.chunk, s.kind == "forward") for s in spans])
    timed = drawn.timed(orders, rounds=2 if schedule == "interleaved" else 1)
    assert drawn.bubble(timed) == pytest.approx(bubble(schedule, 4, chunks))

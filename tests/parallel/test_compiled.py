"""`--compile` changes the time a run takes, not its losses, however the model is split.

Blocks are compiled by themselves, and FSDP's and DTensor's hooks stand around or in what is
compiled: a graph that leaves one out would compute something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.pool import RankPool
from tests.train.runs import losses, train_task

from .tasks import SmallLM
from .test_same_run import SGD

# All batches of one shape: another one would be compiled as well. Validation is another graph.
OPTIONS = replace(SGD, steps=3, global_batch=8, micro_batch=4, valid_every=3, checkpoint_every=3)


@contextmanager
def _compiler(directory: Path, backend: str, graphs: int = 8) -> Iterator[Any]:
    """What is compiled is counted; to give up on something is an error, and not a warning.

    Args:
        graphs: how many of one function torch keeps, unless it is told to keep more.
    """
    import torch._dynamo
    import torch._inductor.config
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    tracing = torch._dynamo.config.patch(recompile_limit=graphs, fail_on_recompile_limit_hit=True)
    # Compiled by this process alone: others would stay in the pool.
    building = torch._inductor.config.patch(compile_threads=1)
    with tracing, building, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(directory))
        patch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=backend))
        yield counters
    torch._dynamo.reset()


def _plainly(world: World, directory: Path) -> None:
    task = SmallLM(OPTIONS, 1, n=16, held_out=4)
    assert train_task(world, task, OPTIONS, directory, False).error == ""


def _compiled(world: World, directory: Path, options: TrainOptions, backend: str) -> int:
    """Trains; how many graphs were compiled."""
    task = SmallLM(options, 1, n=16, held_out=4)
    with _compiler(directory.parent / "cache", backend) as counters:
        assert train_task(world, task, options, directory, False).error == ""
        return int(counters["stats"]["unique_graphs"])


def _assert_same(ranks: RankPool, root: Path, size: int, backend: str, **asked: Any) -> None:
    ranks.run(1, _plainly, root / "one")
    options = replace(OPTIONS, compile=True, **asked)
    graphs = ranks.run(size, _compiled, root / "split", options, backend, timeout=500)
    # A forward with gradients on each rank, and one without where there is something to validate.
    assert min(graphs) >= 1
    assert max(graphs) >= 2
    ours, theirs = torch.tensor(losses(root / "split")), torch.tensor(losses(root / "one"))
    assert len(theirs) == 3
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("strategy", "backend"), [("fsdp", "inductor"), ("tp", "aot_eager")])
def test_compiled(ranks: RankPool, tmp_path: Path, strategy: str, backend: str) -> None:
    """One with the C++ compiler, which takes most of the time, and one without."""
    _assert_same(ranks, tmp_path, 2, backend, strategy=strategy)


def _with_little_patience(world: World, directory: Path, layout: Layout, alike: bool) -> int:
    """Graphs of two blocks, of which torch would keep one: two that it would keep one of stand for
    nine of which it would keep eight."""

    def build_model() -> nn.Module:
        model = SmallLM(OPTIONS, 2).build_model()
        if not alike:
            model.get_submodule("blocks.1.dropout").p = 0.5  # type: ignore[assignment]
        return model

    with _compiler(directory, "eager", graphs=1) as counters:
        built = build(build_model, Mesh(layout, world), 0, Choices(compiled="default"))
        task = SmallLM(OPTIONS, 2)
        with torch.no_grad(), built.computing():
            task.loss(built.model, task.train.batch(torch.arange(2)))
        return int(counters["stats"]["unique_graphs"])


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_every_block_of_a_deep_model_is_compiled(
    ranks: RankPool, tmp_path: Path, alike: bool
) -> None:
    """Blocks that are cut alike share a graph; one that differs has its own, past eight too."""
    graphs = ranks.run(2, _with_little_patience, tmp_path, Layout(tp=2), alike, timeout=200)
    assert graphs == [1 if alike else 2] * 2

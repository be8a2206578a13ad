"""What is compiled is compiled: the graphs that `--compile` makes, counted under every layout.

A block that torch leaves as it is computes the right thing, slowly and without a word. So graphs
are counted: each block is in one, nothing breaks it, and an evaluation in between makes none anew.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partialmethod
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from rankup.parallel.build import Batch, Built, build
from rankup.parallel.choices import Choices, Recompute
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.recipes.language_model import cross_entropy
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.world import World
from tests.pool import RankPool
from tests.train.runs import losses, train_task

from .tasks import SmallLM
from .test_same_run import SGD

VOCABULARY, LENGTH, LAYERS = 64, 16, 2
LAYOUTS = {
    "ddp": Layout(dp_replicate=2),
    "fsdp": Layout(dp_shard=2),
    "hsdp": Layout(dp_replicate=2, dp_shard=2),
    "tp": Layout(tp=2),
    "tp x fsdp": Layout(dp_shard=2, tp=2),
    "pp": Layout(pp=2),
    "cp": Layout(cp=2),
    "cp x tp": Layout(cp=2, tp=2),
}


def _gpt() -> nn.Module:
    """With dropout, as the recipe has it unless asked otherwise."""
    return Transformer(Shape(VOCABULARY, LENGTH, LAYERS, 16, 4, dropout=0.1))


def _llama() -> nn.Module:
    return Llama(LlamaShape(LAYERS, 16, 4, 2, 32, vocab_size=VOCABULARY))


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt": _gpt, "llama": _llama}


@dataclass(frozen=True)
class Cell:
    """What is compiled: a model, on a layout, with a kind of activation checkpointing."""

    model: str
    layout: str
    recompute: Recompute
    half: bool = False

    def __str__(self) -> str:
        return f"{self.model}, {self.layout}, {self.recompute}" + ", bf16" * self.half


@dataclass(frozen=True)
class Graphs:
    """What a rank has compiled, and the losses that it has seen.

    Attributes:
        trained, evaluated, repeated: graphs after a step, an evaluation behind it, and both again.
        breaks: why torch would have cut a graph.
        uncompiled: kinds of blocks that have run as they are.
        computed, expected: losses of the compiled model and of one that is not.
    """

    trained: int
    evaluated: int
    repeated: int
    breaks: tuple[str, ...]
    uncompiled: tuple[str, ...]
    computed: list[float]
    expected: list[float]


@contextmanager
def _counted() -> Iterator[Any]:
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with pytest.MonkeyPatch.context() as patch:
        compiled = partialmethod(nn.Module.compile, backend="aot_eager")
        patch.setattr(nn.Module, "compile", compiled)
        yield counters
    torch._dynamo.reset()


def _loss(model: Any, batch: Batch) -> torch.Tensor:
    tokens, targets = batch
    return cross_entropy(model(tokens), targets)


class _Run:
    """Steps and evaluations of a model on the ranks of a layout, with their losses."""

    def __init__(self, world: World, cell: Cell, compiled: str | None) -> None:
        self.mesh = Mesh(LAYOUTS[cell.layout], world)
        half = "bfloat16" if cell.half else None
        choices = Choices(half=half, compiled=compiled, recompute=cell.recompute)  # type: ignore[arg-type]
        self.built: Built = build(MODELS[cell.model], self.mesh, 0, choices)
        self.optimizer = torch.optim.SGD(self.built.model.parameters(), lr=0.01)
        draw = torch.Generator().manual_seed(1)
        tokens = torch.randint(VOCABULARY, (2, 2, LENGTH + 1), generator=draw)
        self.batches = [
            tuple(self.mesh.sequence.mine(part) for part in (some[:, :-1], some[:, 1:]))
            for some in tokens
        ]
        self.losses: list[float] = []

    def step(self) -> None:
        torch.manual_seed(len(self.losses))
        self.built.model.train()
        with self.built.computing():
            if self.built.pipeline is not None:
                losses = self.built.pipeline.step(self.batches, [0.01, 0.01], _loss)
            else:
                losses = [self._backward(batch) for batch in self.batches]
        self.losses += map(float, losses)
        self.built.finish_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _backward(self, batch: Batch) -> torch.Tensor:
        loss = self.built.plain(_loss(self.built.replica, batch))
        (loss * 0.01).backward()
        return loss.detach()

    def evaluate(self) -> None:
        self.built.model.eval()
        losses = self.built.losses(lambda *args: self.built.plain(_loss(*args)), self.batches)
        self.losses += map(float, losses)


def _graphs(world: World, cell: Cell) -> Graphs:
    expected = _Run(world, cell, None)
    with _counted() as counters:
        run = _Run(world, cell, "default")
        counts = []
        for act in (_Run.step, _Run.evaluate, _Run.step, _Run.evaluate):
            act(expected)
            act(run)
            counts.append(int(counters["stats"]["unique_graphs"]))
        breaks = tuple(counters["graph_break"])
    trained, evaluated, _, repeated = counts
    uncompiled = tuple(run.built.uncompiled)
    return Graphs(trained, evaluated, repeated, breaks, uncompiled, run.losses, expected.losses)


def _assert_compiled(ranks: RankPool, cell: Cell) -> None:
    for graphs in ranks.run(LAYOUTS[cell.layout].world_size, _graphs, cell, timeout=250):
        assert graphs.trained >= 1, graphs
        assert (graphs.breaks, graphs.uncompiled) == ((), ()), graphs
        # One more without gradients, and none anew: neither by the evaluation nor behind it.
        assert graphs.evaluated <= 2 * graphs.trained, graphs
        assert graphs.repeated == graphs.evaluated, graphs
        # In 16 bits a graph rounds elsewhere than operators one by one do.
        within = 1e-4 if cell.half else 1e-6
        assert graphs.computed == pytest.approx(graphs.expected, rel=within), graphs


# Each model, layout and kind of checkpointing at least once.
FAST = [
    Cell("gpt", "ddp", "full", half=True),
    Cell("llama", "fsdp", "selective", half=True),
    Cell("gpt", "hsdp", "full"),
    Cell("llama", "tp", "none"),
    Cell("gpt", "tp", "selective"),
    Cell("llama", "tp x fsdp", "full"),
    Cell("gpt", "pp", "selective"),
    Cell("llama", "cp", "selective"),
]
EVERY = [
    Cell(model, layout, how)
    for model, layout, how in itertools.product(MODELS, LAYOUTS, get_args(Recompute))
]
EVERY += [Cell("llama", layout, "none", half=True) for layout in ("tp", "pp")]


@pytest.mark.parametrize("cell", FAST, ids=str)
def test_compiled(ranks: RankPool, cell: Cell) -> None:
    _assert_compiled(ranks, cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in EVERY if cell not in FAST], ids=str)
def test_compiled_everywhere(ranks: RankPool, cell: Cell) -> None:
    _assert_compiled(ranks, cell)


def _train_switched_off(world: World, directory: Path, strategy: str) -> str:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the pool takes it away again
    options = replace(SGD, strategy=strategy, compile=True)
    return train_task(world, SmallLM(options, 2), options, directory, False).error


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_is_not_compiled_ends_the_run(ranks: RankPool, tmp_path: Path, strategy: str) -> None:
    for error in ranks.run(2, _train_switched_off, tmp_path, strategy):
        assert error == (
            "RunFailed: --compile: torch made no graph of Block in the first step "
            "(TORCHDYNAMO_DISABLE=1 is set: unset it); without --compile the run goes on"
        )
    assert losses(tmp_path) == []

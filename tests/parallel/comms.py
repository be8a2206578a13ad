"""What the ranks send each other in one training step, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from rankup.parallel.build import Built, Choices, build
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.parallel.norm import global_norm
from rankup.recipes.models.transformer import Transformer
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from rankup.train.task import Batch

from .tasks import VOCABULARY, SmallLM

CHUNKS, SAMPLES = 4, 3
Message = tuple[int, tuple[int, ...]]
# Torch's names for the same thing, in its two sets of operators.
KINDS = {
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
}
# They send nothing, or are counted where torch is called to send something to one other rank.
_QUIET = ("wait_tensor", "wrap_tensor", "c10d.send", "c10d.recv")


class _Collectives(TorchDispatchMode):
    """Counts like torch's CommDebugMode, but follows no modules.

    That one follows them, and breaks where a pipeline calls a module once for each chunk.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # first it becomes what it does with its parts
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))

    def get_comm_counts(self) -> Counter[str]:
        return self.counts


@dataclass
class Step:
    """What one rank has sent in a step, and what it holds.

    Attributes:
        forward, backward: collectives; under pp all of a step's are in `forward`.
        finish, norm: those after it.
        sent, received: (global rank, shape) of the tensors to and from single other ranks.
        blocks, first, last: what it has of the model.
    """

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    finish: Counter[str] = field(default_factory=Counter)
    norm: Counter[str] = field(default_factory=Counter)
    sent: Counter[Message] = field(default_factory=Counter)
    received: Counter[Message] = field(default_factory=Counter)
    blocks: int = 0
    first: bool = True
    last: bool = True


def counted(mode: Any) -> Counter[str]:
    """Number of each kind of collective; an unknown kind is an error."""
    found: Counter[str] = Counter()
    for operator, number in mode.get_comm_counts().items():
        name = str(operator)
        kind = next((kind for part, kind in KINDS.items() if part in name), None)
        if kind is not None:
            found[kind] += number
        elif not any(quiet in name for quiet in _QUIET):
            raise AssertionError(f"{name} was counted {number} times")
    return found


@contextmanager
def _point_to_point(step: Step) -> Iterator[None]:
    """Notes what torch's pipelines send, alone or in batches: both come here in the end."""
    real = {"isend": dist.isend, "irecv": dist.irecv}
    into = {"isend": step.sent, "irecv": step.received}

    def noting(name: str) -> Any:
        def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            peer = kwargs.get("group_dst", kwargs.get("group_src"))
            into[name][dist.get_global_rank(kwargs["group"], peer), tuple(tensor.shape)] += 1
            return real[name](tensor, *args, **kwargs)

        return noted

    try:
        for name in real:
            spy = noting(name)
            for module in (dist, dist.distributed_c10d):
                setattr(module, name, spy)
        yield
    finally:
        for name, function in real.items():
            for module in (dist, dist.distributed_c10d):
                setattr(module, name, function)


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


def step(world: World, layout: Layout, choices: Choices, layers: int) -> Step:
    """One step: forward, backward, what is left to do with gradients, and their norm."""
    task, built = small(world, layout, choices, layers)
    batch = task.train.batch(torch.arange(SAMPLES))
    model = built.model
    assert isinstance(model, Transformer)
    held = (len(model.blocks), model.tokens is not None, model.head is not None)
    found = Step(blocks=held[0], first=held[1], last=held[2])

    def loss_of(called: nn.Module, batch: Batch) -> torch.Tensor:
        return built.plain(task.loss(called, batch))

    with built.computing():
        if built.pipeline is None:
            with CommDebugMode() as mode:
                loss = loss_of(built.replica, batch)
            found.forward = counted(mode)
            with CommDebugMode() as mode:
                loss.backward()
            found.backward = counted(mode)
        else:
            chunks, weights = [batch] * CHUNKS, [1.0] * CHUNKS
            built.pipeline.step(chunks, weights, loss_of)  # torch asks for shapes in the first
            with _Collectives() as other, _point_to_point(found):
                built.pipeline.step(chunks, weights, loss_of)
            found.forward = counted(other)
    with CommDebugMode() as mode:
        built.finish_gradients()
    found.finish = counted(mode)
    with CommDebugMode() as mode:
        global_norm(built.model.parameters(), built.mesh, built.copied)
    found.norm = counted(mode)
    return found

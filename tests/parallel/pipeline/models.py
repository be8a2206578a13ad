"""Small models that can be cut, and what one process computes with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rankup.parallel.choices import stages_per_rank
from rankup.parallel.pipeline.cut import balance, costs, links
from rankup.parallel.pipeline.run import Pipeline, placement
from rankup.parallel.pipeline.stage import Tie, Ties, carve, find_ties

Batch = tuple[torch.Tensor, ...]


class Pair(nn.Module):
    """Hands two tensors on, one of them whole numbers that need no gradient."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + torch.tanh(self.linear(x)) + tokens.unsqueeze(-1) / 10, tokens


class Chained(nn.Module):
    """Embedding, blocks and a head, which may be tied; tuples between the blocks."""

    def __init__(self, blocks: int = 4, dim: int = 8, vocab: int = 11, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleDict({str(i): Pair(dim) for i in range(blocks)})
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def embed(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens(tokens), tokens

    def finish(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(x))
        return result

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embed(tokens)
        for block in self.blocks.values():
            values = block(*values)
        return self.finish(*values)

    def chain(self) -> list[tuple[Callable[..., Any], list[str]]]:
        return [
            (self.embed, ["tokens"]),
            *((block, [f"blocks.{i}"]) for i, block in self.blocks.items()),
            (self.finish, ["norm", "head"]),
        ]


def token_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Sum of the cross-entropy; the batch is (inputs, targets)."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten(), reduction="sum")


def token_batches(sizes: Sequence[int], length: int = 5, vocab: int = 11) -> list[Batch]:
    draw = torch.Generator().manual_seed(3)
    return [
        (
            torch.randint(vocab, (size, length), generator=draw),
            torch.randint(vocab, (size, length), generator=draw),
        )
        for size in sizes
    ]


def chained(**options: Any) -> Chained:
    torch.manual_seed(1)
    return Chained(**options)


def alone(
    model: nn.Module, batches: Sequence[Batch], weights: Sequence[float], loss: Any = token_loss
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and gradients by name, of one process; a tied one under each of its names."""
    losses = []
    for batch, weight in zip(batches, weights, strict=True):
        value = loss(model, batch)
        (value * weight).backward()
        losses.append(value.item())
    named = model.named_parameters(remove_duplicate=False)
    return losses, {name: p.grad.clone() for name, p in named if p.grad is not None}


def cut(
    model: nn.Module, pp: int, place: int, schedule: str, args: Any = None
) -> tuple[list[Any], list[Tie], tuple[int, ...]]:
    """The stages of one place on the pp axis, ties, and who holds which stage."""
    found = links(model)
    where = placement(schedule, pp)
    assert len(where) == pp * stages_per_rank(schedule)
    cuts = balance(costs(found, model, args), len(where))
    ties = find_ties(model, found, cuts)
    held = [stage for stage, holder in enumerate(where) if holder == place]
    return carve(model, found, cuts, held), ties, where


def piped(
    world: Any, model: nn.Module, schedule: str, group: Any, pp: int, **options: Any
) -> tuple[Pipeline, Ties]:
    """A pipeline of all ranks, in one line."""
    place = world.rank % pp
    stages, ties, where = cut(model, pp, place, schedule)
    lines = [list(range(start, start + pp)) for start in range(0, world.world_size, pp)]
    summed = Ties(ties, model, where, lines)
    return Pipeline(stages, group, world.device, schedule, **options), summed

"""A small language model on generated tokens, which every layout can train."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rankup.recipes.models.transformer import Shape, Transformer
from rankup.train.optimizer import build_optimizer
from rankup.train.options import TrainOptions
from rankup.train.task import Batch, Task

VOCABULARY = 32
LENGTH = 8
_IGNORED = -100


class Sequences:
    """`n` generated sequences; every third has targets that do not count."""

    def __init__(self, n: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (n, LENGTH), generator=draw)
        # Something to learn: the next token is twice this one, and a little noise.
        self.targets = (2 * self.tokens + torch.randint(2, (n, LENGTH), generator=draw)) % 32
        self.targets[::3, LENGTH // 2 :] = _IGNORED

    def __len__(self) -> int:
        return len(self.tokens)

    def count(self, samples: torch.Tensor) -> int:
        return int((self.targets[samples] != _IGNORED).sum())

    def batch(self, samples: torch.Tensor) -> Batch:
        return self.tokens[samples], self.targets[samples]


class SmallLM(Task):
    """A transformer of `layers` blocks; `frozen` names modules that are not trained."""

    unit = "tokens"

    def __init__(
        self,
        options: TrainOptions,
        layers: int = 3,
        tied: bool = False,
        frozen: tuple[str, ...] = (),
        dropout: float = 0.0,
        n: int = 44,
        held_out: int = 7,
    ) -> None:
        self.options, self.frozen = options, frozen
        self.shape = Shape(VOCABULARY, LENGTH, layers, 16, 4, dropout, tied=tied)
        self.train, self.valid, self.test = (
            Sequences(size, seed) for seed, size in enumerate((n, held_out, held_out))
        )

    def build_model(self) -> nn.Module:
        model = Transformer(self.shape)
        for name in self.frozen:
            model.get_submodule(name).requires_grad_(False)
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.options)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        tokens, targets = batch
        logits = model(tokens).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def flops_per_unit(self, model: nn.Module) -> float:
        return 6.0 * sum(p.numel() for p in model.parameters())

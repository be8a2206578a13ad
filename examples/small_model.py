"""The model, the data and the loss of the examples by hand. None of them knows of ranks.

A causal transformer that learns a made-up language: each token is followed by one fixed other
token, so a model that has learnt the table has loss 0 and one that guesses has log(64) = 4.16.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEAD, BLOCKS = 64, 64, 16, 4
SAMPLES, TOKENS, STEPS = 16, 32, 30  # of one global batch: SAMPLES sequences of TOKENS tokens


class Embed(nn.Module):
    """Token numbers (samples, tokens) to vectors (samples, tokens, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.tokens(tokens) + self.positions(places)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:  # by size, so that a rank may hold only some of the heads
            return y.unflatten(-1, (-1, HEAD)).transpose(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each added to the stream x."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Head(nn.Module):
    """The stream x to logits (samples * tokens, VOCABULARY): a row for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x).flatten(0, 1))


def build() -> nn.Sequential:
    """The same initial weights on every rank: all draw them with one seed."""
    torch.manual_seed(0)
    return nn.Sequential(Embed(), *(Block() for _ in range(BLOCKS)), Head())


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step: tokens and, for each, the one that follows."""
    follower = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))
    here = [torch.randint(VOCABULARY, (SAMPLES,), generator=torch.Generator().manual_seed(step))]
    for _ in range(TOKENS):
        here.append(follower[here[-1]])
    sequences = torch.stack(here, dim=1)
    return sequences[:, :-1], sequences[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy per token."""
    return F.cross_entropy(logits, targets.flatten())


def leave() -> NoReturn:
    """The end of a rank: out of the group, and out of the process without Python's long farewell.

    gloo's threads drop their last tensors on their own time, and one that does so while Python
    shuts down aborts the process after all work was done (torch 2.13; `rankup.setup` waits for
    them).
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)

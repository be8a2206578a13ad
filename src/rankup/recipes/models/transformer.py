"""A causal transformer: pre-norm blocks, scaled dot-product attention (Vaswani et al., 2017;
pre-norm after Radford et al., 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Size of a transformer; `dim` is a multiple of `heads`."""

    vocab_size: int
    seq_len: int
    layers: int
    dim: int
    heads: int
    dropout: float


class Linear(nn.Linear):
    """A linear map without bias whose weights start normal with a given deviation."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        self.std = std
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class Embedding(nn.Embedding):
    """An embedding whose vectors start normal with a given deviation."""

    def __init__(self, number: int, dim: int, std: float) -> None:
        self.std = std
        super().__init__(number, dim)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class Attention(nn.Module):
    """Causal self-attention with separate query, key and value maps, so that heads can be split."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        std = 1 / math.sqrt(shape.dim)
        self.query = Linear(shape.dim, shape.dim, std)
        self.key = Linear(shape.dim, shape.dim, std)
        self.value = Linear(shape.dim, shape.dim, std)
        # What is added to the residual stream shrinks with depth, so that its sum does not grow.
        self.output = Linear(shape.dim, shape.dim, std / math.sqrt(2 * shape.layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, length, self.heads, -1).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.output(y.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    """Two linear maps with a GELU between, four times as wide inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        std = 1 / math.sqrt(shape.dim)
        self.up = Linear(shape.dim, 4 * shape.dim, std)
        self.down = Linear(4 * shape.dim, shape.dim, std / math.sqrt(8 * shape.layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(F.gelu(self.up(x)))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised copy and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.dim)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.dim)
        self.feed_forward = FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        result: torch.Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return result


class Transformer(nn.Module):
    """Token numbers of shape (batch, length) -> logits of shape (batch, length, vocab_size)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = Embedding(shape.vocab_size, shape.dim, std=0.02)
        self.positions = Embedding(shape.seq_len, shape.dim, std=0.02)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleDict({str(i): Block(shape) for i in range(shape.layers)})
        self.norm = nn.LayerNorm(shape.dim)
        self.head = Linear(shape.dim, shape.vocab_size, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks.values():
            x = block(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result

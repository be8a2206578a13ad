"""A Llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention and SwiGLU.

Touvron et al. (2023), Llama 2 (2023) and 3 (2024); rotary positions after Su et al. (2021), in the
halves that Hugging Face's weights are written for; grouped queries after Ainslie et al. (2023).
Logits are those of transformers' `LlamaForCausalLM`. It knows nothing of parallelism: `tensor_plan`
and `chain` say how it may be cut.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from ...parallel.context import WholeSequence
from ..llama import LlamaShape, RopeScaling
from .transformer import Embedding, Linear, decoder_plan, document_limits

_STD = 0.02


def frequencies(shape: LlamaShape) -> list[float]:
    """Return the radians per position of each pair of numbers of a head."""
    size = shape.dim // shape.heads
    plain = [shape.theta ** (-2 * i / size) for i in range(size // 2)]
    scaling = shape.scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return [one / scaling.factor for one in plain]
    return [_llama3(one, scaling) for one in plain]


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    turns = scaling.length * frequency / (2 * math.pi)  # within the length of pre-training
    kept = min(1.0, max(0.0, (turns - scaling.low) / (scaling.high - scaling.low)))
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + half) of each head by its position.

    Args:
        x: of shape (batch, length, heads, size of a head).
        cos, sin: of the angles, of shape (length, half the size of a head).
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention in which several query heads share a key and a value head."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.head_dim = shape.dim // shape.heads
        self.sequence = WholeSequence()
        queries, keys = shape.heads * self.head_dim, shape.kv_heads * self.head_dim
        self.query = Linear(shape.dim, queries, _STD)
        self.key = Linear(shape.dim, keys, _STD)
        self.value = Linear(shape.dim, keys, _STD)
        self.output = Linear(queries, shape.dim, _STD / (2 * shape.layers) ** 0.5)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        batch, length, _ = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            # By the size of a head, not by their number: a rank may hold a part of the heads.
            return y.view(batch, length, -1, self.head_dim)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        # Of a stage of a pipeline the tables are those of the longest sequence, in float32.
        cos, sin = (table.narrow(0, 0, length).to(q.dtype) for table in (cos, sin))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = self.sequence.attend(q, k, v, mask)
        result: torch.Tensor = self.output(y.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020): a gate of SiLU on one map, times another."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate = Linear(shape.dim, shape.ffn, _STD)
        self.up = Linear(shape.dim, shape.ffn, _STD)
        self.down = Linear(shape.ffn, shape.dim, _STD / (2 * shape.layers) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised copy and added to the stream."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, shape.eps)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.dim, shape.eps)
        self.feed_forward = FeedForward(shape)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        result: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Llama(nn.Module):
    """Token numbers of shape (batch, length) -> logits of shape (batch, length, vocab_size).

    It may be given the `boundaries` of documents too, which spare their mask on a GPU.

    Args:
        end: the token behind each document, where attention is of one document; None: of all that
            the model is given. Rotary positions only tell how far two tokens are apart.
        longest: tokens of the longest sequence that it will be given; None: those of the shape.

    Attributes:
        cos, sin: of the angle by which each position turns each pair of numbers of a head.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self, shape: LlamaShape, end: int | None = None, longest: int | None = None
    ) -> None:
        super().__init__()
        self.shape, self.end = shape, end
        self.sequence = WholeSequence()
        self.tokens = Embedding(shape.vocab_size, shape.dim, std=_STD)
        self.blocks = nn.ModuleDict({str(i): Block(shape) for i in range(shape.layers)})
        self.norm = nn.RMSNorm(shape.dim, shape.eps)
        self.head = Linear(shape.dim, shape.vocab_size, _STD)
        if shape.tied:
            self.head.weight = self.tokens.weight
        # Not among what a checkpoint holds: shape and length say all of it.
        size = (longest or shape.longest, shape.dim // shape.heads // 2)
        self.register_buffer("cos", torch.empty(size, dtype=torch.float32), persistent=False)
        self.register_buffer("sin", torch.empty(size, dtype=torch.float32), persistent=False)
        self.rankup_fill_buffers()

    @torch.no_grad()
    def rankup_fill_buffers(self) -> None:
        """Fill the tables of rotary positions, which have no values on meta."""
        if not self.cos.is_meta:
            # By the host, so that they are the same on every device.
            rates = torch.tensor(frequencies(self.shape), dtype=torch.float32, device="cpu")
            angles = torch.arange(len(self.cos), device="cpu")[:, None].float() * rates
            self.cos.copy_(angles.cos())
            self.sin.copy_(angles.sin())

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after the last block -> logits."""
        result: torch.Tensor = self.head(self.norm(x))
        return result

    def forward(self, tokens: torch.Tensor, boundaries: torch.Tensor | None = None) -> torch.Tensor:
        x = self.tokens(tokens)
        length, size = tokens.shape[1], self.shape.dim // self.shape.heads
        mask = document_limits(x, tokens, boundaries, self.end, self.sequence, size)
        cos, sin = (self.sequence.rows(t, length).to(x.dtype) for t in (self.cos, self.sin))
        for block in self.blocks.values():
            x = block(x, cos, sin, mask)
        return self.finish(x)

    def _through(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """One step of a pipeline, which has each sequence whole."""
        result: torch.Tensor = block(x, self.cos, self.sin)
        return result

    def chain(self) -> list[tuple[Callable[..., torch.Tensor], list[str]]]:
        """The steps that `forward` is made of, each with the modules that it uses."""
        return [
            (self.tokens, ["tokens"]),
            *(
                (functools.partial(self._through, block), [f"blocks.{name}"])
                for name, block in self.blocks.items()
            ),
            (self.finish, ["norm", "head"]),
        ]

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        """How the modules can be cut over ranks: attention by heads, the rest by features."""
        return decoder_plan("gate", "up")

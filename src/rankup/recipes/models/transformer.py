"""A causal transformer: pre-norm blocks, scaled dot-product attention (Vaswani et al., 2017).

Pre-norm and initial values after GPT-2 (Radford et al., 2019): all maps start normal with 0.02, and
those that add to the residual stream smaller by the square root of their number, so that the
stream's deviation does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from ...parallel.context import WholeSequence, packs
from ...parallel.tensor.styles import (
    SEQUENCE,
    EmbeddingToSequence,
    GatherSequence,
    PartOfDropout,
    PositionsToSequence,
    Replicated,
)

_STD = 0.02


def document_mask(tokens: torch.Tensor, end: int, sequence: WholeSequence) -> torch.Tensor:
    """Return which tokens each one attends to: itself, and those before it in its document.

    Args:
        tokens: of this rank, of shape (batch, length).
        end: the token behind each document, which belongs to it.

    Returns:
        bool of shape (batch, 1, length, length of the whole sequence).
    """
    own = sequence.positions(tokens.shape[1], tokens.device)
    ends = sequence.whole(tokens) == end
    document = ends.cumsum(1) - ends.long()
    same = document[:, own, None] == document[:, None, :]
    before = own[:, None] >= torch.arange(ends.shape[1], device=tokens.device)
    return (same & before).unsqueeze(1)


def document_limits(
    x: torch.Tensor,
    tokens: torch.Tensor,
    boundaries: torch.Tensor | None,
    end: int | None,
    sequence: WholeSequence,
    head_size: int,
) -> torch.Tensor | None:
    """Return what keeps attention within documents, as `attend` takes it; None where it need not.

    Args:
        x: the stream.
        boundaries: of the documents, if the batch came with them.
    """
    if end is None:
        return None
    if boundaries is not None and packs(x, head_size):
        return boundaries
    return document_mask(tokens, end, sequence)


def document_positions(tokens: torch.Tensor, end: int, sequence: WholeSequence) -> torch.Tensor:
    """Return the place of each token in its document, of the tokens' shape."""
    whole = sequence.whole(tokens)
    places = torch.arange(whole.shape[1], device=tokens.device).expand_as(whole)
    begins = torch.zeros_like(places)
    begins[:, 1:] = torch.where(whole[:, :-1] == end, places[:, 1:], 0)
    return sequence.mine(places - begins.cummax(1).values)


def decoder_plan(*inner: str) -> dict[str, ParallelStyle]:
    """The tensor-parallel plan of embedding, blocks, norm and head.

    Args:
        inner: names of the maps into the inside of the feed-forward part.
    """
    into = [f"attention.{name}" for name in ("query", "key", "value")]
    into += [f"feed_forward.{name}" for name in inner]
    return {
        "tokens": EmbeddingToSequence(),
        "blocks.*.attention_norm": Replicated(parts=True),
        "blocks.*.attention": GatherSequence(),
        "blocks.*.feed_forward_norm": Replicated(parts=True),
        "blocks.*.feed_forward": GatherSequence(),
        **{f"blocks.*.{name}": ColwiseParallel() for name in into},
        "blocks.*.attention.output": RowwiseParallel(output_layouts=SEQUENCE),
        "blocks.*.feed_forward.down": RowwiseParallel(output_layouts=SEQUENCE),
        "norm": Replicated(parts=True),
        "head": ColwiseParallel(input_layouts=SEQUENCE, use_local_output=False),
    }


@dataclass(frozen=True)
class Shape:
    """Size of a transformer; `dim` is a multiple of `heads`.

    Attributes:
        tied: the head's weight is the token embedding's (Press and Wolf, 2017).
        prior: the head has a bias, for how frequent each token is.
    """

    vocab_size: int
    seq_len: int
    layers: int
    dim: int
    heads: int
    dropout: float
    tied: bool = False
    prior: bool = False


class Linear(nn.Linear):
    """A linear map without bias whose weights start normal with a given deviation."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        self.std = std
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class Head(nn.Linear):
    """Logits, with a bias that starts from given ones: what is known before anything is learned.

    Args:
        logits: of shape (outputs,); None: all alike.
    """

    def __init__(
        self, inputs: int, outputs: int, std: float, logits: npt.NDArray[np.float32] | None
    ) -> None:
        self.std, self.logits = std, logits
        super().__init__(inputs, outputs)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        nn.init.zeros_(self.bias)
        if self.logits is not None and not self.bias.is_meta:
            with torch.no_grad():
                self.bias.copy_(torch.from_numpy(self.logits))


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
        self.head_dim = shape.dim // shape.heads
        self.sequence = WholeSequence()
        self.query = Linear(shape.dim, shape.dim, _STD)
        self.key = Linear(shape.dim, shape.dim, _STD)
        self.value = Linear(shape.dim, shape.dim, _STD)
        self.output = Linear(shape.dim, shape.dim, _STD / (2 * shape.layers) ** 0.5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            # By the size of a head, not by their number: a rank may hold a part of the heads.
            return y.view(batch, length, -1, self.head_dim).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        y = self.sequence.attend(q, k, v, mask)
        result: torch.Tensor = self.output(y.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    """Two linear maps with a GELU between, four times as wide inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.dim, 4 * shape.dim, _STD)
        self.down = Linear(4 * shape.dim, shape.dim, _STD / (2 * shape.layers) ** 0.5)

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

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        result: torch.Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return result


class Transformer(nn.Module):
    """Token numbers of shape (batch, length) -> logits of shape (batch, length, vocab_size).

    It may be given the `boundaries` of documents too, which spare their mask on a GPU.

    Args:
        logits: what the head's bias starts from, where the shape has a prior.
        end: the token behind each document, where attention and positions are of one document;
            None: they are of all that the model is given.
    """

    def __init__(
        self,
        shape: Shape,
        logits: npt.NDArray[np.float32] | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.end = shape, end
        self.sequence = WholeSequence()
        self.tokens = Embedding(shape.vocab_size, shape.dim, std=_STD)
        self.positions = Embedding(shape.seq_len, shape.dim, std=_STD)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleDict({str(i): Block(shape) for i in range(shape.layers)})
        self.norm = nn.LayerNorm(shape.dim)
        self.head: nn.Linear = (
            Head(shape.dim, shape.vocab_size, _STD, logits)
            if shape.prior
            else Linear(shape.dim, shape.vocab_size, _STD)
        )
        if shape.tied:
            self.head.weight = self.tokens.weight

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token numbers -> the stream of shape (batch, length, dim) that the blocks add to."""
        if self.end is None:
            positions = self.sequence.positions(tokens.shape[1], tokens.device).unsqueeze(0)
        else:
            positions = document_positions(tokens, self.end, self.sequence)
        result: torch.Tensor = self.dropout(self.tokens(tokens) + self.positions(positions))
        return result

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after the last block -> logits."""
        result: torch.Tensor = self.head(self.norm(x))
        return result

    def forward(self, tokens: torch.Tensor, boundaries: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embed(tokens)
        size = self.shape.dim // self.shape.heads
        mask = document_limits(x, tokens, boundaries, self.end, self.sequence, size)
        for block in self.blocks.values():
            x = block(x, mask)
        return self.finish(x)

    def chain(self) -> list[tuple[Callable[..., torch.Tensor], list[str]]]:
        """The steps that `forward` is made of, each with the modules that it uses."""
        return [
            (self.embed, ["tokens", "positions", "dropout"]),
            *((block, [f"blocks.{name}"]) for name, block in self.blocks.items()),
            (self.finish, ["norm", "head"]),
        ]

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        """How the modules can be cut over ranks: attention by heads, the rest by features.

        Between the maps, where each position is by itself, a rank has a part of the sequence
        (Korthikanti et al., 2022); the logits stay cut by the vocabulary, also in the loss.
        """
        dropped = {name: PartOfDropout() for name in ("dropout", "blocks.*.dropout")}
        return {**decoder_plan("up"), "positions": PositionsToSequence(), **dropped}

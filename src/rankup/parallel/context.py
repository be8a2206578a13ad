"""Context parallel: the ranks of a group share each sequence, and bring keys and values together.

A sequence of 2 C chunks lies on C ranks, chunks i and 2 C - 1 - i on rank i: under a causal mask
an early chunk has few keys and a late one many, so that all ranks have equal work. In attention
keys and values are gathered from all ranks, and their gradients scattered back as sums, as Llama 3
was trained (Grattafiori et al., 2024, section 3.3.2); all else works on each token by itself.

A model takes part if its modules ask an attribute `sequence` for the places of tokens and for
attention.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes

from ..base.errors import UserError


class WholeSequence:
    """Tokens of which this rank has all: nothing is cut, and nothing sent."""

    def positions(self, length: int, device: torch.device) -> torch.Tensor:
        """Return the places in the whole sequence of the `length` tokens of this rank."""
        return torch.arange(length, device=device)

    def rows(self, table: torch.Tensor, length: int) -> torch.Tensor:
        """Return of a table with a row per position those of the `length` tokens of this rank."""
        if length > len(table):
            raise ValueError(
                f"a sequence of {length} tokens, where the model was made for at most {len(table)}"
            )
        return table[:length]

    def mine(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part along dimension 1."""
        return x

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        """Bring the ranks' parts along dimension 1 together, without gradients."""
        return x

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute causal attention of tensors of shape (batch, heads, length, size of a head).

        Several heads of queries may share one of keys and values.

        Args:
            mask: bool of shape (batch, 1, queries of this rank, all keys), which is causal itself.
        """
        return _attention(q, k, v, mask)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | CausalBias | None
) -> torch.Tensor:
    shared = k.shape[1] != q.shape[1]
    if shared and mask is not None and not isinstance(mask, CausalBias):
        # With both, torch has only the kernel on GPUs that holds all scores at once.
        times = q.shape[1] // k.shape[1]
        k, v, shared = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared
    )


def _causal(queries: int, keys: int) -> CausalBias:
    """Return the bias of queries that stand at the end of the keys."""
    if torch.compiler.is_compiling():
        return causal_lower_right(queries, keys)
    with _disable_current_modes():  # in those of activation checkpointing it cannot be made
        return causal_lower_right(queries, keys)


class SharedSequence(WholeSequence):
    """Tokens that the ranks of a group share.

    Args:
        rank, size: of this process in `group`.
    """

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup) -> None:
        self._size, self._group = size, group
        self._chunks = (rank, 2 * size - 1 - rank)

    def positions(self, length: int, device: torch.device) -> torch.Tensor:
        each = length // 2
        parts = [torch.arange(n * each, (n + 1) * each, device=device) for n in self._chunks]
        return torch.cat(parts)

    def rows(self, table: torch.Tensor, length: int) -> torch.Tensor:
        each = length // 2
        return torch.cat([table[n * each : (n + 1) * each] for n in self._chunks])

    def mine(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % (2 * self._size):
            raise UserError(
                f"--cp {self._size} cuts a sequence into {2 * self._size} equal chunks, and this "
                f"one has {x.shape[1]} tokens; give a length that is a multiple"
            )
        chunks = x.chunk(2 * self._size, dim=1)
        return torch.cat([chunks[n] for n in self._chunks], dim=1)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._joined(x, 1)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        k, v = self._joined(torch.stack((k, v)), 3)
        if mask is not None:
            return _attention(q, k, v, mask)
        found = []
        for chunk, number in zip(q.chunk(2, dim=2), self._chunks, strict=True):
            each = chunk.shape[2]
            end = (number + 1) * each  # no later key counts
            found.append(_attention(chunk, k[:, :, :end], v[:, :, :end], _causal(each, end)))
        return torch.cat(found, dim=2)

    def _joined(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Gather the ranks' parts along `dim`, in the order of the sequence."""
        parts = [part.chunk(2, dim=dim) for part in _Gather.apply(x, self._size, self._group)]
        early, late = zip(*parts, strict=True)
        return torch.cat([*early, *reversed(late)], dim=dim)


class _Gather(torch.autograd.Function):
    """All-gather whose gradient is the sum over the ranks, each its own part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        found = x.new_empty(size, *x.shape)
        dist.all_gather_into_tensor(found.view(-1), x.reshape(-1), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        found = torch.empty_like(gradient[0])
        whole = gradient.contiguous().view(-1)
        dist.reduce_scatter_tensor(found.view(-1), whole, group=ctx.group)
        return found, None, None


def share(model: nn.Module, sequence: SharedSequence) -> None:
    """Let a model compute on a rank's part of each sequence, in place.

    Raises:
        UserError: the model is not made for it.
    """
    modules = [m for m in model.modules() if hasattr(m, "sequence")]
    if not modules:
        raise UserError(
            f"--cp shares sequences among ranks, and {type(model).__name__} does not say where it "
            "needs a whole one; leave --cp away: the recipe language-model has models for it"
        )
    for module in modules:
        module.sequence = sequence  # type: ignore[assignment]

"""Context parallel: the ranks of a group share each sequence, and bring keys and values together.

A sequence of 2 C chunks lies on C ranks, chunks i and 2 C - 1 - i on rank i: under a causal mask
an early chunk has few keys and a late one many, so that all ranks have equal work. In attention
keys and values are gathered from all ranks, and their gradients scattered back as sums, as Llama 3
was trained (Grattafiori et al., 2024, section 3.3.2); all else works on each token by itself.

A model takes part if its modules ask an attribute `sequence` for the places of tokens and for
attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import CausalVariant

from ..base.errors import UserError
from ..runtime.collectives import ALL_GATHER, REDUCE_SCATTER

try:  # from torch 2.10 on; with shared heads from 2.12
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    PACKS = False
else:
    PACKS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_HALVES = (torch.bfloat16, torch.float16)
_all_gather, _reduce_scatter = getattr(dist, ALL_GATHER), getattr(dist, REDUCE_SCATTER)


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
        return table.narrow(0, 0, length)

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
                Or, where `packs` says so, int32 of shape (documents + 1,): where each document
                begins among the tokens of all rows, one row after another, and where the last ends.
        """
        if mask is not None and mask.ndim == 1:
            return _within_documents(q, k, v, mask)
        return _attention(q, k, v, mask)


def packs(x: torch.Tensor, head_size: int) -> bool:
    """Return True where attention within documents needs no mask: their boundaries are enough.

    Args:
        x: what queries, keys and values are computed from.
    """
    return PACKS and x.is_cuda and _has_flash(x.device, x.dtype, head_size)


def _has_flash(device: torch.device, kind: torch.dtype, head_size: int) -> bool:
    # On AMD's GPUs torch's own kernels stand behind these names, with limits of their own.
    nvidia = device.type == "cuda" and torch.version.hip is None
    fits = kind in _HALVES and head_size % 8 == 0 and head_size <= 256
    return nvidia and fits and _is_ampere(device.index or 0)


def _is_new(index: int) -> bool:
    """Return True for a GPU that FlashAttention is made for: of Ampere's generation or later."""
    return torch.cuda.get_device_capability(index) >= (8, 0)


# In what is compiled, too, a plain fact.
_is_ampere: Callable[[int], bool] = torch.compiler.assume_constant_result(_is_new)  # type: ignore[no-untyped-call]


def _within_documents(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: torch.Tensor
) -> torch.Tensor:
    batch, heads, length, size = q.shape
    q, k, v = (x.transpose(1, 2).reshape(batch * length, -1, size) for x in (q, k, v))
    shared = k.shape[1] != heads
    # No document is longer than a row. How long the longest is would have to come from the GPU,
    # and all that it spares are thread blocks that end where they begin.
    y = varlen_attn(
        q,
        k,
        v,
        boundaries,
        boundaries,
        length,
        length,
        window_size=(-1, 0),
        enable_gqa=shared,
    )
    assert isinstance(y, torch.Tensor)
    return y.view(batch, length, heads, size).transpose(1, 2)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    shared = k.shape[1] != q.shape[1]
    if shared and mask is not None:
        # With both, torch has only the kernel on GPUs that holds all scores at once.
        (k, v), shared = _for_each_query(q, k, v), False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared
    )


def _for_each_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values with as many heads as the queries have."""
    times = q.shape[1] // k.shape[1]
    return (k, v) if times == 1 else (k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def attend_at_the_end(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of queries that stand at the end of the keys.

    By operators for which causal means just that: in `scaled_dot_product_attention` queries stand
    at the beginning, and what torch has for the end, `causal_lower_right`, is not compiled.
    """
    if _has_flash(q.device, q.dtype, q.shape[-1]):
        y: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        return y
    if q.is_cuda and torch.version.hip is None and q.shape[-1] % 8 == 0:
        parts = (x.transpose(1, 2) for x in (q, *_for_each_query(q, k, v)))
        lengths = (None,) * 5  # all rows are as long, and there is no bias
        causal = int(CausalVariant.LOWER_RIGHT)
        y = torch.ops.aten._efficient_attention_forward(*parts, *lengths, 0.0, causal, True)[0]
        return y.transpose(1, 2)
    queries, keys = q.shape[2], k.shape[2]
    mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return _attention(q, k, v, mask)


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
            found.append(attend_at_the_end(chunk, k[:, :, :end], v[:, :, :end]))
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
        _all_gather(found.view(-1), x.reshape(-1), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        found = torch.empty_like(gradient[0])
        whole = gradient.contiguous().view(-1)
        _reduce_scatter(found.view(-1), whole, group=ctx.group)
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

"""Float32 values as fewer bytes, and back.

A message in which a value was not finite decodes to something not finite: a NaN is reported to
whoever receives it, never turned into plausible numbers. Everything is computed along the last
dimension, on the device of the values, without waiting for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from .names import Compression

_TINY = torch.finfo(torch.float32).tiny
_MOST = 2**31 - 1  # places are int32


class Codec(Protocol):
    """How values are written. Leading dimensions are messages of their own."""

    def size(self, n: int) -> int:
        """Bytes of a message of `n` values."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Float32 of shape `(…, n)` as uint8 of shape `(…, size(n))`."""

    def decode(self, data: torch.Tensor, n: int) -> torch.Tensor:
        """Uint8 of shape `(…, size(n))` as float32 of shape `(…, n)`."""


@dataclass(frozen=True)
class Whole:
    """All values as they are."""

    def size(self, n: int) -> int:
        return 4 * n

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return _bytes(values.clone())

    def decode(self, data: torch.Tensor, n: int) -> torch.Tensor:
        return _view(data, torch.float32).clone()


@dataclass(frozen=True)
class Half:
    """All values rounded to bfloat16, off by 2^-8 of themselves at most.

    What is larger than bfloat16 can say (3.39e38) becomes infinite.
    """

    def size(self, n: int) -> int:
        return 2 * n

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return _bytes(values.to(torch.bfloat16))

    def decode(self, data: torch.Tensor, n: int) -> torch.Tensor:
        return _view(data, torch.bfloat16).float()


@dataclass(frozen=True)
class Int8:
    """Blocks of values as whole multiples of 1/127 of their largest (Dettmers, 2016).

    A value is off by 1/254 of the largest of its block at most. The scales, float32, come first;
    the last block may be short. A block of nothing but numbers near the smallest there are (its
    largest below 1.5e-36) is sent as zeros.
    """

    block: int = 256

    def size(self, n: int) -> int:
        return 4 * self._blocks(n) + n

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        n = values.shape[-1]
        blocks = self._cut(values)
        # A NaN is the largest; a scale that is not finite makes its whole block so again.
        scales = blocks.abs().amax(-1) / 127
        scales = torch.where(scales < _TINY, 0.0, scales)
        inverse = torch.where(scales == 0, 0.0, 1 / scales)
        whole = (blocks * inverse.unsqueeze(-1)).round_().to(torch.int8).flatten(-2)
        return torch.cat([_bytes(scales), _bytes(whole)[..., :n]], -1)

    def decode(self, data: torch.Tensor, n: int) -> torch.Tensor:
        head = 4 * self._blocks(n)
        scales = _view(data[..., :head], torch.float32)
        blocks = self._cut(data[..., head:].view(torch.int8))
        return (blocks * scales.unsqueeze(-1)).flatten(-2)[..., :n]

    def _blocks(self, n: int) -> int:
        return -(-n // self.block)

    def _cut(self, values: torch.Tensor) -> torch.Tensor:
        """Shape `(…, n)` as `(…, blocks, block)`, with zeros at the end."""
        blocks = self._blocks(values.shape[-1])
        return _padded(values, blocks * self.block, 0).unflatten(-1, (blocks, self.block))


@dataclass(frozen=True)
class TopK:
    """The largest values with their places, zeros elsewhere (Aji and Heafield, 2017).

    Attributes:
        fraction: of the values that are sent, one at least.
    """

    fraction: float

    def count(self, n: int) -> int:
        """How many of `n` values are sent."""
        # Rounded, or 0.07 of 100 would be 8.
        return min(n, max(1, math.ceil(round(self.fraction * n, 6))))

    def size(self, n: int) -> int:
        return 8 * self.count(n)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """See `Codec`.

        Raises:
            ValueError: more than 2^31 - 1 values.
        """
        n = values.shape[-1]
        if n > _MOST:
            raise ValueError(f"topk numbers places with 32 bits, for {_MOST} values; got {n}")
        places = largest(values.abs(), self.count(n))
        return torch.cat([_bytes(places.int()), _bytes(values.gather(-1, places))], -1)

    def decode(self, data: torch.Tensor, n: int) -> torch.Tensor:
        places, values = self._parts(data)
        return values.new_zeros(*data.shape[:-1], n).scatter_(-1, places, values)

    def add(self, total: torch.Tensor, data: torch.Tensor) -> None:
        """Add a message to float32 values of shape `(n,)`, in place."""
        total.index_add_(0, *self._parts(data))

    def _parts(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places, values = data.chunk(2, -1)
        return _view(places, torch.int32).long(), _view(values, torch.float32)


def make(compression: Compression) -> Codec:
    """The codec of a compression.

    Raises:
        ValueError: powersgd, which approximates matrices and has no message of its own.
    """
    if compression.kind == "powersgd":
        raise ValueError("powersgd is for the gradients of ddp alone; give bf16, int8 or topk")
    if compression.kind == "topk":
        return TopK(compression.fraction)
    known: dict[str, Codec] = {"none": Whole(), "bf16": Half(), "int8": Int8()}
    return known[compression.kind]


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Places of the `k` largest of the last dimension, in any order; a NaN is larger than all.

    The k columns with the largest maxima hold the k largest values, so that these are looked for
    among few: on a CPU four times as fast as `torch.topk` for one in a hundred.
    """
    n = values.shape[-1]
    rows = math.isqrt(n // k) if k else 1
    if rows < 3:
        return values.topk(k, sorted=False).indices
    table = _padded(values, n + -n % rows, -1).unflatten(-1, (rows, -1))
    columns = table.amax(-2).topk(k, sorted=False).indices
    few = table.take_along_dim(columns.unsqueeze(-2), -1).flatten(-2)
    found = few.topk(k, sorted=False).indices
    return found // k * table.shape[-1] + columns.gather(-1, found % k)


def _padded(values: torch.Tensor, n: int, with_: float) -> torch.Tensor:
    """The last dimension made `n` long; where it is so already, no copy."""
    missing = n - values.shape[-1]
    return F.pad(values, (0, missing), value=with_) if missing else values


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


def _view(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as numbers; a part that starts between two numbers is copied first."""
    flat = data.reshape(-1)
    if flat.storage_offset() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(*data.shape[:-1], data.shape[-1] // dtype.itemsize)

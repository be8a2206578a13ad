"""The order of samples as a function: position in the epoch -> sample, at any world size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .keys import derive

ROUNDS = 10
# Slices are permuted in pieces that stay in a core's cache.
_PIECE = 1 << 15
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Order:
    """A keyed bijection on `range(n)`: a random permutation that is never stored.

    A Feistel network on the smallest power of two above `n`, with cycle walking back into range
    (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Any position can be
    asked for at any time, so a place in a run is three integers, `(seed, epoch, consumed)`.

        order = Order(1_281_167, seed=0, epoch=3)
        order[1000:1256]                # samples at those positions, int64 tensor of shape (256,)
        order[17]                       # one sample, int
        order(torch.tensor([5, 2]))     # samples at any positions, same shape

    Args:
        n: number of samples, 0 <= n < 2**62.
        seed: of the permutation.
        epoch: each has a permutation of its own.
    """

    n: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.n < 1 << 62:
            raise ValueError(f"Order needs 0 <= n < 2**62, got {self.n}")

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, positions: int | slice) -> int | torch.Tensor:
        if isinstance(positions, slice):
            chosen = range(self.n)[positions]
            stop = chosen.stop if chosen else chosen.start  # arange refuses an empty [4:2]
            return self(torch.arange(chosen.start, stop, chosen.step))
        if not -self.n <= positions < self.n:
            raise IndexError(f"position {positions} is outside an order of {self.n} samples")
        return int(self(torch.tensor([positions % self.n])))

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Samples at `positions`, an int64 tensor of any shape with values in `range(n)`.

        Raises:
            IndexError: a position outside `range(n)`.
        """
        flat = positions.reshape(-1).to(torch.int64)
        if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= self.n):
            raise IndexError(f"a position is outside an order of {self.n} samples")
        if self.n <= 1:
            return positions.clone()
        keys = [derive(self.seed, "order", self.epoch, i) & _WORD for i in range(ROUNDS)]
        # Above n strictly: on a full power of two a Feistel network gives even permutations only.
        bits = max(6, self.n.bit_length())
        pieces = [self._walk(piece, bits, keys) for piece in torch.split(flat, _PIECE)]
        return torch.cat(pieces).reshape(positions.shape) if pieces else flat.clone()

    def _walk(self, values: torch.Tensor, bits: int, keys: list[int]) -> torch.Tensor:
        values = _permute(values, bits, keys)
        outside = (values >= self.n).nonzero().squeeze(1)
        while outside.numel():
            values[outside] = _permute(values[outside], bits, keys)
            outside = outside[values[outside] >= self.n]
        return values


def _permute(values: torch.Tensor, bits: int, keys: list[int]) -> torch.Tensor:
    """An unbalanced Feistel network on `bits`-bit integers; each round swaps the two halves."""
    low = bits // 2
    high = bits - low
    for key in keys:
        right = values & ((1 << low) - 1)
        # A multiply-xorshift hash of (right, key): 32 bits times 30 stays below the sign bit.
        mixed = (right ^ key).mul_(0x2C1B3C6D)
        mixed.bitwise_xor_(mixed >> 31).bitwise_and_(_WORD).mul_(0x297A2D39)
        mixed.bitwise_right_shift_(24).bitwise_and_((1 << high) - 1)
        mixed.bitwise_xor_(values >> low)
        values = mixed.bitwise_or_(right.bitwise_left_shift_(high))
        low, high = high, low
    return values

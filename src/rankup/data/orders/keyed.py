"""Many small random permutations at once, each with a key and a size of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..index import Int64s, UInt64s

ROUNDS = 10
_SMALL = 31
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_WORD = (1 << 64) - 1


def keys(base: int, *parts: npt.NDArray[np.integer]) -> UInt64s:
    """A key for each row of `parts`, which are integers >= 0 of equal shape.

    The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014), once for each part. Written out here, since numpy's own generators
    may change between versions and an order may not.
    """
    state = np.full(parts[0].shape, base, np.uint64)
    for part in parts:
        state = _mixed(state + (part.astype(np.uint64) + _ONE) * _GOLDEN)
    return state


def permuted(places: Int64s, sizes: Int64s, keys: UInt64s) -> Int64s:
    """The place that each place goes to, in the permutation of `range(size)` that has the key.

    A Feistel network with cycle walking, as `runtime.order.Order`, but one for each element. Small
    sizes are ranked instead: a network of few bits is not uniform, and of more walks for long.

    Args:
        places: int64 (k,), 0 <= places < sizes.
        sizes: int64 (k,), each below 2**52.
        keys: uint64 (k,) of `keys`.
    """
    small = sizes <= _SMALL
    if small.all():
        return _ranked(places, sizes, keys)
    if small.any():
        found = np.empty_like(places)
        found[small] = _ranked(places[small], sizes[small], keys[small])
        found[~small] = permuted(places[~small], sizes[~small], keys[~small])
        return found
    # The power of two strictly above, as in `Order`; a float64 counts exactly that far.
    bits = np.frexp(sizes.astype(np.float64))[1].astype(np.uint64)
    limits = sizes.astype(np.uint64)
    values = _network(places.astype(np.uint64), bits, keys)
    out = np.flatnonzero(values >= limits)
    while len(out):
        values[out] = _network(values[out], bits[out], keys[out])
        out = out[values[out] >= limits[out]]
    return values.astype(np.int64)


def _ranked(places: Int64s, sizes: Int64s, keys: UInt64s) -> Int64s:
    """Each place has a random number, and goes to where that stands among those of its size."""
    own = _mixed(keys + (places.astype(np.uint64) + _ONE) * _GOLDEN)
    ranks = np.zeros(len(places), np.int64)
    for other in range(int(sizes.max(initial=0))):
        number = _mixed(keys + np.uint64((other + 1) * int(_GOLDEN) & _WORD))
        before = (number < own) | ((number == own) & (other < places))
        ranks += before & (other < sizes)
    return ranks


def _network(values: UInt64s, bits: UInt64s, keys: UInt64s) -> UInt64s:
    low = bits >> _ONE
    high = bits - low
    state = keys
    for _ in range(ROUNDS):
        state = state + _GOLDEN
        right = values & ((_ONE << low) - _ONE)
        mixed = _mixed(state + right * _MIX2) >> (np.uint64(64) - high)
        mixed ^= values >> low
        values = (right << high) | mixed
        low, high = high, low
    return values


def _mixed(state: UInt64s) -> UInt64s:
    state = (state ^ (state >> np.uint64(30))) * _MIX1
    state = (state ^ (state >> np.uint64(27))) * _MIX2
    mixed: UInt64s = state ^ (state >> np.uint64(31))
    return mixed

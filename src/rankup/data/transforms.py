"""What a transform is: a plain function of a sample's bytes and of random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..runtime.keys import derive

# (bytes of a sample, or a dict of them by field; its random numbers) -> anything that collates
Transform = Callable[[Any, np.random.Generator], Any]


@runtime_checkable
class Shaped(Protocol):
    """A transform whose result has one shape, and is written where it belongs in the batch.

    Attributes:
        shape, dtype: of a sample.
        channels_last: it is (height, width, channels), and batches are handed out as
            (n, channels, height, width) in torch's channels-last memory format.
        releases_gil: it spends its time in C without the interpreter's lock: threads then do.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> npt.DTypeLike: ...
    @property
    def channels_last(self) -> bool: ...
    @property
    def releases_gil(self) -> bool: ...

    def into(
        self, data: bytes | memoryview, rng: np.random.Generator, out: npt.NDArray[Any]
    ) -> None:
        """Make a sample in `out`, an array of `shape` and `dtype`.

        Raises:
            BadContainer: the bytes cannot be decoded.
        """
        ...

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> npt.NDArray[Any]:
        """A sample as an array of its own."""
        ...


def key_of(seed: int, epoch: int) -> int:
    """What `rng` makes an epoch's random numbers from."""
    return derive(seed, "augment", epoch)


def rng(key: int, sample: int) -> np.random.Generator:
    """The random numbers of one sample in one epoch: the same on every rank and in every worker.

    Philox, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    SC 2011); making one takes microseconds.

    Args:
        key: of `key_of`.
    """
    return np.random.Generator(np.random.Philox(key=np.array([key, sample], np.uint64)))

"""Transforms: plain functions of a sample's bytes and of random numbers of its own."""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from ..base.errors import UserError
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
    """Return the key that `rng` makes an epoch's random numbers from."""
    return derive(seed, "augment", epoch)


def rng(key: int, sample: int) -> np.random.Generator:
    """The random numbers of one sample in one epoch: the same on every rank and in every worker.

    Philox, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    SC 2011); making one takes microseconds.

    Args:
        key: of `key_of`.
    """
    return np.random.Generator(np.random.Philox(key=np.array([key, sample], np.uint64)))


class Generators:
    """`rng` of one sample after another, in a sixth of the time.

    A new generator asks the system for randomness that is then not used. What this one gives is
    that sample's until the next one is asked for.

    Args:
        key: of `key_of`.
    """

    def __init__(self, key: int) -> None:
        self._generator = rng(key, 0)
        self._bits = self._generator.bit_generator
        self._begin: Any = self._bits.state
        self._key = self._begin["state"]["key"]

    def of(self, sample: int) -> np.random.Generator:
        """The random numbers of a sample, from their beginning."""
        self._key[1] = sample
        self._bits.state = self._begin
        return self._generator

    def used(self) -> bool:
        """Return True where anything was drawn for the last sample."""
        return bool(np.any(self._bits.state["state"]["counter"]))


# Whether the generators of the process are ours while a batch is made: not in threads, which all
# would draw from the same ones.
OWN_GENERATORS: ContextVar[bool] = ContextVar("own_generators", default=False)


def seed_process(key: int, sample: int) -> None:
    """Seed what a transform draws from behind `rng`'s back: torch's, Python's, numpy's generators.

    Then libraries of transforms, which know of no others, are as repeatable. Does nothing where
    these generators are not ours, see `OWN_GENERATORS`.
    """
    if OWN_GENERATORS.get():
        seed = derive(key, "process", sample)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def own_generators() -> Iterator[None]:
    """Have the process's generators for a batch, and leave them as they were."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    token = OWN_GENERATORS.set(True)
    try:
        yield
    finally:
        OWN_GENERATORS.reset(token)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


@dataclass(frozen=True)
class Seeded:
    """See `seeded`."""

    function: Callable[[Any], Any]
    releases_gil: bool = False

    def __call__(self, data: Any, rng: np.random.Generator) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "seeded(…) sets the random generators of the whole process, and was called in a "
                "thread beside the training loop: give the Loader kind='processes', or workers=0"
            )
        seeds = rng.integers(0, 2**32, 3).tolist()
        with own_generators():
            random.seed(seeds[0])
            np.random.seed(seeds[1])
            # Not torch.manual_seed, which sets the GPU's generator, too.
            torch.default_generator.manual_seed(seeds[2])
            return self.function(data)


def seeded(function: Callable[[Any], Any]) -> Seeded:
    """A transform of a function that draws from the generators of torch, numpy and random.

    They are seeded by each sample's own random numbers before, and are as they were after. So
    transforms of torchvision make the same sample on every rank and in every worker of torch's own
    DataLoader:

        PackedDataset(path, "train", seeded(lambda data: augment(to_image(decode(data)))))

    A `Loader` without threads does that by itself for every plain function. The generators belong
    to the process: in threads this is an error, and a Loader with kind="auto" takes processes.

    Args:
        function: of a sample's bytes; it travels to worker processes, where spawn pickles it.

    Raises:
        UserError: it is called in another thread than the main one.
    """
    return Seeded(function)


def check_made(name: str, function: object) -> None:
    """See that a function is not a class of such functions, which was not made.

    Raises:
        UserError: it is.
    """
    if isinstance(function, type) and any("__call__" in vars(one) for one in function.__mro__):
        short = function.__name__
        raise UserError(f"{name}={short} is a class; write what it is made with: {short}(...)")


def check(transform: Any) -> None:
    """See that it can be called with (data, rng), before a worker finds out.

    Raises:
        UserError: it cannot.
    """
    if transform is None:
        return
    check_made("transform", transform)
    called = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if not callable(called):
        raise UserError(f"transform={transform!r} is no function of (bytes, rng)")
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of C code: not known
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise UserError(
            f"transform={name} takes {signature}, and a transform is a function of (bytes, rng); "
            f"one that draws from torch's own generators, as torchvision's: "
            f"rankup.data.photos.seeded(lambda data: ...)"
        ) from None

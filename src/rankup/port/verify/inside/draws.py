"""Random numbers of a rank: their states, and draws that are aligned between the runs.

What a variational model, a generator or a diffusion draws for a batch has a row per sample. In a
run that is compared by its numbers each row comes from a stream of its own, keyed by the sample and
by the call, so that a sample has the same ones on any rank. Whatever else is drawn for a batch
comes from states that are seeded by the batch (`data.py`).
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

from ....sandbox.inside.journal import Journal

SEED = 20251
_NOTE = "random numbers drawn for a batch: a sample has the same ones on any rank"
_IN_PLACE = (
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
)
# Functions of `numpy.random`, and where among their arguments `size` stands; -1: all are sizes.
_NUMPY = {
    "rand": -1,
    "randn": -1,
    "random": 0,
    "random_sample": 0,
    "standard_normal": 0,
    "choice": 1,
    "exponential": 1,
    "poisson": 1,
    "beta": 2,
    "binomial": 2,
    "gamma": 2,
    "laplace": 2,
    "lognormal": 2,
    "normal": 2,
    "randint": 2,
    "uniform": 2,
}


@dataclass
class Progress:
    """How far a rank's script has come, known to all hooks of its process.

    Attributes:
        phase: the purpose of the loader drawn from last.
        epochs: passes over one data set in which the model was trained.
        steps, backwards: so far.
        drawn: samples of the training batch drawn last.
        batch: the samples of the batch drawn last, whatever its purpose.
        calls: for random numbers since then.
    """

    journal: Journal
    phase: Literal["start", "train", "eval"] = "start"
    epochs: int = 0
    steps: int = 0
    backwards: int = 0
    drawn: int = 0
    batch: list[Any] = field(default_factory=list)
    calls: int = 0
    _noted: set[str] = field(default_factory=set)

    def note(self, text: str) -> None:
        """Record, once, what is changed to make the runs comparable."""
        if text not in self._noted:
            self._noted.add(text)
            self.journal.tell("note", text=text)


def states() -> tuple[Any, Any, Any]:
    """Return the random states of Python, NumPy and torch."""
    import numpy as np
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore(kept: tuple[Any, Any, Any]) -> None:
    """Set what `states` returned."""
    import numpy as np
    import torch

    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])


def seed(key: object) -> None:
    """Seed Python, NumPy and torch by the text of a key."""
    import numpy as np
    import torch

    number = zlib.crc32(repr(key).encode())
    random.seed(number)
    np.random.seed(number)
    torch.random.default_generator.manual_seed(number)


def fingerprints() -> dict[str, str]:
    """Return a hash of each random state."""
    import numpy as np
    import torch

    numpy: Any = np.random.get_state()
    found = {
        "Python's random": repr(random.getstate()).encode(),
        "NumPy's random": numpy[1].tobytes() + repr(numpy[2:]).encode(),
        "torch's random": torch.get_rng_state().numpy().tobytes(),
    }
    return {
        name: hashlib.blake2b(value, digest_size=8).hexdigest() for name, value in found.items()
    }


class Draws:
    """Changes the functions of torch and NumPy that draw a row for each sample of a batch."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def install(self, torch: Any) -> None:
        """All that is drawn without a generator of the script's own."""
        import numpy as np

        for name in ("randn", "rand"):
            fill = getattr(torch, name)
            setattr(torch, name, self._sized(torch, fill))
            like = getattr(torch, f"{name}_like")
            setattr(torch, f"{name}_like", self._like(torch, like, fill))
        torch.randint = self._integers(torch, torch.randint)
        torch.randint_like = self._by_rows(torch, torch.randint_like, own_generator=False)
        for name in ("bernoulli", "poisson", "multinomial"):
            setattr(torch, name, self._by_rows(torch, getattr(torch, name)))
        torch.normal = self._normal(torch, torch.normal)
        for name in _IN_PLACE:
            setattr(torch.Tensor, name, self._in_place(torch, getattr(torch.Tensor, name)))
        for name, place in _NUMPY.items():
            setattr(np.random, name, self._numpy(np, name, place))

    def _sized(self, torch: Any, fill: Any) -> Any:
        @wraps(fill)
        def sized(*args: Any, **kwargs: Any) -> Any:
            rest = dict(kwargs)
            size = rest.pop("size", args[0] if len(args) == 1 else args)
            if not self._row_each(size) or {"generator", "out"} & kwargs.keys():
                return fill(*args, **kwargs)
            return self._stacked(torch, rest, lambda _, own: fill(tuple(size[1:]), **own))

        return sized

    def _like(self, torch: Any, original: Any, fill: Any) -> Any:
        @wraps(original)
        def like(given: Any, **kwargs: Any) -> Any:
            plain = not kwargs.keys() - {"dtype", "device", "requires_grad"}
            if not plain or not self._row_each(given.shape):
                return original(given, **kwargs)
            rest = {"dtype": given.dtype, **kwargs}
            return self._stacked(torch, rest, lambda _, own: fill(tuple(given.shape[1:]), **own))

        return like

    def _integers(self, torch: Any, randint: Any) -> Any:
        @wraps(randint)
        def integers(*args: Any, **kwargs: Any) -> Any:
            rest = dict(kwargs)
            bounds = args if "size" in kwargs else args[:-1]
            size = rest.pop("size", args[-1] if args else ())
            if not self._row_each(size) or {"generator", "out"} & kwargs.keys():
                return randint(*args, **kwargs)
            return self._stacked(
                torch, rest, lambda _, own: randint(*bounds, size=tuple(size[1:]), **own)
            )

        return integers

    def _by_rows(self, torch: Any, original: Any, *, own_generator: bool = True) -> Any:
        """For a function whose first argument has a row per sample."""

        @wraps(original)
        def by_rows(given: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._row_each(given.shape) or {"generator", "out"} & kwargs.keys():
                return original(given, *args, **kwargs)
            if own_generator:
                return self._stacked(
                    torch, kwargs, lambda row, own: original(given[row], *args, **own)
                )
            kept = torch.get_rng_state()
            try:  # it takes no generator
                rows = []
                for row, number in enumerate(self._seeds()):
                    torch.random.default_generator.manual_seed(number)
                    rows.append(original(given[row], *args, **kwargs))
                return torch.stack(rows)
            finally:
                torch.set_rng_state(kept)

        return by_rows

    def _normal(self, torch: Any, normal: Any) -> Any:
        @wraps(normal)
        def rows(*args: Any, **kwargs: Any) -> Any:
            rest = dict(kwargs)
            values = [*args, *(rest.pop(name) for name in ("mean", "std") if name in rest)]
            size = rest.pop("size", None)
            if len(values) == 3 and size is None:
                size = values.pop()
            shaped = [one for one in values if isinstance(one, torch.Tensor) and one.dim()]
            shape = size if size is not None else shaped[0].shape if shaped else ()
            if not self._row_each(shape) or {"generator", "out"} & kwargs.keys():
                return normal(*args, **kwargs)
            if size is not None:
                return self._stacked(
                    torch, rest, lambda _, own: normal(*values, size=tuple(shape[1:]), **own)
                )

            def one(row: int, own: dict[str, Any]) -> Any:
                return normal(
                    *(value[row] if _has_rows(value) else value for value in values), **own
                )

            return self._stacked(torch, rest, one)

        return rows

    def _in_place(self, torch: Any, original: Any) -> Any:
        @wraps(original)
        def in_place(given: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._row_each(given.shape) or kwargs.get("generator") is not None:
                return original(given, *args, **kwargs)
            for row, number in enumerate(self._seeds()):
                own = torch.Generator().manual_seed(number)
                original(given[row], *args, generator=own, **kwargs)
            return given

        return in_place

    def _numpy(self, np: Any, name: str, place: int) -> Any:
        original = getattr(np.random, name)

        @wraps(original)
        def rows(*args: Any, **kwargs: Any) -> Any:
            rest = dict(kwargs)
            before = args[:place] if place >= 0 else ()
            size = args if place < 0 else args[place] if len(args) > place else rest.pop("size", ())
            size = (size,) if isinstance(size, int) else size
            together = name == "choice" and not (args[2:3] or (rest.get("replace", True),))[0]
            shaped = any(np.ndim(value) for value in (*before, *rest.values()))
            if not self._row_each(size) or together or (shaped and name != "choice"):
                return original(*args, **kwargs)
            after = args[place + 1 :] if place >= 0 else ()
            shape = tuple(size[1:])
            found = []
            for number in self._seeds():
                draw = getattr(np.random.RandomState(number), name)
                given = shape if place < 0 else (*before, shape or None, *after)
                found.append(draw(*given, **rest))
            return np.array(found)

        return rows

    def _row_each(self, size: Any) -> bool:
        if not isinstance(size, tuple | list) or not size:
            return False
        return bool(self._progress.batch) and size[0] == len(self._progress.batch)

    def _seeds(self) -> list[int]:
        """Return a seed for each sample of the batch, others at each call."""
        progress = self._progress
        progress.calls += 1
        progress.note(_NOTE)
        keys = [f"{one}/{progress.backwards}/{progress.calls}" for one in progress.batch]
        return [zlib.crc32(key.encode()) for key in keys]

    def _stacked(
        self, torch: Any, options: dict[str, Any], draw: Callable[[int, dict[str, Any]], Any]
    ) -> Any:
        rest = dict(options)
        learned = rest.pop("requires_grad", False)
        rows = []
        for row, number in enumerate(self._seeds()):
            own = torch.Generator().manual_seed(number)
            rows.append(draw(row, {**rest, "generator": own}))
        found = torch.stack(rows)
        return found.requires_grad_() if learned else found


def _has_rows(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 0

"""Random numbers of a rank: their states, and draws that are aligned between the runs.

What a variational model, a generator or a diffusion draws for a batch has a row per sample. In a
run that is compared by its numbers each row comes from a stream of its own, keyed by the sample and
by the call, so that a sample has the same ones on any rank. Whatever else is drawn for a batch
comes from states that are seeded by the batch (`data.py`).
"""

from __future__ import annotations

import hashlib
import pickle
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....sandbox.inside.hooks import replaces
from ....sandbox.inside.journal import Journal

SEED = 20251
_NOTE = "random numbers drawn for a batch: a sample has the same ones on any rank"
_TORCH = (
    "bernoulli", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like",
)  # fmt: skip
_IN_PLACE = (
    "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_",
    "geometric_",
)  # fmt: skip
# Functions of `numpy.random`, and where among their arguments `size` stands; -1: all are sizes.
_NUMPY = {
    **dict.fromkeys(("rand", "randn"), -1),
    **dict.fromkeys(("random", "random_sample", "standard_normal"), 0),
    **dict.fromkeys(("choice", "exponential", "poisson"), 1),
    **dict.fromkeys(("beta", "binomial", "gamma", "laplace", "lognormal"), 2),
    **dict.fromkeys(("normal", "randint", "uniform"), 2),
}


@dataclass
class Progress:
    """How far a rank's script has come, known to all hooks of its process.

    Attributes:
        drew_last: the data set and the pass of the batch drawn last.
        behind: called where a loop over batches has ended.
        epochs: passes over one data set in which the model was trained.
        steps, backwards: so far.
        drawn: samples of the training batch drawn last.
        graded: a batch was drawn with gradients.
        batch: the samples of the batch drawn last, whatever its purpose.
        calls: for random numbers since then.
        drawings: since the last backward, the passes of which batches were drawn one after the
            other, and the nodes of the graph that modules have made of them.
    """

    journal: Journal
    drew_last: tuple[int, int] | None = None
    behind: Callable[[], None] = lambda: None
    epochs: int = 0
    steps: int = 0
    backwards: int = 0
    drawn: int = 0
    graded: bool = False
    batch: list[Any] = field(default_factory=list)
    calls: int = 0
    drawings: list[tuple[set[tuple[int, int]], list[Any]]] = field(default_factory=list)

    def drew(self, key: tuple[int, int]) -> None:
        """Take a batch for one with those before it, as of `zip(one, other)`, until a forward."""
        self.drew_last = key
        if not self.drawings or self.drawings[-1][1]:
            self.drawings.append((set(), []))
        self.drawings[-1][0].add(key)

    def aside(self, root: Any) -> list[tuple[int, int]]:
        """The passes of which a batch was drawn and looked at, and is no part of a loss."""
        drawings, self.drawings = self.drawings, []
        if len(drawings) < 2 or getattr(root, "grad_fn", None) is None:
            return []
        reached, waiting = set(), [root.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in reached:
                reached.add(node)
                waiting += [one for one, _ in node.next_functions]
        used = {key for keys, nodes in drawings if not reached.isdisjoint(nodes) for key in keys}
        return [key for keys, nodes in drawings if nodes for key in keys - used]

    def note(self, text: str) -> None:
        """Record, once, what is changed to make the runs comparable."""
        if self.journal.once("note", text):
            self.journal.tell("note", text=text)

    def leave(self, text: str) -> None:
        """Record, once, what is not compared."""
        if self.journal.once("unseen", text):
            self.journal.tell("unseen", text=text)


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
    python, numpy, torch = states()
    values = {"Python's": python, "NumPy's": numpy, "torch's": torch.numpy()}
    return {
        f"{name} random": hashlib.blake2b(pickle.dumps(value), digest_size=8).hexdigest()
        for name, value in values.items()
    }


class Draws:
    """Changes the functions of torch and NumPy that draw a row for each sample of a batch."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def install(self, torch: Any) -> None:
        """All that is drawn without a generator of the script's own."""
        import numpy as np

        for name in _TORCH:
            self._torch(torch, torch, name)
        for name in _IN_PLACE:
            self._torch(torch, torch.Tensor, name)
        for name, place in _NUMPY.items():
            self._numpy(np, name, place)

    def _torch(self, torch: Any, owner: Any, name: str) -> None:
        in_place, least = name.endswith("_"), 1 + (name == "multinomial")

        @replaces(owner, name)
        def rows(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if args and all(isinstance(one, int) for one in args):
                args = (args,)  # randn(2, 3)
            given = args[:1] if in_place else (*args, *kwargs.values())
            own = any(kwargs.get(name) is not None for name in ("generator", "out"))
            if own or not any(self._has_rows(one, least) for one in given):
                return original(*args, **kwargs)
            learned = kwargs.pop("requires_grad", False)
            found, kept = [], torch.get_rng_state()
            try:
                for row, number in enumerate(self._seeds()):
                    torch.random.default_generator.manual_seed(number)
                    mine = [self._row(one, row) for one in args]
                    named = {name: self._row(one, row) for name, one in kwargs.items()}
                    found.append(original(*mine, **named))
            finally:
                torch.set_rng_state(kept)
            if in_place:
                return args[0]
            return torch.cat(found).requires_grad_() if learned else torch.cat(found)

    def _numpy(self, np: Any, name: str, place: int) -> None:
        @replaces(np.random, name)
        def rows(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            size = args if place < 0 else args[place] if len(args) > place else kwargs.get("size")
            size = (size,) if isinstance(size, int) else size
            together = name == "choice" and not (args[2:3] or (kwargs.get("replace", True),))[0]
            others = (*args[: max(0, place)], *(kwargs[one] for one in kwargs if one != "size"))
            shaped = name != "choice" and any(np.ndim(value) for value in others)
            if not self._has_rows(size) or together or shaped:
                return original(*args, **kwargs)
            one = self._row(size, 0)
            if place < 0:
                args = one
            elif len(args) > place:
                args = (*args[:place], one, *args[place + 1 :])
            else:
                kwargs["size"] = one
            draws = (getattr(np.random.RandomState(number), name) for number in self._seeds())
            return np.concatenate([draw(*args, **kwargs) for draw in draws])

    def _has_rows(self, value: Any, least: int = 1) -> bool:
        """True for a tensor, or the size of one, with a row for each sample of the batch."""
        shape = getattr(value, "shape", value)
        if not isinstance(shape, tuple | list) or len(shape) < least:
            return False
        return bool(self._progress.batch) and shape[0] == len(self._progress.batch)

    def _row(self, value: Any, row: int) -> Any:
        if not self._has_rows(value):
            return value
        return (1, *value[1:]) if isinstance(value, tuple | list) else value[row : row + 1]

    def _seeds(self) -> list[int]:
        """Return a seed for each sample of the batch, others at each call."""
        progress = self._progress
        progress.calls += 1
        progress.note(_NOTE)
        keys = [f"{one}/{progress.backwards}/{progress.calls}" for one in progress.batch]
        return [zlib.crc32(key.encode()) for key in keys]

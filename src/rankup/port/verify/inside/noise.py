"""Random numbers that a script draws for a batch: those of a sample are its own, on any rank.

What a variational model, a generator or a diffusion draws for a batch has a row per sample. Each
row comes from a stream of its own here, keyed by the sample and by the call.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import wraps
from typing import Any

from ....login.fetch.inside.journal import Journal
from .progress import Progress

_Fill = Callable[[tuple[int, ...], Any], Any]


class Noise:
    """Changes the functions of torch that make random tensors."""

    def __init__(self, progress: Progress, journal: Journal) -> None:
        self._progress, self._journal = progress, journal

    def install(self, torch: Any) -> None:
        """What is drawn without a generator of the script's own, with a row per sample."""
        randn, rand, randint = torch.randn, torch.rand, torch.randint
        for name, fill in (("randn", randn), ("rand", rand)):
            setattr(torch, name, self._sized(torch, fill))
            like = getattr(torch, f"{name}_like")
            setattr(torch, f"{name}_like", self._like(torch, like, fill))

        @wraps(randint)
        def integers(*args: Any, **kwargs: Any) -> Any:
            size = kwargs.get("size", args[-1] if args else ())
            if not self._one_row_each(size) or kwargs.get("generator") is not None:
                return randint(*args, **kwargs)
            bounds = args[: len(args) - ("size" not in kwargs)]
            rest = {key: value for key, value in kwargs.items() if key != "size"}
            return self._rows(
                torch, size, lambda shape, own: randint(*bounds, shape, generator=own, **rest)
            )

        torch.randint = integers

    def _sized(self, torch: Any, fill: Any) -> Any:
        @wraps(fill)
        def sized(*args: Any, **kwargs: Any) -> Any:
            size = kwargs.get("size", args[0] if len(args) == 1 else args)
            if not self._one_row_each(size) or {"generator", "out"} & kwargs.keys():
                return fill(*args, **kwargs)
            rest = {key: value for key, value in kwargs.items() if key != "size"}
            return self._rows(torch, size, lambda shape, own: fill(shape, generator=own, **rest))

        return sized

    def _like(self, torch: Any, original: Any, fill: Any) -> Any:
        @wraps(original)
        def like(given: Any, **kwargs: Any) -> Any:
            plain = not kwargs.keys() - {"dtype", "device", "requires_grad"}
            if not plain or not self._one_row_each(given.shape):
                return original(given, **kwargs)
            kwargs.setdefault("dtype", given.dtype)
            return self._rows(
                torch, given.shape, lambda shape, own: fill(shape, generator=own, **kwargs)
            )

        return like

    def _one_row_each(self, size: Any) -> bool:
        if not isinstance(size, tuple | list) or not size:
            return False
        return bool(self._progress.batch) and size[0] == len(self._progress.batch)

    def _rows(self, torch: Any, size: Any, fill: _Fill) -> Any:
        progress = self._progress
        progress.calls += 1
        if progress.first("noise"):
            text = "random numbers drawn for a batch: a sample has the same ones on any rank"
            self._journal.tell("note", text=text)
        rows = []
        for sample in progress.batch:
            key = f"{sample}/{progress.backwards}/{progress.calls}"
            own = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            rows.append(fill(tuple(size[1:]), own))
        return torch.stack(rows)

"""Random states of Python, NumPy and torch: alike on all ranks, but apart where they train.

Whatever a script draws outside a training loop (a split, a fold, initial values, negative samples)
has to be the same on all ranks; noise, dropout and augmentation of their parts of a batch must not.
So `setup` gives all ranks rank 0's states; within a pass over a training loader each rank draws
from streams of its own, rank 0 from the one in common, as a single process would. When all ranks
have come to the end of the pass, all go on from where rank 0 is, which repeats nothing; where a
pass is left early, at which ranks cannot wait for each other, from where it began.
What follows a batch that the script draws itself (`deal`) counts as a pass, which is never ended
together: there rank 0, too, has a stream of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .keys import derive

States = dict[str, Any]
DRAWN = "drawn by hand"  # stands for a pass: what follows a batch from `deal`


def capture() -> States:
    """Return the states of Python's, NumPy's (where it is loaded) and torch's generators."""
    states: States = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_initialized():  # False in a data worker that was forked
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore(states: States) -> None:
    """Set the generators to states from `capture`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(states["cuda"])


def draw_apart(rank: int) -> None:
    """Seed each generator anew from its present state and the rank.

    Each from its own state, so that a script that seeds only some of them finds these reproducible.
    """
    states = capture()
    random.seed(derive(rank, "python", str(states["python"])))
    torch.default_generator.manual_seed(derive(rank, "torch", str(states["torch"].tolist())))
    if "numpy" in states:
        _, key, position, *_ = states["numpy"]
        seed = derive(rank, "numpy", int(position), str(key.tolist()))
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)
    if "cuda" in states:
        torch.cuda.manual_seed(derive(rank, "cuda", str(states["cuda"].tolist())))


class RandomStreams:
    """This rank's own random streams and those that all ranks have in common.

    Passes over training loaders may lie within each other (`zip` of two, an iterator that is never
    exhausted): the first to begin sets the common states aside, the last to end takes them back.
    What this rank draws in a later pass goes on where it ended in the one before, so that epochs
    differ, until the script gives torch another seed. Seeds that it gives Python or NumPy between
    passes are not seen in the passes of ranks but the first.
    """

    def __init__(self) -> None:
        self._open: set[object] = set()
        self._common: States | None = None
        self._own: States | None = None
        self._begun_from: tuple[int, int] | None = None
        self._swapped = False
        self._passes = 0

    def synchronize(self) -> None:
        """Make the common states rank 0's on all ranks; collective."""
        aside = None if self._swapped else self._common
        box = [capture() if aside is None else aside]
        dist.broadcast_object_list(box, 0)
        if aside is None:
            restore(box[0])
        else:
            self._common = box[0]

    def reset(self) -> None:
        """Forget the streams of an earlier process group."""
        self.__init__()  # type: ignore[misc]

    @property
    def apart(self) -> bool:
        """True within a training pass."""
        return bool(self._open)

    def begin(self, token: object, rank: int) -> None:
        """Begin a training pass: from here to its `end` this rank draws from its own streams."""
        self._open.add(token)
        self._passes += 1
        if self._common is not None:
            return
        self._common = capture()
        origin = (rank, torch.initial_seed())
        if self._own is not None and self._begun_from == origin:
            restore(self._own)
        elif rank or token == DRAWN:
            draw_apart(rank)
        self._own, self._begun_from = None, origin

    def end(self, token: object, together: bool = False) -> None:
        """End a training pass; with the last one this rank goes back to the common states.

        Args:
            together: all ranks come here, and go on from rank 0's states. Collective then.
        """
        if token not in self._open:
            return
        self._open.discard(token)
        if together:
            others = [False] * dist.get_world_size()
            dist.all_gather_object(others, bool(self._open))
            if not all(
                others
            ):  # left early, and each rank's Python collects it at a time of its own
                self._open.clear()
        if self._open or self._common is None:
            return
        self._own = capture()
        if together:
            self._common = None
            self.synchronize()
            if self._begun_from is not None and not self._begun_from[0]:
                self._own = None  # rank 0, and who shares its samples: on with the common states
        else:
            restore(self._common)
            self._common = None

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Draw what all ranks have to draw alike, also within a training pass."""
        if self._common is None or self._swapped:
            yield
            return
        own = capture()
        restore(self._common)
        self._swapped = True
        try:
            yield
        finally:
            self._swapped = False
            self._common = capture()
            restore(own)

    def mark(self) -> tuple[int, States] | None:
        """Return the states to `rewind` to after an evaluation; None within a training pass."""
        return None if self._open else (self._passes, capture())

    def rewind(self, marked: tuple[int, States] | None) -> None:
        """Undo what an evaluation drew, which had fewer batches on one rank than on another."""
        if marked is not None and not self._open and marked[0] == self._passes:
            restore(marked[1])


STREAMS = RandomStreams()

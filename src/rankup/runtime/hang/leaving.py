"""A rank that leaves the training says so in the store, to those that would wait for it."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from .state import own_line, stack_of

_KEY = "rankup/left"
_NAMED = 4  # ranks that a message lists


class Training:
    """How far this rank has come.

    Attributes:
        backwards: calls of `rankup.backward` that have begun.
        waiting: the last of them has not ended.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was in an earlier process group."""
        self.backwards = 0
        self.waiting = False
        self._place = ""

    def begin_backward(self) -> None:
        """Count a backward that begins."""
        self.backwards += 1
        self.waiting = True

    def end_pass(self) -> None:
        """Note the script's line: a pass over a training loader has ended there."""
        line = own_line(stack_of(sys._getframe(1)))
        self._place = f"{line.file}, line {line.number}" if line is not None else ""

    def leave(self, store: dist.Store, rank: int) -> None:
        """Tell the others that this rank comes to no further backward."""
        if self.backwards:
            note = {"backwards": self.backwards, "place": self._place}
            store.set(f"{_KEY}/{rank}", json.dumps(note))
            store.add(_KEY, 1)

    def missing(self, store: dist.Store, rank: int, size: int) -> str:
        """Say who has left before the backward in which this rank is; "" where nobody has.

        Raises:
            RuntimeError: the store is gone.
        """
        if not self.waiting or not store.add(_KEY, 0):
            return ""
        keys = [f"{_KEY}/{other}" for other in range(size)]
        notes = {n: json.loads(store.get(key)) for n, key in enumerate(keys) if store.check([key])}
        texts = [
            f"rank {other} left after its backward {note['backwards']}"
            + (f"; its last loop over the data ended at {note['place']}" if note["place"] else "")
            for other, note in notes.items()
            if note["backwards"] < self.backwards
        ]
        if not texts:
            return ""
        more = f" and {len(texts) - _NAMED} more ranks" if len(texts) > _NAMED else ""
        return (
            f"rank {rank} is in its backward {self.backwards}, to which not all ranks come: "
            f"{', '.join(texts[:_NAMED])}{more}. All ranks have to train equally many steps; where "
            "a number that each rank has by itself ends a loop, let all decide by one, "
            "`if rankup.broadcast(stop): break`"
        )


TRAINING = Training()
"""That of this process."""

"""Which samples each rank drew in each step, for whoever wants to see that none came twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from ..base.text import say
from ..runtime.collectives import all_gather_object
from ..runtime.world import World
from .metrics import Lines
from .plan import Step


class Trace:
    """Appends a JSON line per step and rank: `step`, `epoch`, `rank`, `samples`.

    Ranks send what they drew to rank 0, the one writer. A resumed run first cuts the file back to
    the checkpoint it starts from, so that it lists committed steps alone.
    """

    def __init__(self, path: str | None, world: World, resumed_at: int) -> None:
        self.on = path is not None
        self._drawn: list[int] = []
        self._lines: Lines | None = None
        if path is not None and world.is_root:
            self._lines = Lines(Path(path).expanduser(), resumed_at, partial(say, prefix=""))

    def drew(self, samples: torch.Tensor) -> None:
        """Note samples as they are read for training."""
        if self.on:
            self._drawn += samples.tolist()

    def write(self, step: Step) -> None:
        """Write down what all ranks drew in `step`; call on every rank after it."""
        if not self.on:
            return
        drawn, self._drawn = self._drawn, []
        everyone = all_gather_object(drawn)
        if self._lines:
            place = {"step": step.number, "epoch": step.after.epoch}
            self._lines.write(
                *({**place, "rank": r, "samples": samples} for r, samples in enumerate(everyone))
            )

    def sync(self) -> None:
        """Put the lines on disk before a checkpoint says that their steps are done."""
        if self._lines:
            self._lines.sync()

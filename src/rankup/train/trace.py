"""Which samples each rank drew in each step, for whoever wants to see that none came twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TextIO

import torch

from ..base.files import cut_json_lines, done_by
from ..runtime.collectives import all_gather_object
from ..runtime.world import World
from .plan import Step


class Trace:
    """Appends a JSON line per step and rank: `step`, `epoch`, `rank`, `samples`.

    Ranks send what they drew to rank 0, the one writer. A resumed run first cuts the file back to
    the checkpoint it starts from, so that it lists committed steps alone.
    """

    def __init__(self, path: str | None, world: World, resumed_at: int) -> None:
        self.on = path is not None
        self._drawn: list[int] = []
        self._file: TextIO | None = None
        if path is not None and world.is_root:
            if resumed_at:
                cut_json_lines(Path(path).expanduser(), lambda record: done_by(record, resumed_at))
            self._file = Path(path).expanduser().open("a" if resumed_at else "w", encoding="utf-8")

    def drew(self, samples: torch.Tensor) -> None:
        """Note samples as they are read for training."""
        if self.on:
            self._drawn += samples.tolist()

    def write(self, step: Step) -> None:
        """Write down what all ranks drew in `step`; call on every rank after it."""
        if not self.on:
            return
        drawn, self._drawn = self._drawn, []
        for rank, samples in enumerate(all_gather_object(drawn)):
            if self._file:
                place = {"step": step.number, "epoch": step.after.epoch, "rank": rank}
                self._file.write(json.dumps({**place, "samples": samples}) + "\n")
        if self._file:
            self._file.flush()

    def sync(self) -> None:
        """Put the lines on disk before a checkpoint says that their steps are done."""
        if self._file:
            os.fsync(self._file)

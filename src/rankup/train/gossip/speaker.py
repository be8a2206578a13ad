"""What one worker does for all: the run's record, validations, checkpoints and the final model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.errors import RunFailed
from ...parallel.lowcomm.flat import Flat
from ...parallel.lowcomm.gossip.board import Board
from ..attempt import Attempt, Outcome
from ..evaluate import Stopped
from ..keeper import Keeper
from ..options import TrainOptions
from ..plan import Place
from ..step import Stepper
from ..stop import Stop
from ..task import Task
from .record import RunLines, closing_lines, summary


class Speaker(Attempt):
    """Writes for all while this worker is the one who does; its own model stands for the run's.

    Args:
        worker: this worker's number.
    """

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        stepper: Stepper,
        keeper: Keeper,
        lines: RunLines,
        directory: Path,
        last: int,
        done: int,
        board: Board,
        worker: int,
    ) -> None:
        super().__init__(task, options, stepper, keeper, lines, directory, last, done)
        self._lines, self._board, self._worker = lines, board, worker
        self._flat = Flat(stepper.built.model)
        self._speaks = worker == 0  # who does from the beginning
        self._seen = done  # the newest step there was a line for

    @property
    def replaced(self) -> bool:
        """Whether another one has become the speaker, while this process stood still."""
        return self._board.status().speaker != self._worker

    def rest(self, step: int) -> None:
        """Another one is the speaker, in `step`."""
        self._lines.close()
        self._seen, self._speaks = step, False

    def step(self, record: dict[str, Any], place: Place, stop: Stop) -> None:
        """A line for each step that this worker has a share of; a validation, a checkpoint.

        Args:
            place: that a checkpoint written now would go on from.
        """
        step = record["step"]
        if step <= self._seen:
            return
        lines = self._lines.open()
        self._take_over(place)
        if self._due(step, self.every_valid):
            with contextlib.suppress(Stopped):
                record = {**record, **self.validate(place, stop)}
        lines.step(record)
        due = self._due(step, self.every_checkpoint) or self._keeper.is_best(place.step)
        # Other workers draw ahead, and the last checkpoint is that of the mean.
        if due and self._keeper.newest < place.step < self._last:
            with stop.saving():
                self.save(place, stop)
        self._seen = step

    def save(self, place: Place, stop: Stop, again: bool = False) -> None:
        """A checkpoint of the model as it is here, unless it holds nothing new.

        Args:
            again: also in the place of one of the same step.

        Raises:
            RunFailed: the weights are not finite.
        """
        self._take_over(place)
        if place.step <= self._done or place.step < self._keeper.newest:
            return
        if (place.step == self._keeper.newest and not again) or self.replaced:
            return
        if not bool(self._flat.gather().isfinite().all()):
            raise RunFailed(
                f"step {place.step}: the weights are no longer finite. The checkpoints before it "
                "are sound. Try a smaller --lr"
            )
        begun = time.perf_counter()
        self._lines.open().sync()
        self._keeper.save(place, False, stop, begun)

    def end(self, place: Place, came: Sequence[int], lost: Sequence[int], stop: Stop) -> Outcome:
        """End this attempt, or where all steps are done the run, with the mean of all models,
        which is in place here.

        Args:
            came: workers whose models are in it.
            lost: workers that did not come to the end.
        """
        if place.step < self._last:
            outcome = self.stopped(place, self._board.get("wish") != "end", stop)
        else:
            found = summary(self._board.tallies(), came, lost, place.step - self._done)
            outcome = self.finish(place, stop, lambda: None if self.replaced else found)
            if outcome.finished:
                for line in closing_lines(found, self._board.nodes()):
                    self._lines.say(line)
        if not self.replaced:
            self._board.set("ended", "finished" if outcome.finished else "stopped")
        return outcome

    def _take_over(self, place: Place) -> None:
        if not self._speaks:
            self._keeper.take_over(place.step)
        self._speaks = True

    def _due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` lies behind the last step seen, up to this one.

        The run's last step has its own end.
        """
        return step // every > self._seen // every and step < self._last

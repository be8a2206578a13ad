"""What one worker does for all: the run's record, validations, checkpoints and the final model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...base.errors import RunFailed
from ...parallel.build import Built
from ...parallel.lowcomm.flat import Flat
from ...parallel.lowcomm.gossip.board import Board
from ...runtime.deadline import END, ask_for_next_attempt
from ..evaluate import Loss, Stopped, evaluate
from ..keeper import Keeper
from ..options import TrainOptions
from ..outcome import Outcome
from ..plan import Place
from ..stop import Stop
from ..task import Split, Task
from .record import RunLines, closing_lines, summary

_TIMES = 5  # validations and checkpoints in a run that does not say how many


class Speaker:
    """Writes for all while this worker is the one who does; its own model stands for the run's.

    Args:
        loss: as in `evaluate`.
        worker: this worker's number.
        last: number of the run's last step.
        done: steps that were done when this attempt began.
    """

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        built: Built,
        board: Board,
        keeper: Keeper,
        lines: RunLines,
        loss: Loss,
        directory: Path,
        worker: int,
        last: int,
        done: int,
    ) -> None:
        self._task, self._options, self._built = task, options, built
        self._board, self._keeper, self._lines, self._loss = board, keeper, lines, loss
        self._directory, self._worker = directory, worker
        self._last, self._done = last, done
        self._flat = Flat(built.model)
        self._speaks = worker == 0  # who does from the beginning
        self._seen = done  # the newest step there was a line for
        often = max(1, -(-last // _TIMES))
        self._every_valid = options.valid_every or often
        self._every_checkpoint = options.checkpoint_every or often

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
        if self._due(step, self._every_valid):
            record = {**record, **self._validation(place, stop)}
        lines.step(record)
        due = self._due(step, self._every_checkpoint) or self._keeper.is_best(place.step)
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

    def stopped(self, place: Place, stop: Stop) -> Outcome:
        """End this attempt; where nobody ended the run, the job goes on in a next one."""
        saved = self._keeper.settled(stop)
        to_go_on = self._board.get("wish") != "end"
        if to_go_on:
            self._ask_for_next_attempt(place, saved)
        where = f"stopped at step {place.step} of {self._last}"
        self._lines.say(where + (", to go on in a next attempt" if to_go_on else ""))
        self._board.set("ended", "stopped")
        return Outcome(place, finished=False)

    def finish(self, place: Place, came: Sequence[int], lost: Sequence[int], stop: Stop) -> Outcome:
        """Evaluate the mean of all models, which is in place here, and write it.

        Args:
            came: workers whose models are in it.
            lost: workers that did not come to the end.
        """
        try:
            valid, test = (self._evaluate(s, stop) for s in (self._task.valid, self._task.test))
        except Stopped as stopped:
            if stopped.wishes < END:
                if place.step <= self._done:  # the next attempt would come no further
                    raise RunFailed(
                        "the time limit is too short for the last evaluation; --resume with more"
                    ) from None
                self._ask_for_next_attempt(place, self._keeper.settled(stop))
            self._lines.say("stopped in the last evaluation; the next attempt does it again")
            self._board.set("ended", "stopped")
            return Outcome(place, finished=False)
        if self.replaced:
            return Outcome(place, finished=False)
        found = summary(self._board.tallies(), came, lost, place.step - self._done)
        record = {"step": place.step, "valid_loss": valid, "test_loss": test, **found}
        if not self._keeper.settled(stop):
            self._lines.say(f"the checkpoint of step {self._keeper.newest} was not kept")
        if self._keeper.best:
            record["best_valid_loss"], record["best_step"] = self._keeper.best
        self._lines.open().final(record)
        if not self._keeper.write_whole():
            raise RunFailed(
                f"{self._directory} has no model-final.pt; make room, and if checkpoints/ holds a "
                "whole checkpoint, --resume writes it from there"
            )
        for line in closing_lines(found, self._board.nodes()):
            self._lines.say(line)
        self._board.set("ended", "finished")
        return Outcome(place, True, valid, test)

    def _take_over(self, place: Place) -> None:
        if not self._speaks:
            self._keeper.take_over(place.step)
        self._speaks = True

    def _due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` lies behind the last step seen, up to this one.

        The run's last step has its own end.
        """
        return step // every > self._seen // every and step < self._last

    def _validation(self, place: Place, stop: Stop) -> dict[str, Any]:
        """The loss of this worker's own model, by the name it has in a line."""
        try:
            loss = self._evaluate(self._task.valid, stop)
        except Stopped:
            return {}
        if loss is not None and math.isfinite(loss):
            self._keeper.consider(loss, place.step, stop)
        return {} if loss is None else {"valid_loss": loss}

    def _evaluate(self, split: Split, stop: Stop) -> float | None:
        return evaluate(self._loss, split, self._built, self._options.micro_batch, stop)

    def _ask_for_next_attempt(self, place: Place, saved: bool) -> None:
        if not saved:  # the next attempt would come no further
            raise RunFailed(
                f"the time limit came at step {place.step} of {self._last} and no checkpoint could "
                "be written; make room, and --resume goes on from the newest whole one"
            )
        ask_for_next_attempt()

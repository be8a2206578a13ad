"""An attempt of a run beside its steps, whoever takes these: it validates, and comes to an end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..base.errors import RunFailed
from ..runtime.deadline import END, Deadline, ask_for_next_attempt
from ..runtime.world import is_root_process
from .evaluate import Stopped, evaluate
from .keeper import Keeper
from .metrics import Metrics, Silence
from .options import TrainOptions
from .plan import Place
from .step import Stepper
from .task import Named, Split, Task

_TIMES = 5  # validations and checkpoints in a run that does not say how many


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        place: how far it came.
        finished: False when it was asked to stop before its last step.
        valid_loss, test_loss: of the final model, per target; None when unfinished or no data.
        measures: further losses, as `valid_loss_web` of one text and `valid_loss_ema`.
    """

    place: Place
    finished: bool
    valid_loss: float | None = None
    test_loss: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


class Attempt:
    """Validations and the end of one attempt; call all on every rank.

    Args:
        metrics: where the run's last line goes.
        last: number of the run's last step.
        done: steps that were done when the attempt began.

    Attributes:
        every_valid, every_checkpoint: steps between them.
    """

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        stepper: Stepper,
        keeper: Keeper,
        metrics: Metrics | Silence,
        directory: Path,
        last: int,
        done: int,
    ) -> None:
        self._task, self._options, self._stepper = task, options, stepper
        self._keeper, self._metrics, self._directory = keeper, metrics, directory
        self._last, self._done = last, done
        often = max(1, -(-last // _TIMES))
        self.every_valid = options.valid_every or often
        self.every_checkpoint = options.checkpoint_every or often

    def validate(self, place: Place, stop: Deadline) -> dict[str, float]:
        """Evaluate, and see whether it is the best so far; what was found, as a line has it.

        Raises:
            Stopped: on all ranks, when any was asked to stop before it was through.
        """
        found = self._evaluate("valid", self._task.valid, stop)
        loss = found.get("valid_loss")
        if loss is not None and math.isfinite(loss):
            self._keeper.consider(loss, place.step, stop)
        return found

    def stopped(self, place: Place, to_go_on: bool, stop: Deadline) -> Outcome:
        """End this attempt; where nobody ended the run, the job goes on in a next one."""
        saved = self._keeper.settled(stop)
        if to_go_on:
            self._ask_for_next_attempt(place, saved)
        where = f"stopped at step {place.step} of {self._last}"
        self._metrics.say(where + (", to go on in a next attempt" if to_go_on else ""))
        return Outcome(place, finished=False)

    def finish(self, place: Place, stop: Deadline) -> Outcome:
        """Evaluate the model as it is now, and write it."""
        try:
            found = self._evaluate("valid", self._task.valid, stop)
            found |= self._evaluate("test", self._task.test, stop)
        except Stopped as stopped:
            if stopped.wishes < END:
                if place.step <= self._done:  # the next attempt would come no further
                    raise RunFailed(
                        "the time limit is too short for the last evaluation; --resume with more"
                    ) from None
                self._ask_for_next_attempt(place, self._keeper.settled(stop))
            self._metrics.say("stopped in the last evaluation; the next attempt does it again")
            return Outcome(place, finished=False)
        losses = found.pop("valid_loss", None), found.pop("test_loss", None)
        record: dict[str, Any] = {"step": place.step}
        record |= {"valid_loss": losses[0], "test_loss": losses[1], **found}
        keeper = self._keeper
        if not keeper.settled(stop):
            self._metrics.say(
                f"the checkpoint of step {keeper.newest} was not kept; --resume would go on "
                "from an older one, if there is any"
            )
        if keeper.best:
            record["best_valid_loss"], record["best_step"] = keeper.best
        self._metrics.final(record)
        if not keeper.write_whole():
            raise RunFailed(
                f"{self._directory} has no model-final.pt; make room, and if checkpoints/ holds a "
                "whole checkpoint, --resume writes it from there"
            )
        return Outcome(place, True, *losses, found)

    def _evaluate(self, name: str, split: Split | Named, stop: Deadline) -> dict[str, float]:
        """The losses of a split, by names that begin with its own.

        Those of its parts end with their names, and those of the averaged weights with `_ema`.
        """
        stepper = self._stepper
        found = self._losses(name, split, stop, "")
        if stepper.average is not None:
            with stepper.average.in_place():
                found |= self._losses(name, split, stop, "_ema")
        return found

    def _losses(
        self, name: str, split: Split | Named, stop: Deadline, end: str
    ) -> dict[str, float]:
        stepper, size = self._stepper, self._options.micro_batch

        def loss_of(part: Split, end: str) -> dict[str, float]:
            loss = evaluate(stepper.loss, part, stepper.built, size, stop)
            return {} if loss is None else {f"{name}_loss{end}": loss}

        if not isinstance(split, Named):
            return loss_of(split, end)
        found: dict[str, float] = {}
        total = count = 0.0
        for own, part in split.parts.items():
            found |= loss_of(part, f"_{own}{end}")
            targets = part.count(torch.arange(len(part)))
            total += found[f"{name}_loss_{own}{end}"] * targets
            count += targets
        return {f"{name}_loss{end}": total / count, **found}

    def _ask_for_next_attempt(self, place: Place, saved: bool) -> None:
        if not saved:  # the next attempt would come no further
            raise RunFailed(
                f"the time limit came at step {place.step} of {self._last} and no checkpoint "
                "could be written; make room, and --resume goes on from the newest whole one"
            )
        if is_root_process():
            ask_for_next_attempt()

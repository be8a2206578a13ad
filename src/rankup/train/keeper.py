"""Files that a run keeps: its newest checkpoints, the best one, and the final model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..base.errors import RunFailed
from ..parallel.build import Built
from ..runtime.collectives import broadcast
from ..runtime.deadline import Deadline
from ..runtime.log import print0
from ..runtime.save import full_state, write
from ..runtime.world import is_root_process
from . import checkpoint
from .checkpoint import Carried, Saved, Saver
from .options import TrainOptions
from .plan import Place


class Keeper:
    """Keeps what one attempt of a run has come to; make, use and close it on all ranks.

    Args:
        directory: of the run.
        say: tells the user a line, on rank 0.
        note: called once a checkpoint is known to be written, with its step, for how many seconds
            the run stood, and until when.
        carried: what this rank's copy of the model has beside it.

    Attributes:
        best: lowest validation loss so far and its step, whose checkpoint is kept.
        newest: step of the newest checkpoint that was asked for.
    """

    def __init__(
        self,
        directory: Path,
        options: TrainOptions,
        built: Built,
        optimizer: torch.optim.Optimizer,
        say: Callable[[str], None],
        note: Callable[[int, float, float], None],
        carried: Carried | None = None,
    ) -> None:
        self._directory, self._options, self._built = directory, options, built
        self._root, self._optimizer, self._say = directory / "checkpoints", optimizer, say
        self._carried, self._note = carried, note
        self._stood: tuple[int, float, float] | None = None  # for the checkpoint under way
        self.best: tuple[float, int] | None = None
        self._second: tuple[float, int] | None = None  # what was the best before it
        self.newest = 0
        self._lost = ""  # why that one was not written
        self._saver = Saver(self._root, options.keep, options.async_checkpoints)

    def restore(self, last: int) -> Saved | None:
        """Go back to the newest whole checkpoint, and say so; None when there is none.

        Args:
            last: number of the run's last step.

        Raises:
            UserError: it is of another run or model, or all are damaged.
        """
        saved = checkpoint.restore(
            self._root,
            self._built.model,
            self._optimizer,
            self._options.identity,
            self._built.copies,
            self._carried,
        )
        step = 0 if saved is None else saved.place.step
        found = f"no whole checkpoint in {self._root}: " if saved is None else "resuming "
        done = ", which are done: evaluating again" if step >= last else ""
        print0(f"{found}at step {step} of {last}{done}", flush=True)
        if saved is not None:
            self.best = saved.best
        return saved

    def consider(self, loss: float, step: int, stop: Deadline) -> None:
        """See whether a finite validation loss is the best so far."""
        if self.is_best(self.newest):  # what it is compared with has to be there
            with stop.saving():
                self.settled(stop)
        if self.best is None or loss < self.best[0]:
            self._second, self.best = self.best, (loss, step)

    def is_best(self, step: int) -> bool:
        """Return True if this step, as the last one considered, was better than all before it."""
        return self.best is not None and self.best[1] == step

    def save(
        self,
        place: Place,
        unvalidated: bool,
        stop: Deadline,
        begun: float,
        loss_scale: tuple[float, int] | None = None,
    ) -> None:
        """Copy what a checkpoint holds; it is written beside the training. A full disk costs this
        checkpoint, not the training.

        Args:
            begun: `time.perf_counter()` when the run began to stand for it.
        """
        self.settled(stop)
        self._lost, self.newest = "", place.step
        saved = Saved(place, self._options.identity, self.best, unvalidated, loss_scale)
        self._saver.save(
            self._built.model, self._optimizer, saved, self._built.copies, self._carried
        )
        self._stood = place.step, time.perf_counter() - begun, time.time()
        if not self._options.async_checkpoints:
            self.settled(stop)

    def amend(
        self, place: Place, unvalidated: bool, loss_scale: tuple[float, int] | None = None
    ) -> None:
        """Tell the checkpoint that was resumed from of the validation that it had still to get."""
        if not is_root_process():
            return
        try:
            saved = Saved(place, self._options.identity, self.best, unvalidated, loss_scale)
            checkpoint.amend(self._root, saved)
        except (OSError, ValueError, TypeError) as error:  # a later attempt validates again
            self._say(f"the validation of this checkpoint was not noted ({error})")

    def settled(self, stop: Deadline) -> bool:
        """Wait for the checkpoint under way; return whether the newest one was written."""
        why = self._saver.wait()
        self.look()
        if why:
            self._say_lost(why)
        stop.saved_in(self._saver.seconds)
        return not self._lost

    def look(self) -> None:
        """Note the checkpoint under way, if it is written by now."""
        if self._stood and self._saver.written:
            self._note(*self._stood)
            self._stood = None

    def _say_lost(self, why: str) -> None:
        if not self._directory.is_dir():
            raise RunFailed(f"the run directory {self._directory} was removed")
        self._lost = why
        if self.is_best(self.newest):
            self.best = self._second
        self._say(
            f"checkpoint at step {self.newest} could not be written ({why}); training goes on"
        )

    def write_whole(self) -> bool:
        """Write the whole model into one file; return on every rank whether that came off."""
        parts = full_state(self._built.model, self._built.copies)
        # In the order of the uncut model, however its stages lie on the ranks.
        order = {name: place for place, name in enumerate(self._built.whole.state_dict())}
        state = {name: parts[name] for name in sorted(parts, key=lambda name: order.get(name, -1))}
        failure = ""
        try:
            if is_root_process():
                write(state, self._directory / "model-final.pt")
        except OSError as error:
            failure = str(error)
            self._say(f"model-final.pt could not be written ({error})")
        return not broadcast(failure)

    def close(self) -> None:
        """Let a checkpoint that is being written come to its end, within bounds."""
        self._saver.close()
        self.look()

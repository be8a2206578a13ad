"""Checkpoints of a run: when they are written, which are kept, and which one is the best.

checkpoints/step-00000200/__0_0.distcp   tensors of the model and the optimizer
                          .metadata      which tensor lies where (torch's)
                          COMPLETE       the marker, written last: hashes, and how far the run was
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..base.errors import RunFailed
from ..parallel.build import Built
from ..runtime.checkpoint import MARKER, OPTIMIZER, Writer, named
from .ema import Average
from .metrics import Metrics, Silence
from .options import TrainOptions
from .plan import Place

# What the end of a failing run gives a checkpoint that is being written.
GRACE_SECONDS = 60.0
_NAME = re.compile(r"step-\d{8,}")
_EXCHANGE = "exchange."


@dataclass(frozen=True)
class Saved:
    """The description of a complete checkpoint.

    Attributes:
        place: how far the run had come.
        identity: the options that define the run.
        best: lowest validation loss so far and the step it was seen at, whose checkpoint is kept;
            None before the first.
        unvalidated: the validation that belongs to this step was left when the run was stopped.
        loss_scale: the factor of float16, and the steps since it changed.
    """

    place: Place
    identity: dict[str, Any]
    best: tuple[float, int] | None
    unvalidated: bool = False
    loss_scale: tuple[float, int] | None = None


# --- what is kept


class CheckpointManager:
    """Keeps what one attempt of a run has come to; make, use and close it on all ranks.

    Args:
        directory: of the run.
        carried: what this rank's copy of the model has beside it.
        best: lowest validation loss of the attempts before, and its step.

    Attributes:
        best: lowest validation loss so far and its step, whose checkpoint is kept.
        newest: step of the newest checkpoint that was asked for.
        under_way: the step of the checkpoint that is being written, for how many seconds the run
            stood for it, and until when; None where none is, or it was noted.
    """

    def __init__(
        self,
        directory: Path,
        options: TrainOptions,
        built: Built,
        optimizer: torch.optim.Optimizer,
        metrics: Metrics | Silence,
        carried: Carried | None = None,
        best: tuple[float, int] | None = None,
    ) -> None:
        self._directory, self._options, self._built = directory, options, built
        self._optimizer, self._metrics, self._carried = optimizer, metrics, carried
        self._saver = Saver(directory / "checkpoints", options.keep, options.async_checkpoints)
        self.under_way: tuple[int, float, float] | None = None
        self.best, self._second = best, best  # and what was the best before it
        self.newest = 0
        self._lost = ""  # why that one was not written

    def consider(self, loss: float, step: int) -> None:
        """See whether a finite validation loss is the best so far."""
        if self.is_best(self.newest):  # what it is compared with has to be there
            self.settle()
        if self.best is None or loss < self.best[0]:
            self._second, self.best = self.best, (loss, step)

    def is_best(self, step: int) -> bool:
        """Return True if this step, as the last one considered, was better than all before it."""
        return self.best is not None and self.best[1] == step

    def save(self, saved: Saved, began: float) -> None:
        """Copy what a checkpoint holds; it is written beside the training. A full disk costs this
        checkpoint, not the training.

        Args:
            began: `time.perf_counter()` when the run began to stand for it.
        """
        self.settle()
        self._lost, self.newest = "", saved.place.step
        self._saver.save(
            self._built.model, self._optimizer, saved, self._built.copies, self._carried
        )
        self.under_way = saved.place.step, time.perf_counter() - began, time.time()
        if not self._options.async_checkpoints:
            self.settle()

    def settle(self) -> bool:
        """Wait for the checkpoint under way; return whether the newest one was written."""
        why = self._saver.wait()
        self.look()
        if why:
            self._say_lost(why)
        return not self._lost

    def look(self) -> float:
        """Note the checkpoint under way, if it is written by now; return the seconds that the
        longest one so far took to be written."""
        if self.under_way and self._saver.written:
            self._metrics.checkpoint(*self.under_way)
            self.under_way = None
        return self._saver.seconds

    def _say_lost(self, why: str) -> None:
        if not self._directory.is_dir():
            raise RunFailed(f"the run directory {self._directory} was removed")
        self._lost = why
        if self.is_best(self.newest):
            self.best = self._second
        self._metrics.say(
            f"checkpoint at step {self.newest} could not be written ({why}); training goes on"
        )

    def close(self) -> None:
        """Let a checkpoint that is being written come to its end, within bounds."""
        self._saver.close()
        self.look()


# --- writing


class Saver:
    """Saves checkpoints of an attempt, one at a time; make, use and close it on all ranks.

    Args:
        root: the folder of checkpoints.
        keep: how many complete ones are left after each save, beside the one that was best.
        asynchronous: write in a thread; else `save` returns when all is on disk.

    Attributes:
        seconds: the longest time that a save took, from its call to its marker.
    """

    def __init__(self, root: Path, keep: int, asynchronous: bool = True) -> None:
        self._root, self._keep = root, keep
        self._asynchronous, self._writer = asynchronous, Writer()
        self._done: Future[None] = Future()
        self._reported = True
        self.seconds = 0.0

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        saved: Saved,
        copies: Mapping[str, str] | None = None,
        carried: Carried | None = None,
    ) -> None:
        """Write a checkpoint; returns once model and optimizer may be changed again.

        A save that is still being written is waited for. What fails on the way to the disk is said
        by the next `wait`. A kill at any moment leaves the earlier checkpoints as they were.

        Args:
            copies: name of a parameter here -> name under which its tied copies are saved once.
            carried: what this rank's copy of the model has beside it.
        """
        began = time.monotonic()

        def ended(done: Future[None]) -> None:
            if done.exception() is None:
                self.seconds = max(self.seconds, time.monotonic() - began)

        carried = carried or Carried()
        tensors, aliases = named(model, optimizer, copies, carried.optimizer)
        self._done = self._writer.save(
            of_step(self._root, saved.place.step),
            "",
            self._around(saved),
            carried.own(tensors),
            aliases,
            {"extra": asdict(saved)},
            self._asynchronous,
        )
        self._reported = False
        self._done.add_done_callback(ended)

    def wait(self) -> str:
        """Wait for the last save: empty, or why it was not written; the same on every rank.

        Each failure is said once.
        """
        self._writer.wait()
        reported, self._reported = self._reported, True
        error = None if reported else self._done.exception()
        return f"{type(error).__name__}: {error}".splitlines()[0] if error else ""

    @property
    def written(self) -> bool:
        """True once the last save came to its end, and well."""
        return self._done.done() and self._done.exception() is None

    def close(self) -> None:
        """Let a save that is being written come to its end, within bounds, and leave the group."""
        self._writer.close(GRACE_SECONDS)

    @contextlib.contextmanager
    def _around(self, saved: Saved) -> Iterator[None]:
        """Make a step's folder, and remove those that go when it is there."""
        directory = of_step(self._root, saved.place.step)
        self._root.mkdir(exist_ok=True)
        if directory.is_symlink() or directory.exists():
            remove(directory)
        for path in steps(self._root):
            if not (path / MARKER).exists():
                remove(path)
        directory.mkdir()
        try:
            yield
        except BaseException:
            # A peer that dies after the marker takes nothing with it.
            if not (directory / MARKER).exists():
                shutil.rmtree(directory, ignore_errors=True)
            raise
        prune(directory, self._keep, saved.best and of_step(self._root, saved.best[1]))


def of_step(root: Path, step: int) -> Path:
    """Return the folder of a step."""
    return root / f"step-{step:08d}"


def prune(newest: Path, keep: int, best: Path | None = None) -> None:
    """Keep `newest`, the `keep - 1` complete checkpoints before it, and `best`.

    Later ones are of a future that was abandoned when the run fell back; they go too.
    """
    others = [path for path in steps(newest.parent) if path != newest]
    before = [path for path in others if _number(path) < _number(newest)]
    for path in {*others} - {*before[max(0, len(before) - (keep - 1)) :], best}:
        with contextlib.suppress(OSError):  # the new one is whole, whatever becomes of this
            remove(path)


def remove(directory: Path) -> None:
    """Remove a checkpoint, its marker first, so that half of it is never trusted.

    A link to one that was moved elsewhere goes; what it points to is somebody's.
    """
    if not directory.is_dir() or directory.is_symlink():
        directory.unlink(missing_ok=True)
    else:
        (directory / MARKER).unlink(missing_ok=True)
        shutil.rmtree(directory)


def steps(root: Path) -> list[Path]:
    """Return the folders of checkpoints, oldest first; not what else somebody keeps beside them."""
    paths = [path for path in root.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=_number)


def _number(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))


# --- beside the model


class Exchange(Protocol):
    """The way in which copies of a model meet, and the part that a resumed run needs."""

    def state(self) -> dict[str, torch.Tensor]: ...

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]: ...

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None: ...


class Carried:
    """Names under which a rank keeps what its copy of the model alone has.

    The first copy's optimizer has the name that the optimizer of any other layout has, so that a
    run may go on under another strategy.

    Args:
        copy: which of the copies this rank belongs to, from 0.

    Attributes:
        average: of the weights, where the run has one.
    """

    def __init__(self, copy: int = 0, exchange: Exchange | None = None) -> None:
        self._copy, self._exchange = copy, exchange
        self.average: Average | None = None

    @property
    def optimizer(self) -> str:
        """Prefix of the names of this copy's optimizer state."""
        return _prefix(self._copy)

    def optimizer_among(self, names: Collection[str]) -> str:
        """The same in a checkpoint of these names. Copies that have no state there, as they are new
        or had no work, take that of another."""
        matches = (re.match(r"copy\.(\d{1,9})\.", name) for name in names)
        copies = {int(match[1]) for match in matches if match}
        if not copies or any(name.startswith(OPTIMIZER) for name in names):
            copies.add(0)
        there = sorted(copies)
        return _prefix(self._copy if self._copy in there else there[self._copy % len(there)])

    def own(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what this copy has to save, given the tensors of model and optimizer.

        Copies meet before they are saved, so the first one has what all of them have.
        """
        if self._copy:
            return {name: t for name, t in tensors.items() if name.startswith(self.optimizer)}
        state = {} if self._exchange is None else self._exchange.state()
        exchanged = {_EXCHANGE + name: value for name, value in state.items()}
        return {**tensors, **exchanged, **(self.average.state() if self.average else {})}

    def wanted(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the tensors to be filled from a checkpoint of these names."""
        tensors = self.average.wanted(names) if self.average else {}
        if self._exchange is None:
            return tensors
        saved = [n.removeprefix(_EXCHANGE) for n in names if n.startswith(_EXCHANGE)]
        wanted = self._exchange.wanted(saved)
        return tensors | {_EXCHANGE + name: value for name, value in wanted.items()}

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Go on from what was filled."""
        if self._exchange is not None:
            theirs = {n: t for n, t in loaded.items() if n.startswith(_EXCHANGE)}
            self._exchange.resume({n.removeprefix(_EXCHANGE): t for n, t in theirs.items()})
        if self.average is not None:
            self.average.resume(loaded)


def _prefix(copy: int) -> str:
    return f"copy.{copy}.{OPTIMIZER}" if copy else OPTIMIZER

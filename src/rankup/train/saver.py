"""Writing checkpoints: the loop waits for the copy to host memory, a thread does the rest.

The thread talks to those of the other ranks over a gloo group of its own, so that its collectives
never meet the training's.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from ..runtime.hang.recorder import APART
from ..runtime.pieces import HostCopy, Key, Piece, PiecePlanner, Share, cut
from ..runtime.state import OptimizerState, of_model
from . import marker
from .carried import Carried
from .marker import Fingerprint, Saved

# A file system may be slow; a rank that died shows at once, as its connections close.
_PATIENCE = timedelta(minutes=30)
# What the end of a failing run gives a checkpoint that is being written.
GRACE_SECONDS = 60.0
_ROOM = 1 << 20  # a disk with less left counts as full


class Saver:
    """Saves checkpoints of one life of a run, one at a time; make, use and close it on all ranks.

    Args:
        root: the folder of checkpoints.
        keep: how many complete ones are left after each save, beside the one that was best.
        asynchronous: write in a thread; else `save` returns when all is on disk.
        allowed: whether this process is still the one that writes; asked in the thread.

    Attributes:
        seconds: the longest time that a save took, from its call to its marker.
    """

    def __init__(
        self,
        root: Path,
        keep: int,
        asynchronous: bool = True,
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._root, self._keep, self._allowed = root, keep, allowed
        self._several = dist.is_initialized() and dist.get_world_size() > 1
        self._asynchronous = asynchronous
        self._group: dist.ProcessGroup | None = None
        if asynchronous and self._several:
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE, group_desc=APART)
        self._share, self._host = Share(), HostCopy()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._began = self.seconds = 0.0

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        saved: Saved,
        copies: Mapping[str, str] | None = None,
        carried: Carried | None = None,
    ) -> None:
        """Write a checkpoint; returns once model and optimizer may be changed again.

        A save that is still being written is waited for. What fails on the way to the disk is told
        by the next `wait`. A kill at any moment leaves the earlier checkpoints as they were.

        Args:
            copies: name of a parameter here -> name under which its tied copies are saved once.
            carried: what this rank's copy of the model has beside it.
        """
        self._join()
        self._began = time.monotonic()
        state, aliases = named(model, optimizer, copies, carried or Carried())
        mine = self._share.of(cut(state))
        if not self._asynchronous:
            self._write(mine, saved, aliases, None)
            return
        trouble: RuntimeError | None = None
        try:
            mine = self._host.take(mine)
        except RuntimeError as error:  # no memory for it; the other ranks must not wait for us
            trouble = error
        self._thread = threading.Thread(
            target=self._write, args=(mine, saved, aliases, trouble), name="rankup-checkpoint"
        )
        self._thread.start()

    def wait(self) -> str:
        """Wait for the last save: empty, or why it was not written; the same on every rank.

        Each failure is told once.
        """
        self._join()
        failure, self._failure = self._failure, None
        return "" if failure is None else reason(failure)

    def close(self) -> None:
        """Let a save that is being written come to its end, within bounds, and leave the group."""
        if self._thread is not None:
            self._thread.join(GRACE_SECONDS)
            if self._thread.is_alive():
                return  # its group is still in use
            self._thread = None
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(
        self,
        mine: Mapping[Key, Piece],
        saved: Saved,
        aliases: Mapping[str, str],
        trouble: RuntimeError | None,
    ) -> None:
        """Everything after the copy; on every rank, with one outcome for all."""
        if self._gpu is not None:  # a thread would start with the first GPU of the node
            torch.cuda.set_device(self._gpu)
        directory = marker.of_step(self._root, saved.place.step)
        root = not self._several or dist.get_rank() == 0
        complete = False
        try:
            ready: BaseException | None = trouble
            if root and ready is None:
                ready = marker.make_room(directory)
            self._agree(ready)
            writer = _Writer(directory, single_file_per_rank=True, sync_files=True)
            dcp.save(
                {piece.name: piece.tensor for piece in mine.values()},
                storage_writer=writer,
                planner=PiecePlanner(mine),
                process_group=self._group,
                no_dist=not dist.is_initialized(),
            )
            files, other_names = self._fingerprints(directory, aliases)
            failed: OSError | None = None
            if root:
                try:
                    if not self._allowed():
                        raise OSError("another worker writes the checkpoints by now")
                    marker.write(directory, saved, files, other_names)
                    complete = True
                    best = saved.best and marker.of_step(self._root, saved.best[1])
                    marker.prune(directory, self._keep, best)
                except OSError as error:
                    failed = error
            self._agree(failed)
            self.seconds = max(self.seconds, time.monotonic() - self._began)
        except BaseException as error:
            self._failure = error
            # A peer that dies after the marker takes nothing with it.
            if root and not complete and self._allowed():
                marker.discard(directory)

    def _agree(self, error: BaseException | None) -> None:
        """Raise on all ranks what one of them came upon."""
        for found in self._gather(None if error is None else _sendable(error)):
            if found is not None:
                raise found

    def _gather(self, value: Any) -> list[Any]:
        if not self._several:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _fingerprints(
        self, directory: Path, aliases: Mapping[str, str]
    ) -> tuple[dict[str, Fingerprint], dict[str, str]]:
        """Fingerprints of all files, each rank reading its own, and all ranks' aliases."""
        rank = dist.get_rank() if self._several else 0
        own = [*directory.glob(f"__{rank}_*"), *([directory / ".metadata"] if rank == 0 else [])]
        mine: dict[str, Fingerprint] | OSError
        try:
            mine = {path.name: marker.fingerprint(path) for path in own}
        except OSError as error:
            mine = error
        files: dict[str, Fingerprint] = {}
        names: dict[str, str] = {}
        for part, others in self._gather((mine, dict(aliases))):
            if isinstance(part, OSError):
                raise part
            files |= part
            names |= others
        return files, names


class _Writer(dcp.FileSystemWriter):
    """Says that the disk is full where torch speaks of a position in its archive."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().write_data(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            if shutil.disk_usage(self.path).free < _ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from None
            raise


def named(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    copies: Mapping[str, str] | None,
    carried: Carried,
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Every tensor to be saved under its flat name, and the model's other names for some of them.

    Numbers live in the marker alone, so that nothing in a checkpoint has to be unpickled.
    """
    held = of_model(model, copies)
    state = OptimizerState(optimizer, held)
    tensors = {f"model.{name}": value for name, value in held.tensors.items()}
    tensors |= {carried.optimizer + name: value for name, value in state.held.tensors.items()}
    tensors |= carried.state()
    return tensors, held.aliases


def reason(error: BaseException) -> str:
    """What went wrong, in one line; also out of DCP's collection of the ranks' errors."""
    failures = getattr(error, "failures", None)
    if isinstance(error, CheckpointException) and failures:
        rank, (cause, _) = next(iter(sorted(failures.items())))
        return f"rank {rank}: {type(cause).__name__}: {_line(cause)}"
    return f"{type(error).__name__}: {_line(error)}"


def _sendable(error: BaseException) -> BaseException:
    return error if isinstance(error, OSError) else RuntimeError(_line(error))


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]

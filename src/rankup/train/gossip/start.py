"""How a worker begins: who it is, and that all begin with the same values."""

from __future__ import annotations

import contextlib
import io
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...base.errors import RunFailed, UserError
from ...parallel.build import Built, build
from ...parallel.layout import Layout
from ...parallel.lowcomm.gossip.alive import STORE, WORKER, WORKERS
from ...parallel.lowcomm.gossip.board import Board, look_again_after
from ...parallel.mesh import Mesh
from ...runtime.world import FIRST_TIMEOUT, World
from ..keeper import Keeper
from ..options import TrainOptions
from ..task import Task


@dataclass(frozen=True)
class Who:
    """This worker.

    Attributes:
        worker, workers: its number, and how many there are.
        address: host:port of the store.
    """

    worker: int
    workers: int
    address: str

    @classmethod
    def am_i(cls) -> Who:
        """As the launcher has put it into the environment.

        Raises:
            UserError: something else has started this process, or there is nobody to talk to.
        """
        values = [os.environ.get(name) for name in (WORKER, WORKERS, STORE)]
        if None in values:
            raise UserError(
                "--strategy gossip needs a launch of its own, in which no worker's end ends the "
                "others: use `rankup run`"
            )
        worker, workers, address = (str(value) for value in values)
        if int(workers) < 2:
            raise UserError("--strategy gossip on one worker has nobody to talk to")
        return cls(int(worker), int(workers), address)


def built(task: Task, options: TrainOptions, world: World) -> Built:
    """The whole model, in this one process."""
    return build(task.build_model, Mesh(Layout(), world), options.seed, options.choices)


def restore(keeper: Keeper, last: int, worker: int) -> int:
    """Go back to the newest checkpoint, which is a speaker's: the number of steps done.

    Args:
        last: number of the run's last step.
    """
    # One of them says where; each is the root of a group of one.
    silent = contextlib.redirect_stdout(io.StringIO())
    with contextlib.nullcontext() if worker == 0 else silent:
        saved = keeper.restore(last)
    return 0 if saved is None else saved.place.step


def begin_together(
    board: Board, worker: int, step: int, values: torch.Tensor, absent: Callable[[], frozenset[int]]
) -> float:
    """Wait until all workers that live have come here with the same values; seconds waited.

    Images of each other start equal, so a worker that starts elsewhere would mislead the others.

    Args:
        step: that the run goes on from.
        values: float32 of shape (n,).
        absent: who is not waited for, now.

    Raises:
        RunFailed: the others start from another step or other values, or do not come.
    """
    mine = f"{step} {zlib.crc32(values.numpy().tobytes()):08x}"
    began = time.monotonic()
    board.set(f"ready/{worker}", mine)
    while True:
        said = board.ready()
        missing = [w for w, text in enumerate(said) if not text and w not in absent()]
        if not missing:
            break
        if time.monotonic() - began > FIRST_TIMEOUT.total_seconds():
            raise RunFailed(f"worker {missing[0]} lives and has not begun to train")
        time.sleep(look_again_after(board.workers))
    first, theirs = next((w, text) for w, text in enumerate(said) if text)
    if theirs != mine:
        raise RunFailed(
            f"worker {worker} starts from other weights than worker {first} (step and checksum "
            f"{mine} and {theirs}); do all nodes see the same checkpoints and code?"
        )
    return time.monotonic() - began

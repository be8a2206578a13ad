"""Runs that are killed: each of its ranks is a fresh process, forked from one with torch in it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rankup.runtime.world import leave, setup
from rankup.train.options import TrainOptions
from tests.pool import FORK_SERVER, end_with_tests, free_port

from .runs import train_images

# What a program does to files, as Python's audit hooks see it, just before it is done.
FILE_EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree"}


def start(world_size: int, function: Callable[..., None], *args: Any) -> list[BaseProcess]:
    """Call `function(rank, *args)` in `world_size` processes that may form a group."""
    port = free_port()
    processes: list[BaseProcess] = [
        FORK_SERVER.Process(
            target=_rank, args=(rank, world_size, port, function, args), daemon=True
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    return processes


def wait(processes: list[BaseProcess], timeout: float = 60) -> list[int | None]:
    """Exit codes; whoever has not ended by then is killed, and None."""
    for process in processes:
        process.join(timeout)
    codes = [process.exitcode for process in processes]
    kill(processes)
    return codes


def kill(processes: list[BaseProcess]) -> None:
    """kill -9, and wait for the end."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()
    for process in processes:
        process.join()


def _rank(
    rank: int, world_size: int, port: int, function: Callable[..., None], args: tuple[Any, ...]
) -> None:
    end_with_tests()
    if world_size > 1:
        number, size = str(rank), str(world_size)
        os.environ.update(
            RANK=number, LOCAL_RANK=number, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size,
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
    try:
        function(rank, *args)
    except BaseException:
        # As the launcher's worker does: leave without waiting for the others.
        traceback.print_exc()
        leave(1)
    leave(0)


def train_rank(
    rank: int, directory: Path, options: TrainOptions, shape: dict[str, Any], resume: bool = False
) -> None:
    """Train the convolutional net; what is printed or raised goes to `output-<rank>.txt`."""
    import torch

    torch.set_num_threads(1)
    output = directory / f"output-{rank}.txt"
    try:
        report = train_images(setup(), directory, options, shape, resume)
    except Exception:
        output.write_text(traceback.format_exc())
        raise
    output.write_text(report.error + report.output)
    if report.error:
        raise RuntimeError(report.error)


def train_until_file_event(
    rank: int, last: int, directory: Path, options: TrainOptions, shape: dict[str, Any]
) -> None:
    """Train alone, and kill -9 oneself just before the `last`-th change of a file after the first
    complete checkpoint. Writes the number of such changes to `events.txt` when it got through."""
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in FILE_EVENTS or not args or not isinstance(args[0], str | os.PathLike):
            return
        if event == "open" and not (isinstance(args[1], str) and set(args[1]) & set("wxa+")):
            return
        path = os.fspath(args[0])
        if str(directory) not in path:
            # shutil.rmtree names what is in a folder without the folder.
            if event not in ("os.remove", "os.rmdir") or seen == 0:
                return
        elif seen == 0 and not any((directory / "checkpoints").glob("*/COMPLETE")):
            return
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    train_rank(rank, directory, options, shape)
    (directory / "events.txt").write_text(str(seen))

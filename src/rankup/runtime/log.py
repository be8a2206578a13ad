"""What rank 0 says and writes down, and what the others leave unsaid."""

from __future__ import annotations

import builtins
import errno
import functools
import importlib
import importlib.util
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .world import NOTICES, is_root_process

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PRINTED: set[str] = set()


def print0(*values: Any, **options: Any) -> None:
    """`print` on rank 0 alone."""
    if is_root_process():
        print(*values, **options)


def print_once(message: str) -> None:
    """Print a note on rank 0's standard error, each message once in a process.

    `quiet(notices=False)` or `RANKUP_NOTICES=0` leaves it unsaid.
    """
    if os.environ.get(NOTICES) != "0" and is_root_process() and message not in _PRINTED:
        _PRINTED.add(message)
        # As the job script marks what is no cause of a run's end.
        print(f"rankup: note: {message}", file=sys.stderr, flush=True)


def log_metrics(**values: float | int | str | bool | None) -> None:
    """Append one line to the run's `metrics.jsonl` from rank 0; without a run directory, nothing.

        rankup.log_metrics(step=step, loss=loss, lr=lr)

    A `time` in seconds since 1970 is added. A full disk costs the line, not the training.
    """
    directory = os.environ.get("RANKUP_RUN_DIR")
    if directory is None or not is_root_process():
        return
    line = json.dumps({"time": round(time.time(), 3), **values}) + "\n"
    try:
        _append(Path(directory) / "metrics.jsonl", line.encode())
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # Python shows a warning of one place once.
        warnings.warn(
            f"a line of metrics.jsonl could not be written: {error.strerror}; the training goes on",
            stacklevel=2,
        )


def _append(path: Path, line: bytes) -> None:
    """Append a whole line or nothing: what a full disk took of it is cut off again."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        try:
            # One write of one line, so that a reader of the growing file never sees lines mixed.
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def quiet(notices: bool = True) -> None:
    """Silence the other ranks' standard output, logging below errors, tqdm, TensorBoard and wandb.

    Call once after `setup()`. Rank 0 is untouched, and so is what any rank writes to stderr or
    raises, or prints to a file that it names.

    Args:
        notices: rank 0 says once what rankup has noticed in the run, such as the parts of a batch
            that batch norm sees; False leaves that unsaid, as does `RANKUP_NOTICES=0`.
    """
    if not notices:
        os.environ[NOTICES] = "0"  # data workers inherit it
    if is_root_process():
        return
    loud = builtins.print

    def silent_print(*values: Any, **options: Any) -> None:
        if options.get("file") is not None:
            loud(*values, **options)

    builtins.print = silent_print
    if not isinstance(sys.stdout, _Silent):
        sys.stdout = _Silent(sys.stdout)  # type: ignore[assignment]
    logging.disable(logging.WARNING)
    os.environ["WANDB_MODE"] = "disabled"
    os.environ["TQDM_DISABLE"] = "1"
    _quiet_bars()
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        _quiet_writer(name)


class _Silent:
    """A stream that swallows what is written to it, and otherwise is the one that it stands for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for _ in lines:
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _quiet_bars() -> None:
    """Silence tqdm's bars in the class itself: scripts have imported it by name already.

    They go on counting: a script may divide by `bar.n`, which stays 0 in a bar that is disabled.
    """
    if importlib.util.find_spec("tqdm") is None:
        return
    bar = importlib.import_module("tqdm").tqdm
    loud = bar.__init__

    @functools.wraps(loud)
    def silent(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("gui"):  # a widget or a window, which writes to no file
            kwargs["disable"] = True
        else:
            kwargs |= {"file": _Silent(sys.stderr), "disable": bool(kwargs.get("disable"))}
        loud(self, *args, **kwargs)

    bar.__init__ = silent


def _quiet_writer(module_name: str) -> None:
    """Make every method of a SummaryWriter do nothing, in the class itself."""
    package = "tensorboard" if module_name.startswith("torch.") else module_name
    if importlib.util.find_spec(package) is None:
        return
    try:
        writer = importlib.import_module(module_name).SummaryWriter
    except Exception:  # a TensorBoard that does not work is of no concern to who does not use it
        return
    for name, member in list(vars(writer).items()):
        if callable(member) and (name == "__init__" or not name.startswith("_")):
            setattr(writer, name, _nothing)
    writer.__init__, writer.get_logdir = _begin_nothing, _log_dir


def _begin_nothing(self: Any, log_dir: Any = None, *args: Any, **kwargs: Any) -> None:
    """Scripts put their checkpoints beside the events: `os.path.join(writer.log_dir, …)`."""
    self.log_dir = self.logdir = str(log_dir or kwargs.get("logdir") or "runs")


def _log_dir(self: Any) -> Any:
    return self.log_dir


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Takes every call."""

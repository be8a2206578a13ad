"""A folder with a model in parts that a script writes again and again; any layout loads it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .checkpoint import MARKER, Marker, Writer, cause, named
from .collectives import broadcast
from .restore import damage, load, read_marker
from .state import DamagedError, everywhere
from .world import before_leaving, is_root_process

# What torch's schedulers note in a parameter group, beside what its optimizer has there.
_SCHEDULED = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}
_IN_USE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def save_sharded_model(
    model: nn.Module,
    directory: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    copies: Mapping[str, str] | None = None,
    asynchronous: bool = False,
    **extra: Any,
) -> Future[None]:
    """Write the model's parts from all ranks into a folder; call on every rank.

    A kill at any moment leaves what was in the folder before, or the new. What several ranks hold
    is written by one of them.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds.
        asynchronous: return once model and optimizer may be changed again, and write in a thread.
            The next save, a load and the end of the script wait for it.
        extra: numbers, strings, lists and dictionaries by strings (the step, the place in an
            epoch), which count from the same moment on as the model does; a tuple comes back as a
            list.

    Returns:
        A future, whose `result()` waits until all is written, and raises what this function would.

    Raises:
        OSError, RuntimeError: it could not be written, or another process is saving into this
            folder. What was there before still counts; or the new, where only the clearing up after
            it failed. On every rank.
        TypeError: something in `extra`, or in the optimizer's state, cannot be saved.
    """

    extra = everywhere(partial(_as_json, extra))
    tensors, aliases = everywhere(partial(named, model, optimizer, copies))
    root = Path(directory)
    parts = broadcast(f"parts-{secrets.token_hex(4)}")
    groups = [] if optimizer is None else [_numbers(group) for group in optimizer.param_groups]
    about = {"optimizer": optimizer is not None, "groups": groups, "extra": extra}
    around = _replacing(root, root / parts, asynchronous)
    done = _WRITER.save(root, parts, around, tensors, aliases, about, asynchronous)
    if not asynchronous:
        done.result()
    return done


def load_sharded_model(
    model: nn.Module,
    directory: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    copies: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Load a folder of `save_sharded_model`, in any layout and world size; call on every rank.

    First the ranks compare its files with their hashes, a share each. Nothing is unpickled but
    torch's own records of what lies where.

    Returns:
        What was saved as `extra`.

    Raises:
        ValueError: the folder is of another model (the message names what differs), has no
            optimizer, or a file in it is missing or has changed. On every rank; model and optimizer
            are unchanged.
        TypeError: the optimizer keeps what cannot be loaded, or its step needs a closure.
        OSError: a rank cannot read it. On every rank.
    """
    _WRITER.close()
    root = Path(directory)
    marker = broadcast(everywhere(lambda: _marker_of(root) if is_root_process() else None))
    assert marker is not None
    if lines := damage(marker):
        raise DamagedError(f"{root} is damaged: {'; '.join(lines)}")
    about = marker.about
    if optimizer is not None and not about.get("optimizer", True):
        raise ValueError(f"load_sharded_model: {root} holds no optimizer, only a model")
    ours = [] if optimizer is None else optimizer.param_groups
    groups = about.get("groups", [{} for _ in ours])  # a recipe knows its own
    if optimizer is not None and len(groups) != len(ours):
        raise ValueError(f"{root} has {len(groups)} parameter groups, this optimizer {len(ours)}")
    load(marker, model, optimizer, copies)
    for group, numbers in zip(ours, groups, strict=False):
        _assign(group, numbers)
    return dict(about.get("extra", {}))


def _as_json(value: Any, name: str = "") -> Any:
    """Return what JSON brings back as it is: lists for tuples; refuse what it does not."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"save_sharded_model: {name} has the key {key!r}, and keys have to be strings; "
                    "leave it out where the constructor knows it (the milestones of a scheduler), "
                    "or save a list of pairs"
                )
        return {
            key: _as_json(inner, f"{name}[{key!r}]" if name else key)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_as_json(inner, f"{name}[{i}]") for i, inner in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"save_sharded_model: {name} is no number, string, list or dictionary by strings of "
        f"such, as what is saved beside the model has to be, but a {type(value).__name__}"
    )


def _marker_of(root: Path) -> Marker:
    """Return the marker of a folder of `save_sharded_model`."""
    if not root.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(root))
    try:
        return read_marker(root)
    except DamagedError as error:
        raise DamagedError(f"{root} holds no complete model: {error}") from None


@contextlib.contextmanager
def _replacing(folder: Path, parts: Path, asynchronous: bool) -> Iterator[None]:
    """Around the writing of new parts, which replace those that count, by one process at a time.

    The lock is the kernel's, so none outlives its process; its empty file `.lock` stays. A file
    system without locks gives a warning.
    """
    with _locked(folder):
        parts.mkdir()
        try:
            yield
            for path in folder.glob("parts-*"):
                if path != parts:
                    shutil.rmtree(path, ignore_errors=True)
        except BaseException as error:
            # It may have come after the marker was written: these parts are then the only ones.
            if not _may_count(folder, parts):
                shutil.rmtree(parts, ignore_errors=True)
            if asynchronous:  # who does not ask the future would not know
                line = f"rankup: {folder} could not be written: {cause(error)}"
                print(line, file=sys.stderr, flush=True)
            raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _IN_USE:
                why = "another process is saving into this folder"
                raise OSError(errno.EAGAIN, why, str(folder)) from None
            if error.errno not in _NO_LOCKS:
                raise
            warnings.warn(
                f"{folder} is on a file system without locks: see to it that no two processes "
                "save there at once",
                stacklevel=2,
            )
        yield
    finally:
        # A process forked meanwhile has the descriptor too; closing ours would leave it locked.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _may_count(folder: Path, parts: Path) -> bool:
    """Return True where the marker names these parts, or cannot be asked."""
    try:
        return bool(read_marker(folder).about["parts"] == parts.name)
    except Exception:
        return (folder / MARKER).exists()


_WRITER = Writer()
before_leaving(_WRITER.close)


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON can hold of a parameter group; a tensor of one number as that number."""
    values = {
        key: value.item() if isinstance(value, torch.Tensor) and value.dim() == 0 else value
        for key, value in group.items()
        if key not in ("params", "param_names")
    }
    plain = (bool, int, float, str, type(None))
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, plain)
        or (isinstance(value, list | tuple) and all(isinstance(item, plain) for item in value))
    }


def _assign(group: dict[str, Any], numbers: Mapping[str, Any]) -> None:
    for key, value in numbers.items():
        if key == "params" or key not in group.keys() | _SCHEDULED:
            continue
        now = group.get(key)
        if isinstance(now, torch.Tensor):
            now.fill_(value)
        else:
            group[key] = tuple(value) if isinstance(now, tuple) else value

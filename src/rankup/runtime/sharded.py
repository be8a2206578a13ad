"""A folder with the model in parts: each rank writes and reads its own; any layout loads it.

model/parts-1f2e3d4c/__0_0.distcp   tensors (torch's distributed checkpoint)
      parts-1f2e3d4c/.metadata      which tensor lies where
      COMPLETE                      the marker: which parts count, the optimizer's numbers
      .lock                         held by who is saving
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from .collectives import broadcast
from .pieces import Key, Piece, PiecePlanner, Share, cut
from .reader import SafeReader
from .state import OptimizerState, of_model, to_fill
from .together import agree, differences, everywhere, only_writer, shortened, union, unseen
from .world import is_root_process

_MARKER = "COMPLETE"
_MODEL, _OPTIMIZER = "model.", "optimizer.state."
# What torch's schedulers note in a parameter group, beside what its optimizer has there.
_SCHEDULED = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}


def save_sharded_model(
    model: nn.Module,
    directory: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    copies: Mapping[str, str] | None = None,
) -> None:
    """Write the model's parts from all ranks into a folder; call on every rank.

    A kill at any moment leaves what was in the folder before, or the new. What several ranks hold
    is written by one of them.

    Args:
        copies: name in this model -> canonical name, of parameters that are tied to one that
            another pipeline stage holds.

    Raises:
        OSError, RuntimeError: it could not be written, or another process is saving into this
            folder. What was there before still counts; or the new, where only the clearing up after
            it failed. On every rank.
    """
    held = of_model(model, copies)
    state = {f"{_MODEL}{name}": value for name, value in held.tensors.items()}
    groups: list[dict[str, Any]] = []
    if optimizer is not None:
        entries = OptimizerState(optimizer, held).held.tensors
        state |= {f"{_OPTIMIZER}{name}": value for name, value in entries.items()}
        groups = [_numbers(group) for group in optimizer.param_groups]
    pieces = Share().of(cut(state))
    root = Path(directory)
    parts = root / broadcast(f"parts-{secrets.token_hex(4)}")
    about = {"parts": parts.name, "optimizer": optimizer is not None, "groups": groups}
    with only_writer(root):
        try:
            _on_root(parts.mkdir)
            _write(pieces, parts)
            _on_root(lambda: _complete(root, about))
        except BaseException:
            # It may have come after the marker was written: these parts are then the only ones.
            if is_root_process() and not _may_count(root, parts):
                shutil.rmtree(parts, ignore_errors=True)
            raise


def load_sharded_model(
    model: nn.Module,
    directory: str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    copies: Mapping[str, str] | None = None,
) -> None:
    """Load a folder of `save_sharded_model`, in any layout and world size; call on every rank.

    Nothing is unpickled but torch's own records of what lies where.

    Raises:
        ValueError: the folder is of another model (the message names what differs), has no
            optimizer, or a file in it is missing or torn. On every rank; unless a file turned out
            to be damaged while it was read, model and optimizer are unchanged.
        TypeError: the optimizer keeps what cannot be loaded, or its step needs a closure.
        OSError: a rank cannot read it. On every rank.
    """
    root = Path(directory)
    about: dict[str, Any] = {}
    failure: Exception | None = None
    try:
        about = _read_marker(root)
        if optimizer is not None and not about["optimizer"]:
            raise ValueError(f"load_sharded_model: {root} holds no optimizer, only a model")
        if optimizer is not None and len(about["groups"]) != len(optimizer.param_groups):
            raise ValueError(
                f"{root} has {len(about['groups'])} parameter groups, this optimizer "
                f"{len(optimizer.param_groups)}"
            )
        reader = SafeReader(root / about["parts"])
        there = reader.shapes()
    except Exception as error:
        failure = _plain(error)
    agree(failure)
    held = of_model(model, copies)
    wanted = {f"{_MODEL}{name}": value for name, value in held.tensors.items()}
    _compare(there, wanted, _MODEL, f"{root}")
    entries: OptimizerState | None = None
    loaded: set[str] = set()
    if optimizer is not None:
        entries = everywhere(partial(to_fill, optimizer, held))
        state = {f"{_OPTIMIZER}{name}": value for name, value in entries.held.tensors.items()}
        _compare(there, state, _OPTIMIZER, f"{root}")
        loaded = {name.removeprefix(_OPTIMIZER) for name in state if name in there}
        wanted |= {name: value for name, value in state.items() if name in there}
    try:
        with _alone_too():
            dcp.load(wanted, storage_reader=reader, no_dist=not dist.is_initialized())
    except (CheckpointException, OSError, EOFError) as error:
        failure = ValueError(f"load_sharded_model: {root} is damaged: {_plain(error)}")
    agree(failure)
    held.settle()
    if entries is not None and optimizer is not None:
        entries.settle(loaded)
        for group, numbers in zip(optimizer.param_groups, about["groups"], strict=True):
            _assign(group, numbers)


def _compare(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str, place: str) -> None:
    what = prefix.partition(".")[0]
    theirs = {n.removeprefix(prefix): shape for n, shape in there.items() if n.startswith(prefix)}
    ours = union({n.removeprefix(prefix): tuple(value.shape) for n, value in here.items()})
    if what == "optimizer":
        ours = {name: ours[name] for name in ours.keys() - unseen(theirs, ours)}
    if lines := differences(theirs, ours, "folder", what):
        raise ValueError(f"{place} is of another {what}:{shortened(lines)}")


def _write(pieces: Mapping[Key, Piece], parts: Path) -> None:
    failure: Exception | None = None
    try:
        with _alone_too():
            dcp.save(
                {piece.name: piece.tensor for piece in pieces.values()},
                storage_writer=dcp.FileSystemWriter(
                    parts, single_file_per_rank=True, sync_files=True
                ),
                planner=PiecePlanner(pieces),
                no_dist=not dist.is_initialized(),
            )
    except (CheckpointException, OSError) as error:
        failure = _plain(error)
    agree(failure)


def _on_root(action: Callable[[], None]) -> None:
    failure: Exception | None = None
    if is_root_process():
        try:
            action()
        except Exception as error:
            failure = error
    agree(failure)


def _complete(root: Path, about: dict[str, Any]) -> None:
    """Let the new parts count, then remove all others."""
    parts = root / about["parts"]
    files = {path.name: path.stat().st_size for path in sorted(parts.iterdir())}
    needed = {at.relative_path for at in SafeReader(parts).read_metadata().storage_data.values()}
    if gone := sorted(needed - files.keys()):
        raise FileNotFoundError(
            2, "it was removed while the model was written", str(parts / gone[0])
        )
    about["files"] = files
    _fsync(parts)
    temporary = root / f".{_MARKER}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("x") as file:
            json.dump(about, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(root / _MARKER)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync(root)
    for path in root.glob("parts-*"):
        if path != parts:
            shutil.rmtree(path, ignore_errors=True)


def _may_count(root: Path, parts: Path) -> bool:
    """Whether the marker names these parts, or cannot be asked."""
    try:
        counting = json.loads((root / _MARKER).read_text())["parts"]
    except FileNotFoundError:
        return False
    except Exception:
        return True
    return bool(counting == parts.name)


@contextlib.contextmanager
def _alone_too() -> Iterator[None]:
    """Keep torch from warning that a script without a process group has none."""
    with warnings.catch_warnings():
        if not dist.is_initialized():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_marker(root: Path) -> dict[str, Any]:
    if not root.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(root))
    if not (root / _MARKER).exists():
        raise ValueError(
            f"{root} holds no complete model: it has no {_MARKER}, so its writing was interrupted "
            "or it is of another kind"
        )
    try:
        about: dict[str, Any] = json.loads((root / _MARKER).read_text())
        if not re.fullmatch(r"parts-[0-9a-f]{8}", about["parts"]):
            raise ValueError(f"{about['parts']!r} is no folder of parts")
        parts, files = root / about["parts"], dict(about["files"])
        about["optimizer"] = bool(about["optimizer"])
        about["groups"] = [dict(group) for group in about["groups"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{root / _MARKER} is damaged: {error!r}") from None
    for name, size in files.items():
        with contextlib.suppress(FileNotFoundError):
            found = (parts / name).stat().st_size
            if found != size:
                raise ValueError(f"{parts / name} has {found} bytes instead of {size}")
            continue
        raise ValueError(f"{parts / name} is missing")
    return about


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold of a parameter group; tensors of one number as that number."""
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


def _plain(error: BaseException) -> Exception:
    """The first rank's own error out of DCP's collection."""
    failures = getattr(error, "failures", None)
    if isinstance(error, CheckpointException) and failures:
        rank, (cause, _) = min(failures.items(), key=lambda item: item[0])
        if isinstance(cause, OSError):
            return cause
        return RuntimeError(f"rank {rank}: {type(cause).__name__}: {cause}")
    return error if isinstance(error, Exception) else RuntimeError(str(error))

"""A folder with a model in parts: each rank writes and reads its own; any layout loads it.

model/parts-1f2e3d4c/__0_0.distcp   tensors (torch's distributed checkpoint)
      parts-1f2e3d4c/.metadata      which tensor lies where
      COMPLETE                      the marker: which parts count, size and hash of each file, what
                                    else is said
      .lock                         held by who is saving

So `save_sharded_model` writes it (`sharded.py`). A recipe's checkpoints are such folders, one per
step, with the files of tensors beside the marker (`train/checkpoint.py`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import shutil
import threading
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from .collectives import all_gather_object
from .hang.recorder import APART
from .pieces import HostCopy, Key, Piece, PiecePlanner, Share, cut
from .state import (
    DamagedError,
    OptimizerState,
    Shape,
    agree,
    everywhere,
    of_model,
    refuse_other,
    to_fill,
)
from .world import is_root_process, rank_and_size, several

MARKER = "COMPLETE"
MODEL, OPTIMIZER = "model.", "optimizer.state."
_KIND = "crc32:"  # what a hash in a marker begins with
# A file system may be slow; a rank that died shows at once, as its connections close.
_PATIENCE = timedelta(minutes=30)
_ROOM = 1 << 20  # a disk with less left counts as full


# --- what a folder says of itself


@dataclass(frozen=True)
class Marker:
    """The marker of a folder, without which it does not count.

    Attributes:
        files: name of each file of tensors -> its size and hash; no hash (empty) where the first
            version of `save_sharded_model` has written it.
        about: all that it says.
    """

    folder: Path
    files: dict[str, tuple[int, str]]
    about: dict[str, Any]

    @property
    def parts(self) -> Path:
        """The folder of the files of tensors."""
        return self.folder / self.about.get("parts", "")

    @classmethod
    def read(cls, folder: Path) -> Marker:
        """Return the marker of a folder.

        Raises:
            DamagedError: there is none, or it is not as it was written.
        """
        if not (folder / MARKER).exists():
            raise DamagedError(
                f"it has no {MARKER}; its writing was interrupted, or it is of another kind"
            )
        try:
            about = dict(json.loads((folder / MARKER).read_text()))
            if about.pop("hash", None) not in (None, _hash_of_text(about)):
                raise ValueError("it has changed since it was written")
            if not re.fullmatch(r"(parts-[0-9a-f]{8})?", about.get("parts", "")):
                raise ValueError(f"{about['parts']!r:.40} is no folder of parts")
            sized = {n: (f, "") if isinstance(f, int) else f for n, f in about["files"].items()}
            files = {str(name): (int(size), str(code)) for name, (size, code) in sized.items()}
        except Exception as error:  # whatever somebody, or a disk, has made of it
            raise DamagedError(f"its marker {MARKER} is damaged: {error}") from None
        return cls(folder, files, about)

    def write(self) -> None:
        """Let the files count, and whatever stood there before no more."""
        about = json.loads(json.dumps({**self.about, "files": self.files}))
        _fsync(self.parts)
        temporary = self.folder / f".{MARKER}.tmp"
        try:
            with temporary.open("w") as file:
                json.dump({**about, "hash": _hash_of_text(about)}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.folder / MARKER)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _fsync(self.folder)

    def damage(self, hash_like: Callable[[Path, str], str] | None = None) -> list[str]:
        """Return what is wrong with the files; each rank reads a share of them. Collective.

        Args:
            hash_like: hash of a file, of the kind of a given one; by default the one of today.
        """
        rank, ranks = rank_and_size()
        found = []
        for name in sorted(self.files)[rank::ranks]:
            path, (size, code) = self.parts / name, self.files[name]
            try:
                if not path.is_file():
                    found.append(f"{path.name} is missing")
                elif (has := path.stat().st_size) != size:
                    found.append(f"{path.name} has {has} bytes instead of {size}")
                elif (hash_like or _hash_of)(path, code) != code:
                    found.append(f"{path.name} has changed since it was written")
            except OSError as error:
                found.append(f"{path.name} cannot be read ({error.strerror})")
        return [line for part in all_gather_object(found) for line in part]


def fingerprint(path: Path) -> tuple[int, str]:
    """Return size and hash of a file."""
    return path.stat().st_size, _hash_of(path)


def _hash_of(path: Path, like: str = _KIND) -> str:
    """Return the CRC-32 of a file: no flip of one bit, or of 32 in a row, escapes it."""
    if not like.startswith(_KIND):
        return like  # the first version had none
    code = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            code = zlib.crc32(block, code)
    return f"{_KIND}{code:08x}"


def _hash_of_text(about: Mapping[str, Any]) -> str:
    return f"{_KIND}{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- writing


class Target:
    """A folder to be written, and what rank 0 does around it. `begin` and `commit` may fail."""

    def __init__(self, folder: Path, parts: Path) -> None:
        self.folder, self.parts = folder, parts

    def begin(self) -> None:
        """Make room, and the folder of parts."""

    def commit(self, marker: Marker) -> None:
        """Let the parts count."""
        marker.write()

    def undo(self, error: BaseException) -> None:
        """Remove what there is of parts that do not count; no error comes of it."""

    def end(self) -> None:
        """Called last, whatever became of it."""


class Writer:
    """A writer of folders, one at a time; use it on all ranks.

    What is asynchronous is written in a thread, which talks to those of the other ranks over a gloo
    group of its own, so that its collectives never meet the training's.
    """

    def __init__(self) -> None:
        self._share, self._host = Share(), HostCopy()
        self._thread: threading.Thread | None = None
        self._world: dist.ProcessGroup | None = None
        self._group: dist.ProcessGroup | None = None

    def save(
        self,
        target: Target,
        tensors: Mapping[str, torch.Tensor],
        aliases: Mapping[str, str],
        about: Mapping[str, Any],
        asynchronous: bool,
    ) -> Future[None]:
        """Write tensors into a folder; return once they may be changed again.

        A save that is still being written is waited for. A kill at any moment leaves what counted
        before, or the new. The future has one outcome on all ranks.

        Args:
            aliases: other name -> name among the tensors, of what a model has under several names.
            about: what the marker says beside files and aliases.
        """
        self.wait()
        mine = self._share.of(cut(tensors))
        done: Future[None] = Future()
        if not asynchronous:
            self._write(target, mine, aliases, about, None, None, done)
            return done
        trouble: RuntimeError | None = None
        try:
            mine = self._host.take(mine)
        except RuntimeError as error:  # no memory for it; the other ranks must not wait for us
            trouble = error
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        group = self._own_group()

        def write() -> None:
            if gpu is not None:  # a thread would start with the first GPU of the node
                torch.cuda.set_device(gpu)
            self._write(target, mine, aliases, about, trouble, group, done)

        self._thread = threading.Thread(target=write, name="rankup-checkpoint")
        self._thread.start()
        return done

    def close(self, at_most: float | None = None) -> None:
        """Let a save that is being written come to its end, within bounds, and leave the group."""
        self.wait(at_most)
        if self._thread is not None:
            return  # its group is still in use
        if self._group is not None and dist.is_initialized() and self._world is dist.group.WORLD:
            dist.destroy_process_group(self._group)
        self._group = self._world = None

    def wait(self, at_most: float | None = None) -> None:
        """Wait for the save that is being written, if there is one."""
        if self._thread is not None:
            self._thread.join(at_most)
            if not self._thread.is_alive():
                self._thread = None

    def _own_group(self) -> dist.ProcessGroup | None:
        if not several():
            return None
        if self._world is not dist.group.WORLD:
            self._world = dist.group.WORLD
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE, group_desc=APART)
        return self._group

    def _write(
        self,
        target: Target,
        mine: Mapping[Key, Piece],
        aliases: Mapping[str, str],
        about: Mapping[str, Any],
        trouble: RuntimeError | None,
        group: dist.ProcessGroup | None,
        done: Future[None],
    ) -> None:
        """Do everything after the copy."""
        root = is_root_process()
        failure: BaseException | None = None
        try:
            agree(trouble, group)
            everywhere(target.begin if root else nothing, group)
            with alone_too():
                dcp.save(
                    {piece.name: piece.tensor for piece in mine.values()},
                    storage_writer=_DiskWriter(
                        target.parts, single_file_per_rank=True, sync_files=True
                    ),
                    planner=PiecePlanner(mine),
                    process_group=group,
                    no_dist=not dist.is_initialized(),
                )
            own = list(target.parts.glob(f"__{rank_and_size()[0]}_*"))
            if root:
                own.append(target.parts / ".metadata")
            own_files = everywhere(lambda: {path.name: fingerprint(path) for path in own}, group)
            files: dict[str, tuple[int, str]] = {}
            all_aliases: dict[str, str] = {}
            for some, others in all_gather_object((own_files, dict(aliases)), group):
                files |= some
                all_aliases |= others
            marker = Marker(target.folder, files, {**about, "aliases": all_aliases})
            everywhere(partial(_commit, target, marker) if root else nothing, group)
        except BaseException as error:
            failure = cause(error)
            if root:
                target.undo(failure)
        if root:
            target.end()
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)


def _commit(target: Target, marker: Marker) -> None:
    places = SafeReader(marker.parts).read_metadata().storage_data.values()
    if gone := sorted({place.relative_path for place in places} - marker.files.keys()):
        path = marker.parts / gone[0]
        raise FileNotFoundError(2, "it was removed while the model was written", str(path))
    target.commit(marker)


def nothing() -> None:
    """Do nothing, as the other ranks while rank 0 does something."""


class _DiskWriter(dcp.FileSystemWriter):
    """A writer that says that the disk is full where torch speaks of a position in its archive."""

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
    optimizer: torch.optim.Optimizer | None,
    copies: Mapping[str, str] | None = None,
    prefix: str = OPTIMIZER,
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return all tensors to be saved by flat names, and the model's other names for some of them.

    Numbers live in the marker alone, so that nothing in a folder has to be unpickled.
    """
    held = of_model(model, copies)
    tensors = {f"{MODEL}{name}": value for name, value in held.tensors.items()}
    if optimizer is not None:
        entries = OptimizerState(optimizer, held).held.tensors
        tensors |= {f"{prefix}{name}": value for name, value in entries.items()}
    return tensors, held.aliases


def cause(error: BaseException) -> BaseException:
    """Return the first rank's own error out of DCP's collection."""
    failures = getattr(error, "failures", None)
    if not isinstance(error, CheckpointException) or not failures:
        return error
    rank, (first, _) = min(failures.items(), key=lambda item: item[0])
    if isinstance(first, OSError):
        return first
    line = (str(first).splitlines() or [""])[0]
    return RuntimeError(f"rank {rank}: {type(first).__name__}: {line}")


@contextlib.contextmanager
def alone_too() -> Iterator[None]:
    """Keep torch from warning that a script without a process group has none."""
    with warnings.catch_warnings():
        if not dist.is_initialized():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


# --- reading


def load(
    marker: Marker,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    copies: Mapping[str, str] | None = None,
    prefix: Callable[[Collection[str]], str] = lambda names: OPTIMIZER,
    beside: Callable[[Collection[str]], dict[str, torch.Tensor]] = lambda names: {},
) -> dict[str, torch.Tensor]:
    """Fill model and optimizer from a folder's files. Collective.

    Args:
        prefix: what the optimizer's entries are called, given all names there are.
        beside: further tensors to be filled, given all names there are; they are returned.

    Raises:
        OtherModelError: the folder is of another model or optimizer. Nothing has changed.
        DamagedError: it cannot be read.
    """
    reader = SafeReader(marker.parts)
    there = everywhere(reader.shapes)
    held = of_model(model, copies)
    place = f"{marker.folder}"
    refuse_other(_below(MODEL, there), held.shapes(), "model", place, "checkpoint")
    wanted = {f"{MODEL}{name}": value for name, value in held.tensors.items()}
    entries: OptimizerState | None = None
    own, loaded = prefix(there), dict[str, torch.Tensor]()
    if optimizer is not None:
        entries = everywhere(partial(to_fill, optimizer, held))
        shapes = entries.held.shapes()
        refuse_other(_below(own, there), shapes, "optimizer", place, "checkpoint")
        loaded = {n: t for n, t in entries.held.tensors.items() if own + n in there}
    further = beside(there)
    tensors = wanted | {own + name: value for name, value in loaded.items()} | further
    failure: Exception | None = None
    try:
        with alone_too():
            dcp.load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    except (CheckpointException, Exception) as error:  # torch's own is none of Exception
        failure = DamagedError(f"{marker.folder} is damaged: {cause(error)}")
    agree(failure)
    held.settle()
    if entries is not None:
        entries.settle(loaded)
    return further


def _below(prefix: str, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {n.removeprefix(prefix): shape for n, shape in shapes.items() if n.startswith(prefix)}


class SafeReader(dcp.FileSystemReader):
    """A reader of `.metadata` through an unpickler that knows torch's own record types only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata, of a file that may be anybody's.

        Raises:
            DamagedError: it holds something else, or is no such file.
        """
        try:
            with (Path(self.path) / ".metadata").open("rb") as file:
                metadata = MetadataUnpickler(file).load()
        except OSError:
            raise
        except Exception as error:  # a hostile file shows in many ways
            raise DamagedError(f"{self.path}/.metadata cannot be read: {error}") from None
        if not isinstance(metadata, Metadata):
            raise DamagedError(f"checkpoint metadata is a {type(metadata).__name__}")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def shapes(self) -> dict[str, Shape]:
        """Return the shape of each tensor there is."""
        return {
            name: tuple(entry.size)
            for name, entry in self.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }


class MetadataUnpickler(pickle.Unpickler):
    """An unpickler that refuses all but torch's records of what lies where."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = (
            (module == "torch.distributed.checkpoint.metadata" and name in _METADATA_TYPES)
            or (module == "torch.distributed.checkpoint.filesystem" and name == "_StorageInfo")
            or (
                module == "torch"
                and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))
            )
            or (module, name) == ("torch.serialization", "_get_layout")
            or (module, name) == ("collections", "OrderedDict")
            or (module in ("pathlib", "pathlib._local") and name == "PosixPath")
        )
        if not allowed:
            raise pickle.UnpicklingError(f"checkpoint metadata refers to {module}.{name}")
        return super().find_class(module, name)


# Not BytesStorageMetadata: torch reads what that names with an unpickler of its own that refuses
# nothing, and rankup writes tensors alone.
_METADATA_TYPES = {
    "Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
    "_MEM_FORMAT_ENCODING", "MetadataIndex", "StorageMeta",
}  # fmt: skip

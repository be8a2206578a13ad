"""A folder of tensors that all ranks write, each its own parts, and that any layout loads.

model/parts-1f2e3d4c/__0_0.distcp   tensors (torch's distributed checkpoint, DCP)
      parts-1f2e3d4c/.metadata      which tensor lies where
      COMPLETE                      the marker, written last: which parts count, size and hash of
                                    each file, what else is said
      .lock                         held by who is saving

So `save_sharded_model` writes it (`sharded.py`). A recipe's checkpoints are such folders, one per
step, with the files of tensors beside the marker (`train/checkpoint.py`). `restore.py` reads them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import heapq
import io
import json
import os
import shutil
import threading
import warnings
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from .hang.recorder import APART
from .state import agree, everywhere, gather, local, of_model, of_optimizer

MARKER = "COMPLETE"
MODEL, OPTIMIZER = "model.", "optimizer.state."
HASH = "crc32:"  # what a hash in a marker begins with
# A file system may be slow; a rank that died shows at once, as its connections close.
_PATIENCE = timedelta(minutes=30)
_ROOM = 1 << 20  # a disk with less left counts as full


def named(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    copies: Mapping[str, str] | None = None,
    prefix: str = OPTIMIZER,
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return what this rank has to save by flat names, and the model's other names for some of it.

    Numbers of the parameter groups live in the marker alone, so that nothing in a folder has to be
    unpickled.
    """
    held = of_model(model, copies)
    parts = {MODEL: held}
    if optimizer is not None:
        parts[prefix] = of_optimizer(optimizer, held)
    tensors = {
        f"{before}{name}": value
        for before, part in parts.items()
        for name, value in part.tensors.items()
        if name not in part.elsewhere
    }
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
def without_group() -> Iterator[None]:
    """Keep torch from warning that a script without a process group has none."""
    with warnings.catch_warnings():
        if not dist.is_initialized():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


# --- the marker


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

    def write(self) -> None:
        """Let the files count, and whatever stood there before no more."""
        about = json.loads(json.dumps({**self.about, "files": self.files}))
        _fsync(self.parts)
        temporary = self.folder / f".{MARKER}.tmp"
        try:
            with temporary.open("w") as file:
                json.dump({**about, "hash": hash_of_text(about)}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.folder / MARKER)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _fsync(self.folder)


def hash_of_text(about: Mapping[str, Any]) -> str:
    """Return the hash that a marker has of itself."""
    return f"{HASH}{zlib.crc32(json.dumps(about, sort_keys=True).encode()):08x}"


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- writing


class Writer:
    """A writer of folders, one at a time; use it on all ranks.

    What is asynchronous is written in a thread, which talks to those of the other ranks over a gloo
    group of its own, so that its collectives never meet the training's.
    """

    def __init__(self) -> None:
        self._owners, self._host = Owners(), HostCopy()
        self._thread: threading.Thread | None = None
        self._world: dist.ProcessGroup | None = None
        self._group: dist.ProcessGroup | None = None

    def save(
        self,
        folder: Path,
        parts: str,
        around: AbstractContextManager[None],
        tensors: Mapping[str, torch.Tensor],
        aliases: Mapping[str, str],
        about: Mapping[str, Any],
        asynchronous: bool,
    ) -> Future[None]:
        """Write tensors into a folder; return once they may be changed again.

        A save that is still being written is waited for. A kill at any moment leaves what counted
        before, or the new. The future has one outcome on all ranks.

        Args:
            parts: name of the folder in it that the files of tensors go to; empty for none.
            around: what rank 0 does before and behind it: makes the folder, and sweeps what counts
                no more, or of a failure what would.
            aliases: other name -> name among the tensors, of what a model has under several names.
            about: what the marker says beside files, parts and aliases.
        """
        self.wait()
        group = self._own_group()
        mine = self._owners.own(tensors, group)
        done: Future[None] = Future()
        trouble: RuntimeError | None = None
        values = {name: local(value) for name, value in mine.items()}
        if asynchronous:
            try:
                values = self._host.take(values)
            except RuntimeError as error:  # no memory for it; the other ranks must not wait for us
                trouble = error
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        about = {**about, "parts": parts} if parts else about

        def write() -> None:
            if gpu is not None:  # a thread would start with the first GPU of the node
                torch.cuda.set_device(gpu)
            root = not group or dist.get_rank() == 0
            try:
                agree(trouble, group)
                with contextlib.ExitStack() as stack:
                    everywhere(lambda: stack.enter_context(around) if root else None, group)
                    files = _write_parts(folder / parts, mine, values, group)
                    every = gather((files, dict(aliases)), group)
                    marker = Marker(folder, {}, {**about, "aliases": {}})
                    for some, others in every:
                        marker.files.update(some)
                        marker.about["aliases"].update(others)
                    everywhere(lambda: _commit(marker) if root else None, group)
                    everywhere(stack.close, group)
            except BaseException as error:
                done.set_exception(cause(error))
            else:
                done.set_result(None)

        if asynchronous:
            self._thread = threading.Thread(target=write, name="rankup-checkpoint")
            self._thread.start()
        else:
            write()
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
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        if self._world is not dist.group.WORLD:
            self._world = dist.group.WORLD
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE, group_desc=APART)
        return self._group


class Owners:
    """Which of the ranks that hold the same part of a tensor writes it, so that each byte is copied
    and written once: parts are disjoint by construction."""

    def __init__(self) -> None:
        self._asked = 0
        self._mine: set[str] = set()

    def own(
        self, tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of which this rank writes its part; collective.

        Of a sharded one the placements say who has the same part. Who has the same plain ones the
        ranks ask each other: where all have the same, as a rule, they compare a number only.
        """
        if group is None:
            return dict(tensors)
        sharded = {name: value for name, value in tensors.items() if isinstance(value, DTensor)}
        plain = {name: value.nbytes for name, value in tensors.items() if name not in sharded}
        mine = _own_shards(sharded) | self._own_plain(plain, group)
        return {name: value for name, value in tensors.items() if name in mine}

    def _own_plain(self, sizes: Mapping[str, int], group: dist.ProcessGroup) -> set[str]:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        text = repr((ranks, sorted(sizes.items()))).encode()
        asked = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
        compared = torch.tensor([asked, -asked, int(asked != self._asked)])
        dist.all_reduce(compared, dist.ReduceOp.MAX, group)
        most, least, changed = compared.tolist()
        self._asked = asked
        if changed and most == -least:
            self._mine = {name for name, owner in _deal(sizes, ranks).items() if owner == rank}
        elif changed:
            # Stages of a pipeline and copies of a model have names of their own.
            holders: dict[str, list[int]] = {}
            for other, names in enumerate(gather(list(sizes), group)):
                for name in names:
                    holders.setdefault(name, []).append(other)
            self._mine = {
                name
                for name, having in holders.items()
                if having[zlib.crc32(name.encode()) % len(having)] == rank
            }
        return self._mine


def _deal(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Return an owner of each name: the largest first, each to who has least to write so far."""
    loads = [(0, rank) for rank in range(ranks)]
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, rank = heapq.heappop(loads)
        owners[name] = rank
        heapq.heappush(loads, (load + sizes[name], rank))
    return owners


def _own_shards(tensors: Mapping[str, DTensor]) -> set[str]:
    """Return the names of sharded tensors whose part on this rank this rank writes."""
    groups: dict[tuple[Any, tuple[int, ...]], dict[str, int]] = {}
    for name, value in tensors.items():
        mesh, size = value.device_mesh, value.to_local().nbytes
        whole = value.numel() == 0  # nobody has a part of it
        if mesh.get_coordinate() is not None and (size or whole):  # not each rank has a row
            placements = enumerate(value.placements)
            alike = tuple(dim for dim, how in placements if whole or how.is_replicate())
            groups.setdefault((mesh, alike), {})[name] = size
    mine: set[str] = set()
    for (mesh, alike), sizes in groups.items():
        place, ranks = 0, 1
        for dim in alike:
            place = place * mesh.size(dim) + mesh.get_coordinate()[dim]
            ranks *= mesh.size(dim)
        mine |= {name for name, owner in _deal(sizes, ranks).items() if owner == place}
    return mine


class HostCopy:
    """A copy of tensors in host memory, whose buffers serve again for the next one."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy plain tensors, which may be changed once this returns."""
        kept, self._buffers = self._buffers, {}
        devices = set()
        for name, source in tensors.items():
            buffer = kept.get(name)
            if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
                on_gpu = source.device.type == "cuda"
                buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=on_gpu)
            buffer.copy_(source, non_blocking=True)
            if source.device.type == "cuda":
                devices.add(source.device)
            self._buffers[name] = buffer
        for device in devices:
            torch.cuda.synchronize(device)
        return dict(self._buffers)


class Planner(dcp.DefaultSavePlanner):
    """DCP's plan for tensors of which each rank has given those whose part it writes.

    Parts are disjoint, so the plan of all ranks is put together as they are: nothing is looked for
    twice, and no part compared with all others.

    Args:
        values: this rank's part of each, a copy or the part itself.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._values = values

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        self.global_plan, self.metadata = create_default_global_save_plan(all_plans)
        return self.global_plan, self.metadata

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._values[index.fqn]


def _write_parts(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, torch.Tensor],
    group: dist.ProcessGroup | None,
) -> dict[str, tuple[int, str]]:
    """Write this rank's parts; return size and hash of each file that it wrote. Collective."""
    writer = _DiskWriter(folder, single_file_per_rank=True, sync_files=True)
    writer.fs = files = _HashedFiles()
    with without_group():
        dcp.save(
            dict(tensors),
            storage_writer=writer,
            planner=Planner(values),
            process_group=group,
            no_dist=group is None,
        )
    return files.written


def _commit(marker: Marker) -> None:
    for name, (size, _) in marker.files.items():
        path = marker.parts / name
        if not path.is_file() or path.stat().st_size != size:
            raise FileNotFoundError(2, "it was removed while the model was written", str(path))
    marker.write()


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


class _HashedFiles(FileSystem):
    """DCP's file system, which notes size and hash of what is written while it is.

    Attributes:
        written: name of a file -> its size and hash.
    """

    def __init__(self) -> None:
        self.written: dict[str, tuple[int, str]] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with Path(path).open(mode) as file:
            stream = _Hashed(cast("io.BufferedIOBase", file))
            yield stream
        self.written[Path(path).name] = stream.size, f"{HASH}{stream.code:08x}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Hashed(io.RawIOBase):
    """A file that is written from its beginning to its end, and hashed on the way (CRC-32).

    No flip of one bit, or of 32 in a row, escapes it.
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self.size = self.code = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.code = zlib.crc32(data, self.code)
        written = self._file.write(data)
        self.size += written
        return written

    def tell(self) -> int:
        return self.size

    def fileno(self) -> int:
        self._file.flush()  # DCP asks for it to have the file on disk
        return self._file.fileno()

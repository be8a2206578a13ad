"""Checkpoints: a directory per step, written by all ranks with DCP, trusted by its marker alone.

checkpoints/step-00000200/__0_0.distcp   tensors of the model and the optimizer
                          .metadata      which tensor lies where (torch's)
                          COMPLETE       written last: the place in the run, sizes of all files
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..base.errors import UserError
from ..base.files import fsync_directory, write_json
from ..runtime.collectives import barrier, broadcast
from ..runtime.world import is_root_process
from .options import refuse_other_run
from .plan import Place

MARKER = "COMPLETE"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True)
class Saved:
    """What a complete checkpoint says of itself.

    Attributes:
        place: how far the run had come.
        identity: the options that define the run.
        best: lowest validation loss so far and the step it was seen at; None before the first.
    """

    place: Place
    identity: dict[str, Any]
    best: tuple[float, int] | None


def save(
    root: Path, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Saved, keep: int
) -> None:
    """Write a checkpoint from all ranks; afterwards the newest `keep` complete ones are left.

    A kill at any moment leaves the earlier checkpoints as they were.

    Raises:
        OSError, CheckpointException: it could not be written (disk full); raised on every rank
            unless the marker alone failed.
    """
    directory = root / f"step-{saved.place.step:08d}"
    if is_root_process():
        root.mkdir(parents=True, exist_ok=True)
        (directory / MARKER).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
    barrier()
    writer = dcp.FileSystemWriter(directory, single_file_per_rank=True, sync_files=True)
    dcp.save(_tensors(model, optimizer), storage_writer=writer)
    if is_root_process():
        files = {path.name: path.stat().st_size for path in directory.iterdir()}
        fsync_directory(directory)
        best = list(saved.best) if saved.best else None
        marker = {"place": asdict(saved.place), "identity": saved.identity, "best": best}
        write_json(directory / MARKER, {**marker, "files": files})
        fsync_directory(root)
        _prune(root, keep, directory)


def restore(
    root: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> Saved | None:
    """Load the newest whole checkpoint on all ranks, whatever world size wrote it.

    Torn ones are passed over, with a printed line each. None when there is no whole one.

    Raises:
        UserError: the checkpoint is of another run or model; the message names what differs.
    """
    found = broadcast(_newest_whole(root) if is_root_process() else None)
    if found is None:
        return None
    directory, saved = found
    refuse_other_run(saved.identity, identity)
    state = _tensors(model, optimizer)
    reader = _Reader(directory)
    _refuse_other_model(reader.read_metadata(), state, directory)
    dcp.load(state, storage_reader=reader)
    _assign(model, optimizer, state)
    return saved


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Every tensor of model and optimizer under a flat name; numbers live in the marker alone,
    so that nothing in a checkpoint has to be unpickled."""
    parts: dict[str, Mapping[str, Any]] = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=_FLAT),
    }
    return {
        f"{part}.{name}": value
        for part, values in parts.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def _assign(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, torch.Tensor]
) -> None:
    set_model_state_dict(model, {k[6:]: v for k, v in state.items() if k.startswith("model.")})
    template: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FLAT)
    loaded = {k[10:]: v for k, v in state.items() if k.startswith("optimizer.")}
    template.update(loaded)
    set_optimizer_state_dict(model, optimizer, template, options=_FLAT)


def _newest_whole(root: Path) -> tuple[Path, Saved] | None:
    for directory in sorted(root.glob("step-*"), reverse=True):
        torn = _what_is_torn(directory)
        if not torn:
            marker = json.loads((directory / MARKER).read_text())
            best = tuple(marker["best"]) if marker["best"] else None
            return directory, Saved(Place(**marker["place"]), marker["identity"], best)
        print(f"checkpoint {directory.name} is torn ({torn}); falling back to the one before")
    return None


def _what_is_torn(directory: Path) -> str:
    """Why a checkpoint cannot be trusted; empty when it can."""
    marker = directory / MARKER
    if not marker.exists():
        return "its writing was interrupted"
    try:
        files: dict[str, int] = json.loads(marker.read_text())["files"]
    except (ValueError, KeyError):
        return "its marker is damaged"
    for name, size in files.items():
        path = directory / name
        if not path.exists():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return ""


def _prune(root: Path, keep: int, newest: Path) -> None:
    """Remove what the new checkpoint makes superfluous: old complete ones, and torn ones."""
    complete = [path for path in sorted(root.glob("step-*")) if (path / MARKER).exists()]
    # A run that fell back writes lower numbers than a torn or abandoned future holds.
    kept = {newest, *[path for path in complete if path < newest][-(keep - 1) :]}
    for path in root.glob("step-*"):
        if path not in kept:
            (path / MARKER).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def _refuse_other_model(metadata: Metadata, state: Mapping[str, Any], directory: Path) -> None:
    there = {
        name: tuple(entry.size)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    here = {name: tuple(value.shape) for name, value in state.items()}
    # The model's own names say it best; the optimizer's repeat them.
    for part in ("model.", "optimizer."):
        names = sorted(n for n in {*there, *here} if n.startswith(part))
        differing = [
            f"{name[len(part) :]}: {_shape(there.get(name))} in the checkpoint, "
            f"{_shape(here.get(name))} in this {part[:-1]}"
            for name in names
            if there.get(name) != here.get(name)
        ]
        if differing:
            shown = "\n  ".join(differing[:5])
            more = f"\n  and {len(differing) - 5} more" if len(differing) > 5 else ""
            raise UserError(
                f"checkpoint {directory} is of another {part[:-1]}:\n  {shown}{more}\n"
                "resume with the options the run was started with, or start a new run"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


class _Reader(dcp.FileSystemReader):
    """Reads `.metadata` through an unpickler that knows torch's own record types only."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
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


_METADATA_TYPES = {
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
    "TensorProperties", "_MEM_FORMAT_ENCODING", "MetadataIndex", "StorageMeta",
}  # fmt: skip


def cannot_be_written(error: BaseException) -> str:
    """The reason inside DCP's collection of the ranks' errors, in one line."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(sorted(failures.items())))
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {error}"


__all__ = ["MARKER", "Saved", "cannot_be_written", "restore", "save"]

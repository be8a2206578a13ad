"""Checkpoints: a directory per step, written by all ranks with DCP, trusted by its marker alone.

checkpoints/step-00000200/__0_0.distcp   tensors of the model and the optimizer
                          .metadata      which tensor lies where (torch's)
                          COMPLETE       the marker, written last
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..base.errors import UserError
from ..runtime.collectives import all_gather_object, broadcast
from ..runtime.log import print0
from ..runtime.world import is_root_process
from . import marker
from .marker import Candidate, Fingerprint, Saved
from .options import refuse_other_run

# A flipped bit or a hostile file shows as one of these; DCP's own is no Exception.
_UNREADABLE = (CheckpointException, pickle.UnpicklingError, OSError, EOFError, ValueError, KeyError)
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def save(
    root: Path, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Saved, keep: int
) -> None:
    """Write a checkpoint from all ranks; afterwards the newest `keep` complete ones are left.

    A kill at any moment leaves the earlier checkpoints as they were.

    Raises:
        OSError, CheckpointException: it could not be written (disk full), on every rank unless the
            marker alone failed. What there was of it is removed.
    """
    directory = root / f"step-{saved.place.step:08d}"
    failure = broadcast(marker.make_room(directory) if is_root_process() else None)
    if failure is not None:
        raise failure
    try:
        writer = dcp.FileSystemWriter(directory, single_file_per_rank=True, sync_files=True)
        dcp.save(_tensors(model, optimizer), storage_writer=writer)
        files = _fingerprints(directory)
        if is_root_process():
            marker.write(directory, saved, files)
            marker.prune(directory, keep)
    except (OSError, CheckpointException):
        if is_root_process():
            shutil.rmtree(directory, ignore_errors=True)
        raise


def restore(
    root: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> Saved | None:
    """Load the newest whole checkpoint on all ranks, whatever world size wrote it.

    Torn or changed ones are passed over, with a printed line each. None when none was ever whole.

    Raises:
        UserError: the checkpoint is of another run or model (the message names what differs), or
            all that once were whole are damaged.
    """
    nothing: tuple[list[Candidate], list[str], bool] = ([], [], False)
    here = marker.candidates(root) if is_root_process() else nothing
    found, passed, spoiled = broadcast(here)
    for line in passed:
        print0(line, flush=True)
    for candidate in found:
        refuse_other_run(candidate.saved.identity, identity)
        why = _damage(candidate)
        if not why:
            state = _tensors(model, optimizer)
            try:
                reader = _Reader(candidate.directory)
                _refuse_other_model(reader.read_metadata(), state, candidate.directory)
                dcp.load(state, storage_reader=reader)
                _assign(model, optimizer, state)
                return candidate.saved
            except _UNREADABLE as error:
                why = reason(error)
        print0(f"checkpoint {candidate.directory.name} is torn ({why}); passed over", flush=True)
    if found or spoiled:
        raise UserError(
            f"every checkpoint in {root} is damaged; bring the folder back from a copy, or start a "
            "new run"
        )
    return None


def _fingerprints(directory: Path) -> dict[str, Fingerprint]:
    """Fingerprints of all files, each rank reading its own."""
    world = dist.get_rank() if dist.is_initialized() else 0
    own = [*directory.glob(f"__{world}_*"), *([directory / ".metadata"] if world == 0 else [])]
    mine: dict[str, Fingerprint] | OSError
    try:
        mine = {path.name: marker.fingerprint(path) for path in own}
    except OSError as error:
        mine = error
    files: dict[str, Fingerprint] = {}
    for part in all_gather_object(mine):
        if isinstance(part, OSError):
            raise part
        files |= part
    return files


def _damage(candidate: Candidate) -> str:
    """What is wrong with a checkpoint's files, as all ranks found it together; empty if nothing."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    mine = candidate.damaged(sorted(candidate.files)[rank::ranks])
    return "; ".join(line for part in all_gather_object(mine) for line in part)


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


def reason(error: BaseException) -> str:
    """What went wrong, in one line; also out of DCP's collection of the ranks' errors."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(sorted(failures.items())))
        return f"rank {rank}: {type(cause).__name__}: {_line(cause)}"
    return f"{type(error).__name__}: {_line(error)}"


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]

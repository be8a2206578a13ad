"""Reading of a folder of tensors (`checkpoint.py`) into any layout, of which nothing is unpickled
but torch's own records of what lies where.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import pickle
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.optim import optimizer as of_torch

from .checkpoint import HASH, MARKER, MODEL, OPTIMIZER, Marker, cause, hash_of_text, without_group
from .state import (
    DamagedError,
    NamedTensors,
    Shape,
    agree,
    everywhere,
    gather,
    of_model,
    of_optimizer,
    refuse_other,
)
from .world import rank_and_size

# --- the marker


def read_marker(folder: Path) -> Marker:
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
        if about.pop("hash", None) not in (None, hash_of_text(about)):
            raise ValueError("it has changed since it was written")
        if not re.fullmatch(r"(parts-[0-9a-f]{8})?", about.get("parts", "")):
            raise ValueError(f"{about['parts']!r:.40} is no folder of parts")
        sized = {n: (f, "") if isinstance(f, int) else f for n, f in about["files"].items()}
        files = {str(name): (int(size), str(code)) for name, (size, code) in sized.items()}
    except Exception as error:  # whatever somebody, or a disk, has made of it
        raise DamagedError(f"its marker {MARKER} is damaged: {error}") from None
    return Marker(folder, files, about)


def damage(marker: Marker, hash_like: Callable[[Path, str], str] | None = None) -> list[str]:
    """Return what is wrong with a folder's files; each rank reads a share of them. Collective.

    Args:
        hash_like: hash of a file, of the kind of a given one; by default the one of today.
    """
    rank, ranks = rank_and_size()
    lines = []
    for name in sorted(marker.files)[rank::ranks]:
        path, (size, code) = marker.parts / name, marker.files[name]
        try:
            if not path.is_file():
                lines.append(f"{path.name} is missing")
            elif (has := path.stat().st_size) != size:
                lines.append(f"{path.name} has {has} bytes instead of {size}")
            elif (hash_like or _hash_like)(path, code) != code:
                lines.append(f"{path.name} has changed since it was written")
        except OSError as error:
            lines.append(f"{path.name} cannot be read ({error.strerror})")
    return [line for part in gather(lines) for line in part]


def fingerprint(path: Path) -> tuple[int, str]:
    """Return size and hash of a file."""
    return path.stat().st_size, _hash_like(path)


def _hash_like(path: Path, like: str = HASH) -> str:
    """Return the CRC-32 of a file."""
    if not like.startswith(HASH):
        return like  # the first version had none
    code = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            code = zlib.crc32(block, code)
    return f"{HASH}{code:08x}"


# --- tensors


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
    tensors = {f"{MODEL}{name}": value for name, value in held.tensors.items()}
    further = beside(there)
    own = prefix(there)

    def fill() -> None:
        failure: Exception | None = None
        try:
            with without_group():
                dcp.load(
                    tensors | further, storage_reader=reader, no_dist=not dist.is_initialized()
                )
        except (CheckpointException, Exception) as error:  # torch's own is none of Exception
            failure = DamagedError(f"{marker.folder} is damaged: {cause(error)}")
        agree(failure)
        held.settle()

    if optimizer is None:
        fill()
        return further
    with allocated(optimizer, model, held) as state:
        refuse_other(_below(own, there), state.shapes(), "optimizer", place, "checkpoint")
        loaded = {name: value for name, value in state.tensors.items() if own + name in there}
        tensors |= {own + name: value for name, value in loaded.items()}
        fill()
        settle_optimizer(optimizer, held, state, loaded)
    return further


def _below(prefix: str, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {n.removeprefix(prefix): shape for n, shape in shapes.items() if n.startswith(prefix)}


@contextlib.contextmanager
def allocated(
    optimizer: torch.optim.Optimizer, model: nn.Module, held: NamedTensors
) -> Iterator[NamedTensors]:
    """Give the optimizer all the state that it will ever have, for a file to be read into.

    A step on gradients of zeros allocates it, of which nothing else stays. Where the block fails,
    here or on another rank, the optimizer has what it had before. Collective.

    Raises:
        TypeError: the optimizer's step takes arguments, so that there is no telling.
    """
    before = dict(optimizer.state)
    try:
        yield everywhere(partial(_allocate, optimizer, held))
    except BaseException:
        optimizer.state.clear()
        optimizer.state.update(before)
        raise


def _allocate(optimizer: torch.optim.Optimizer, held: NamedTensors) -> NamedTensors:
    of_optimizer(optimizer, held)  # refuses parameters of another model
    kind = type(optimizer)
    if any(
        argument.default is argument.empty
        and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        for argument in list(inspect.signature(kind.step).parameters.values())[1:]
    ):
        raise TypeError(
            f"{kind.__name__} cannot be loaded: its step takes arguments (a closure), and what it "
            "keeps is known after one step only; load the model alone"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(optimizer.state.get(p) for p in parameters if p.requires_grad):
        with _nothing_but_state(optimizer, parameters):
            kind.step(optimizer)  # not its own `step`, which a scheduler may count
    return of_optimizer(optimizer, held)


@contextlib.contextmanager
def _nothing_but_state(
    optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]
) -> Iterator[None]:
    """Let a step make new state from gradients of zeros; all else is afterwards as it was."""
    groups = [dict(group) for group in optimizer.param_groups]
    gradients = [parameter.grad for parameter in parameters]
    weights = [_local(parameter) for parameter in parameters]
    hooks: list[dict[int, Any]] = [
        of_torch._global_optimizer_pre_hooks,
        of_torch._global_optimizer_post_hooks,
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
    ]
    hooks_before = [dict(kind) for kind in hooks]
    before: list[torch.Tensor] = []
    try:
        # A step may shrink weights whatever its rate. They wait in host memory.
        before += [weight.to("cpu", copy=True) for weight in weights]
        for group in optimizer.param_groups:
            if "lr" in group:
                rate = group["lr"]
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        sparse = isinstance(optimizer, torch.optim.SparseAdam)
        for parameter in parameters:
            zeros = torch.zeros_like(parameter) if parameter.requires_grad else None
            parameter.grad = zeros.to_sparse(1) if sparse and zeros is not None else zeros
        for kind in hooks:
            kind.clear()
        optimizer.state.clear()
        yield
    finally:
        for kind, own in zip(hooks, hooks_before, strict=True):
            kind.update(own)
        for group, numbers in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(numbers)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for weight, value in zip(weights, before, strict=False):  # fewer where memory was short
            weight.copy_(value)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's part, in the parameter's own memory."""
    parameter = parameter.detach()
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def settle_optimizer(
    optimizer: torch.optim.Optimizer,
    model: NamedTensors,
    state: NamedTensors,
    loaded: Collection[str],
) -> None:
    """After the tensors were filled: give the optimizer its numbers, and leave it no entry that was
    not `loaded`.

    A parameter that never had a gradient has no state, neither in a file nor, then, here.
    """
    state.settle()
    for parameter, entries in list(optimizer.state.items()):
        for key, value in list(entries.items()):
            name = f"{model.names[id(parameter)]}.{key}"
            if value is not None and name not in loaded:
                del entries[key]
            elif isinstance(value, bool | int | float):
                entries[key] = type(value)(state.tensors[name].item())
        if not entries:
            del optimizer.state[parameter]


# --- torch's records


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

"""Who writes which part of a checkpoint, and DCP's plan for exactly that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from .collectives import all_gather_object, all_reduce
from .state import Shape, parts
from .world import rank_and_size, several

Key = tuple[str, Shape]  # a tensor's name, where in it the part begins


@dataclass(frozen=True)
class Piece:
    """A part of a tensor that this rank stores.

    Attributes:
        tensor: the part itself, plain.
        whole: shape of the tensor it is a part of.
    """

    name: str
    offset: Shape
    tensor: torch.Tensor
    whole: Shape

    @property
    def key(self) -> Key:
        return self.name, self.offset


def cut(state: Mapping[str, torch.Tensor]) -> dict[Key, Piece]:
    """Return this rank's parts of named tensors, sharded or whole."""
    pieces = [
        Piece(name, offset, tensor.detach(), tuple(value.shape))
        for name, value in state.items()
        for tensor, offset in parts(value)
    ]
    return {piece.key: piece for piece in pieces}


class Share:
    """Assigns parts that several ranks store to one of them each, so that each byte is copied and
    written once. The assignment is kept for as long as all ranks ask about the same parts."""

    def __init__(self) -> None:
        self._asked: tuple[int, int, dict[Key, int]] | None = None
        self._mine: set[Key] = set()

    def of(self, pieces: Mapping[Key, Piece]) -> dict[Key, Piece]:
        """Return the parts that this rank is to write; collective."""
        if not several():
            return dict(pieces)
        sizes = {key: piece.tensor.nbytes for key, piece in pieces.items()}
        rank, ranks = rank_and_size()
        asked = rank, ranks, sizes
        if all_reduce(float(asked != self._asked), "max"):
            self._asked, self._mine = asked, _assign(all_gather_object(sizes))
        return {key: piece for key, piece in pieces.items() if key in self._mine}


def _assign(everyone: list[dict[Key, int]]) -> set[Key]:
    """Assign the largest first, each to that of its holders that has the least to write so far."""
    holders: dict[Key, list[int]] = {}
    size: dict[Key, int] = {}
    for rank, asked in enumerate(everyone):
        size |= asked
        for key in asked:
            holders.setdefault(key, []).append(rank)
    load = [0] * len(everyone)
    mine = set()
    me = dist.get_rank()
    for key in sorted(holders, key=lambda key: (len(holders[key]) > 1, -size[key], key)):
        writer = min(holders[key], key=lambda rank: (load[rank], rank))
        load[writer] += size[key]
        if writer == me:
            mine.add(key)
    return mine


class HostCopy:
    """A copy of pieces in host memory, whose buffers serve again for the next one."""

    def __init__(self) -> None:
        self._buffers: dict[Key, torch.Tensor] = {}

    def take(self, pieces: Mapping[Key, Piece]) -> dict[Key, Piece]:
        """Copy; the pieces may be changed once this returns."""
        kept, self._buffers = self._buffers, {}
        copied, devices = {}, set()
        for key, piece in pieces.items():
            source = piece.tensor
            buffer = kept.get(key)
            if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
                on_gpu = source.device.type == "cuda"
                buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=on_gpu)
            buffer.copy_(source, non_blocking=True)
            if source.device.type == "cuda":
                devices.add(source.device)
            self._buffers[key] = buffer
            copied[key] = Piece(piece.name, piece.offset, buffer, piece.whole)
        for device in devices:
            torch.cuda.synchronize(device)
        return copied


class PiecePlanner(DefaultSavePlanner):
    """A plan by which DCP writes the given pieces and nothing else."""

    def __init__(self, pieces: Mapping[Key, Piece]) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = pieces

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_item(piece) for piece in self._pieces.values()])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._pieces[index.fqn, tuple(index.offset or ())].tensor


def _item(piece: Piece) -> WriteItem:
    offset = torch.Size(piece.offset)
    return WriteItem(
        index=MetadataIndex(piece.name, offset),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=offset, sizes=piece.tensor.size()),
            properties=TensorProperties.create_from_tensor(piece.tensor),
            size=torch.Size(piece.whole),
        ),
    )

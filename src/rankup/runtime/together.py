"""What the ranks know together: whose names and shapes, and whether one of them has failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch.distributed as dist

from .collectives import all_gather_object, broadcast
from .state import Shape

T = TypeVar("T")


def union(here: Mapping[str, T]) -> dict[str, T]:
    """All ranks' entries, those of rank 0 first. Collective; cheap where the ranks hold the same.

    Where two ranks differ on a name the later one's entry counts.
    """
    merged = dict(broadcast(dict(here)))
    rest = {name: value for name, value in here.items() if merged.get(name) != value}
    for part in all_gather_object(rest):
        merged |= part
    return merged


def differences(
    there: Mapping[str, Shape], here: Mapping[str, Shape], place: str, owner: str
) -> list[str]:
    """One line for each name whose shape is not the same there and here."""
    return [
        f"{name}: {_shape(there.get(name))} in the {place}, {_shape(here.get(name))} in this "
        f"{owner}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]


def shortened(lines: list[str], most: int = 5) -> str:
    """The first lines, indented, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "".join(f"\n  {line}" for line in [*lines[:most], *more])


def unseen(there: Mapping[str, Shape], here: Mapping[str, Shape]) -> set[str]:
    """Entries of optimizer state that a file rightly lacks: their parameter never had a gradient.

    Only where the file has state for other parameters; an optimizer that keeps other things is
    another one.
    """
    if not there:
        return set()
    known = {name.rpartition(".")[0] for name in there}
    return {name for name in here if name.rpartition(".")[0] not in known}


def agree(error: BaseException | None, group: dist.ProcessGroup | None = None) -> None:
    """Raise on every rank when one failed; collective.

    Raises:
        the first failed rank's error, as far as it can be sent; OSError stays OSError.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        if error is not None:
            raise error
        return
    mine = None if error is None else (dist.get_rank(), _sendable(error))
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine, group=group)
    failed = [item for item in found if item is not None]
    if failed:
        rank, first = failed[0]
        if error is not None:
            raise error
        if isinstance(first, OSError) or rank == dist.get_rank():
            raise first
        raise type(first)(f"rank {rank}: {first}")


def _sendable(error: BaseException) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    for kind in (ValueError, TypeError):
        if type(error) is kind:
            return kind(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")


def _shape(shape: Shape | None) -> str:
    return "absent" if shape is None else str(list(shape))

"""A model cut for ranks that are not there: on meta tensors, in one process, without a network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ..base.errors import UserError
from ..runtime.world import World
from .build import Batch, Built, Loss, split
from .choices import Choices
from .holdings import Part, Piece, local_shape
from .initial import on_meta
from .layout import Layout
from .mesh import Mesh


@dataclass(frozen=True)
class Paper:
    """A model as a layout splits it.

    Attributes:
        parts: what lies at each place of the pp axis.
        parameters: numbers of the whole model, what is tied counted once.
        weights: their bytes.
        notes: what was said while it was cut.
    """

    parts: tuple[Part, ...]
    parameters: int
    weights: int
    notes: tuple[str, ...] = ()


def on_paper(
    build_model: Callable[[], nn.Module],
    layout: Layout,
    choices: Choices,
    example: tuple[Loss, Batch] | None = None,
) -> Paper:
    """Cut a model as `build` does, once for each place on the pp axis, and note the pieces.

    The ranks come from torch's "fake" backend, whose collectives do nothing. Call it where there
    is no process group.

    Args:
        example: as for `build`: what pipeline stages are balanced with.

    Raises:
        UserError: the model cannot be cut as the layout asks; says why, and the way out. Or this
            torch has no "fake" backend.
    """
    if layout.only_replicas:
        model = on_meta(build_model, 0)
        return Paper((_part(model, 0, (0,), {}),), *_whole(model))
    parts = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for pp in range(layout.pp):
            with pretended(layout, pp * (layout.world_size // layout.pp)) as mesh:
                built, stages = split(on_meta(build_model, 0), mesh, choices, example)
                held = tuple(stage.index for stage in stages) or (0,)
                parts.append(_part(built.model, pp, held, built.copies))
                _check(built, parts[-1])
    here = Path(__file__).resolve().parent
    notes = dict.fromkeys(
        str(one.message) for one in said if Path(one.filename).resolve().is_relative_to(here)
    )
    return Paper(tuple(parts), *_whole(built.whole), tuple(notes))


def fitting(build_model: Callable[[], nn.Module], choices: Choices) -> Callable[[Layout], bool]:
    """What says of a layout whether a model can be cut so; call it where there is no process group.

    Copies and shards come out for any model. Stages and matrices are tried for the first rank, each
    axis by itself: what keeps a model from being cut over both keeps it from one of them.
    """

    @cache
    def comes_out(axis: Layout) -> bool:
        try:
            with warnings.catch_warnings(), pretended(axis, 0) as mesh:
                warnings.simplefilter("ignore")
                split(on_meta(build_model, 0), mesh, choices)
        except Exception:  # also what the user's own chain() raises; `on_paper` tells it when asked
            return False
        return True

    def fits(layout: Layout) -> bool:
        axes = (Layout(pp=layout.pp), Layout(cp=layout.cp), Layout(tp=layout.tp))
        return all(comes_out(axis) for axis in axes if not axis.only_replicas)

    return fits


@contextmanager
def pretended(layout: Layout, rank: int) -> Iterator[Mesh]:
    """A mesh of ranks that are not there, seen from one of them."""
    dist.init_process_group("fake", store=_fake_store(), rank=rank, world_size=layout.world_size)
    try:
        yield Mesh(layout, World(0, rank, torch.device("cpu"), layout.world_size))
    finally:
        dist.destroy_process_group()


def _fake_store() -> dist.Store:
    """The store of torch's "fake" backend, which the import makes known."""
    try:
        # Private, and the only one there is: it may move with any version.
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise UserError(
            f"a model is cut on paper with torch's 'fake' process group, which torch "
            f"{torch.__version__} does not have where 2.13 has it ({error}); install that one, or "
            f"start a run on as many ranks, which needs no such group"
        ) from None
    return FakeStore()


def _whole(model: nn.Module) -> tuple[int, int]:
    tensors = list(model.parameters())
    return sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors)


def _part(model: nn.Module, pp: int, stages: tuple[int, ...], copies: Mapping[str, str]) -> Part:
    pieces = tuple(
        Piece(
            name,
            tuple(parameter.shape),
            parameter.element_size(),
            parameter.requires_grad,
            _dim(parameter, "tp"),
            _dim(parameter, "dp_shard"),
            copies.get(name),
        )
        for name, parameter in model.named_parameters()
    )
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    return Part(pp, stages, pieces, buffers)


def _dim(parameter: nn.Parameter, axis: str) -> int | None:
    """The dimension that is cut over an axis of the mesh, if any."""
    if not isinstance(parameter, DTensor):
        return None
    names = parameter.device_mesh.mesh_dim_names or ()
    if axis not in names:
        return None
    # FSDP's strided shards are no `Shard` to torch, but have a dimension all the same.
    found: int | None = getattr(parameter.placements[names.index(axis)], "dim", None)
    return found


def _check(built: Built, part: Part) -> None:
    """What is worked out for all ranks has to be what torch has cut for this one."""
    mesh = built.mesh
    for piece, parameter in zip(part.pieces, built.model.parameters(), strict=True):
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        shard = mesh.layout.shard_rank(mesh.world.rank)
        expected = local_shape(piece, mesh.layout, shard, mesh.tp)
        if tuple(local.shape) != expected:
            raise RuntimeError(
                f"{piece.name}: torch {torch.__version__} cuts {piece.shape} to "
                f"{tuple(local.shape)}, and {expected} was expected; please report it"
            )

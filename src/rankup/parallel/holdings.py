"""Who holds what of a model: each rank's part of every parameter, and what it weighs. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .layout import AXES, Layout


@dataclass(frozen=True)
class Piece:
    """A parameter of a pipeline stage, and how it is cut.

    Attributes:
        name: its full name in the model.
        shape: of the whole of it.
        itemsize: bytes of a number.
        trained: whether it has a gradient and optimizer state.
        tp_dim, shard_dim: the dimension that is cut over the ranks of an axis, None where each
            has all of it. Where both cut, the tensor axis does so first.
        copy_of: the parameter of an earlier stage that it is tied to.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int = 4
    trained: bool = True
    tp_dim: int | None = None
    shard_dim: int | None = None
    copy_of: str | None = None


@dataclass(frozen=True)
class Part:
    """What the ranks at one place of the pp axis share.

    Attributes:
        pp: their place on the axis.
        stages: the model's pipeline stages that lie there.
        buffers: bytes of tensors that are no parameters; each rank has all of them.
    """

    pp: int
    stages: tuple[int, ...]
    pieces: tuple[Piece, ...]
    buffers: int = 0


@dataclass(frozen=True)
class Holding:
    """Ranks that hold parts of the same shapes.

    Attributes:
        shapes: of the rank's part of each piece.
        parameters: numbers in them.
        weights, gradients, optimizer, buffers: bytes on one rank.
    """

    ranks: tuple[int, ...]
    part: Part
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    buffers: int

    @property
    def bytes(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.buffers


def chunk(size: int, parts: int, index: int) -> int:
    """How much of `size` the part `index` has, as torch cuts: equal parts, the last ones short."""
    full = -(-size // parts)
    return max(0, min(full, size - index * full))


def local_shape(piece: Piece, layout: Layout, shard: int, tp: int) -> tuple[int, ...]:
    """Shape of what the rank with the part `shard` of `shard_size` and this place on tp holds."""
    shape = list(piece.shape)
    if piece.tp_dim is not None:
        shape[piece.tp_dim] = chunk(shape[piece.tp_dim], layout.tp, tp)
    if piece.shard_dim is not None:
        shape[piece.shard_dim] = chunk(shape[piece.shard_dim], layout.shard_size, shard)
    return tuple(shape)


def holdings(layout: Layout, parts: Sequence[Part], states: int) -> list[Holding]:
    """What all ranks of `layout` hold, those that hold alike together, in order of first rank.

    Args:
        parts: one for each place on the pp axis.
        states: numbers that the optimizer keeps per trained one: two of AdamW.
    """
    shapes = {
        (part.pp, shard, tp): tuple(local_shape(p, layout, shard, tp) for p in part.pieces)
        for part in parts
        for shard in range(layout.shard_size)
        for tp in range(layout.tp)
    }
    alike: dict[tuple[int, tuple[tuple[int, ...], ...]], list[int]] = {}
    for rank in range(layout.world_size):
        pp, *_, tp = layout.coordinates(rank)
        shard = layout.shard_rank(rank)
        alike.setdefault((pp, shapes[pp, shard, tp]), []).append(rank)
    by_place = {part.pp: part for part in parts}
    return [_holding(ranks, by_place[pp], held, states) for (pp, held), ranks in alike.items()]


def _holding(
    ranks: Sequence[int], part: Part, shapes: tuple[tuple[int, ...], ...], states: int
) -> Holding:
    sizes = [math.prod(shape) for shape in shapes]
    both = list(zip(part.pieces, sizes, strict=True))
    trained = sum(size * piece.itemsize for piece, size in both if piece.trained)
    return Holding(
        ranks=tuple(ranks),
        part=part,
        shapes=shapes,
        parameters=sum(sizes),
        weights=sum(size * piece.itemsize for piece, size in both),
        gradients=trained,
        optimizer=states * trained,
        buffers=part.buffers,
    )


@dataclass(frozen=True)
class Block:
    """Neighbouring ranks that fill a box of the mesh: all combinations of their coordinates.

    Attributes:
        ranks: first to last.
        spans: the coordinates on each axis, in the order of `AXES`.
    """

    ranks: range
    spans: tuple[range, ...]


def rows(layout: Layout, per_node: int, most: int = 16) -> list[Block]:
    """The mesh in few lines: a rank each, or as much of a node, or all that share one copy."""
    size = layout.world_size
    every = [_block(layout, range(rank, rank + 1)) for rank in range(size)]
    if size <= most:
        return every
    if size // per_node <= 2 * most:
        return [
            block
            for start in range(0, size, per_node)
            for block in _merged(layout, every[start : start + per_node])
        ]
    copy = layout.shard_size * layout.tp
    step = copy if size // copy <= 2 * most else size // layout.pp
    return [_block(layout, range(start, start + step)) for start in range(0, size, step)]


def _merged(layout: Layout, blocks: Sequence[Block]) -> list[Block]:
    """Neighbours brought together as far as they fill boxes."""
    found: list[Block] = []
    start = 0
    while start < len(blocks):
        best, stop = blocks[start], start + 1
        for end in range(start + 1, len(blocks)):
            wider = _block(layout, range(blocks[start].ranks.start, blocks[end].ranks.stop))
            if math.prod(map(len, wider.spans)) == len(wider.ranks):
                best, stop = wider, end + 1
        found.append(best)
        start = stop
    return found


def _block(layout: Layout, ranks: range) -> Block:
    places = [layout.coordinates(rank) for rank in ranks]
    spans = tuple(
        range(min(p[axis] for p in places), max(p[axis] for p in places) + 1)
        for axis in range(len(AXES))
    )
    return Block(ranks, spans)

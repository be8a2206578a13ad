"""Who holds what: worked out for all ranks, and what torch gives each."""

from __future__ import annotations

import math

import pytest
from torch import nn
from torch.distributed.tensor import DTensor

from rankup.base.errors import UserError
from rankup.parallel.build import Built, build, split
from rankup.parallel.choices import Choices
from rankup.parallel.holdings import Part, Piece, chunk, holdings, local_shape, rows
from rankup.parallel.initial import on_meta
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.parallel.on_paper import on_paper, pretended
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.world import World
from tests.pool import RankPool

# 37 words and 7 places come out even over no number of ranks.
Shapes = dict[str, tuple[int, ...]]


def model(tied: bool = False) -> nn.Module:
    return Transformer(Shape(37, 7, 3, 16, 4, 0.0, tied=tied))


def shapes_of(built: Built) -> Shapes:
    return {
        name: tuple((p.to_local() if isinstance(p, DTensor) else p).shape)
        for name, p in built.model.named_parameters()
    }


def expected(layout: Layout, schedule: str = "1f1b", tied: bool = False) -> list[Shapes]:
    """What each rank holds, as it is worked out."""
    paper = on_paper(lambda: model(tied), layout, Choices(schedule=schedule))
    found: dict[int, Shapes] = {}
    for one in holdings(layout, paper.parts, 2):
        names = [piece.name for piece in one.part.pieces]
        found.update({rank: dict(zip(names, one.shapes, strict=True)) for rank in one.ranks})
    return [found[rank] for rank in range(layout.world_size)]


@pytest.mark.parametrize(("size", "parts"), [(8, 2), (7, 2), (5, 4), (3, 8), (1, 3)])
def test_parts_make_up_the_whole(size: int, parts: int) -> None:
    found = [chunk(size, parts, i) for i in range(parts)]
    assert sum(found) == size
    assert found == sorted(found, reverse=True)
    assert found[0] == math.ceil(size / parts)


def test_the_tensor_axis_cuts_first() -> None:
    piece = Piece("w", (10, 6), tp_dim=0, shard_dim=0)
    layout = Layout(dp_shard=2, tp=2)
    assert local_shape(piece, layout, 0, 1) == (3, 6)
    assert local_shape(piece, layout, 1, 1) == (2, 6)
    crossed = Piece("w", (10, 6), tp_dim=1, shard_dim=0)
    assert local_shape(crossed, layout, 1, 1) == (5, 3)


@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        (Layout(dp_shard=3, tp=2), "1f1b"),
        (Layout(pp=2, dp_replicate=2, dp_shard=3), "1f1b"),
        (Layout(pp=2, tp=2), "interleaved"),
        (Layout(dp_replicate=2, dp_shard=3, cp=2), "1f1b"),
    ],
    ids=str,
)
def test_every_rank_of_torch_has_what_is_said(layout: Layout, schedule: str) -> None:
    """What is built for the first rank of a stage and worked out for the others."""
    said = expected(layout, schedule)
    for rank in range(layout.world_size):
        with pretended(layout, rank) as mesh:
            built, _ = split(on_meta(model, 0), mesh, Choices(schedule=schedule))
            assert shapes_of(built) == said[rank], rank


def _built(world: World, layout: Layout) -> Shapes:
    return shapes_of(build(model, Mesh(layout, world), 0, Choices()))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp_shard=2),
        Layout(pp=2),
        pytest.param(Layout(pp=2, tp=2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_real_ranks_hold_what_is_said(ranks: RankPool, layout: Layout) -> None:
    assert ranks.run(layout.world_size, _built, layout) == expected(layout)


def test_copies_hold_alike_and_all_parts_are_the_model() -> None:
    layout = Layout(dp_replicate=3, dp_shard=2)
    paper = on_paper(model, layout, Choices())
    held = holdings(layout, paper.parts, 2)
    assert [one.ranks for one in held] == [(0, 2, 4), (1, 3, 5)]
    assert sum(one.parameters for one in held) == paper.parameters
    assert paper.parameters == sum(p.numel() for p in model().parameters())
    for one in held:
        assert (one.gradients, one.optimizer) == (one.weights, 2 * one.weights)
        assert one.bytes == 16 * one.parameters


def test_what_is_not_trained_has_no_gradient() -> None:
    part = Part(0, (0,), (Piece("a", (4,)), Piece("b", (6,), trained=False)), buffers=5)
    [one] = holdings(Layout(dp_replicate=2), [part], 2)
    assert (one.weights, one.gradients, one.optimizer, one.buffers) == (40, 16, 32, 5)


def test_tied_weights_of_two_stages_are_said_to_be_copies() -> None:
    paper = on_paper(lambda: model(tied=True), Layout(pp=2), Choices())
    copied = {p.name: p.copy_of for part in paper.parts for p in part.pieces if p.copy_of}
    assert copied == {"head.weight": "tokens.weight"}
    assert [part.stages for part in paper.parts] == [(0,), (1,)]


def test_replicas_need_no_cut() -> None:
    [part] = on_paper(model, Layout(dp_replicate=4), Choices()).parts
    assert [(p.tp_dim, p.shard_dim) for p in part.pieces] == [(None, None)] * len(part.pieces)


def test_a_model_without_a_chain_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be cut into pipeline stages"):
        on_paper(lambda: nn.ModuleDict({"a": nn.Linear(2, 2)}), Layout(pp=2), Choices())


@pytest.mark.parametrize(
    ("layout", "per_node", "lines"),
    [
        (Layout(pp=2, dp_shard=2, tp=2), 4, 8),
        (Layout(pp=2, dp_shard=16, tp=2), 4, 16),
        (Layout(pp=8, dp_shard=16, tp=4), 4, 8),
        (Layout(dp_replicate=512), 4, 1),
        (Layout(pp=3, dp_shard=3, tp=3), 5, None),  # nodes that hold no whole box
    ],
    ids=str,
)
def test_rows_tell_of_each_rank_once(layout: Layout, per_node: int, lines: int | None) -> None:
    found = rows(layout, per_node)
    assert [rank for block in found for rank in block.ranks] == list(range(layout.world_size))
    assert lines is None or len(found) == lines
    for block in found:
        places = {layout.coordinates(rank) for rank in block.ranks}
        assert len(places) == math.prod(len(span) for span in block.spans)
        assert all(at in span for p in places for at, span in zip(p, block.spans, strict=True))

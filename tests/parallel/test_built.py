"""Corners of a built model that the runs of whole layouts do not meet."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from rankup.base.errors import UserError
from rankup.parallel.build import Built, build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.parallel.pipeline.cut import cut, links
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.state import local
from rankup.runtime.world import World
from tests.pool import RankPool

Batch = tuple[torch.Tensor, ...]


class Stack(nn.Sequential):
    def tensor_plan(self) -> dict[str, ParallelStyle]:
        gathered = ColwiseParallel(output_layouts=Replicate())
        return {"0": gathered, "2": ColwiseParallel(), "4": RowwiseParallel()}


def _stack() -> nn.Module:
    return Stack(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def _frozen() -> nn.Module:
    model = Transformer(Shape(32, 8, 2, 16, 4, 0.0, tied=True))
    model.tokens.weight.requires_grad_(False)
    return model


def _squares(model: nn.Module, batch: Batch) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().sum()


def _per_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="sum")


def _recomputed(world: World, layout: Layout) -> list[torch.Tensor]:
    """Gradients of a stack whose norm is held whole by each rank, computed twice."""
    built = build(_stack, Mesh(layout, world), 1, Choices(recompute="full"))
    batch = (torch.ones(3, 4), torch.arange(12.0).view(3, 4))
    _squares(built.replica, batch).backward()
    built.finish_gradients()
    return [_whole(p.grad) for p in built.model.parameters()]


def _whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return getattr(tensor, "full_tensor", lambda: tensor)()


def test_a_norm_that_every_rank_holds_can_be_recomputed(ranks: RankPool) -> None:
    [alone] = ranks.run(1, _recomputed, Layout())
    cut_up, _ = ranks.run(2, _recomputed, Layout(tp=2))
    torch.testing.assert_close(cut_up, alone)


def _step(built: Built) -> None:
    tokens = torch.arange(16).view(2, 8)
    assert built.pipeline is not None
    built.pipeline.step([(tokens, tokens)], [1.0], _per_token)
    built.finish_gradients()


def _moved(world: World) -> float:
    """How far a frozen parameter that both stages hold goes in a step."""
    built = build(_frozen, Mesh(Layout(pp=2), world), 1, Choices())
    name = next(iter(built.copies), "tokens.weight")
    shared = built.model.get_parameter(name)
    before = shared.detach().clone()
    optimizer = torch.optim.AdamW(built.model.parameters(), lr=0.1, weight_decay=0.5)
    _step(built)
    optimizer.step()
    return float((shared - before).abs().max())


def test_a_frozen_tied_parameter_stays_frozen_over_stages(ranks: RankPool) -> None:
    assert ranks.run(2, _moved) == [0.0, 0.0]


def test_what_has_nothing_to_train_is_no_stage_of_its_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
    assert cut(links(model), model, [0.0, 1.0, 5.0, 1.0, 5.0], 2) == [range(3), range(3, 5)]
    with pytest.raises(UserError, match="1 to 2"):
        cut(links(model), model, [1.0] * 5, 3)


def _offloaded(world: World) -> list[str]:
    """Where parameters and buffers of a model lie whose shards are kept in host memory."""

    def with_buffer() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    built = build(with_buffer, Mesh(Layout(dp_shard=2), world), 1, Choices(offload=True))
    assert not any(tensor.is_meta for tensor in built.model.buffers())
    return [str(tuple(local(p).shape)) for p in built.model.parameters()]


def test_buffers_are_there_and_a_rank_may_hold_nothing_of_a_parameter(ranks: RankPool) -> None:
    first, second = ranks.run(2, _offloaded)
    assert first[-2:] == ["(1, 8)", "(1,)"]
    assert second[-2:] == ["(0, 8)", "(0,)"]


def test_a_module_that_stands_twice_is_computed_twice() -> None:
    again = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), again, nn.Linear(2, 2), again, nn.Linear(2, 2))
    assert [link.name for link in links(model)] == ["0", "1", "2", "3", "4"]


def _masked(model: nn.Module, batch: Batch) -> torch.Tensor:
    """A mean over what a mask leaves: no number where it leaves nothing."""
    return (model(batch[0]).square() * batch[1]).sum() / batch[1].sum()


def _weightless(world: World) -> bool:
    built = build(_stack, Mesh(Layout(pp=2), world), 1, Choices())
    assert built.pipeline is not None
    batches = [(torch.ones(3, 4), torch.ones(3, 4)), (torch.ones(3, 4), torch.zeros(3, 4))]
    built.pipeline.step(batches, [1.0, 0.0], _masked)
    return all(
        bool(p.grad.isfinite().all()) for p in built.model.parameters() if p.grad is not None
    )


def test_a_chunk_without_weight_leaves_no_trace(ranks: RankPool) -> None:
    assert ranks.run(2, _weightless) == [True, True]

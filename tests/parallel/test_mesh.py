"""Making the groups of a mesh: ranks meet a few times for it, however many there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from rankup.parallel.build import split
from rankup.parallel.choices import Choices
from rankup.parallel.initial import on_meta
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.recipes.models.transformer import Shape, Transformer
from tests.parallel.pretended import pretended

RANKS = 256


def _made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Descriptions of the groups that are made from here on, one per call."""
    made: list[str] = []
    new_group = dist.new_group

    def noted(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["group_desc"])
        return new_group(*args, **kwargs)

    monkeypatch.setattr(dist, "new_group", noted)
    return made


def test_tied_weights_of_many_pipelines_take_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(32, 8, 2, 16, 4, 0.0, tied=True)
    with pretended(Layout(pp=2, dp_shard=RANKS // 2), 0) as mesh:
        made = _made(monkeypatch)
        built, _ = split(on_meta(lambda: Transformer(shape), 0), mesh, Choices())
        assert built.ties is not None
        [(_, _, group)] = built.ties.shared
        assert group is not None
        assert dist.get_process_group_ranks(group) == [0, RANKS // 2]
    assert made == ["mesh_ties"]


def test_copies_that_train_apart_take_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(Layout(dp_replicate=RANKS // 4, dp_shard=4), 5) as mesh:
        made = _made(monkeypatch)
        apart = Mesh(mesh.layout, mesh.world, apart=True)
        assert apart.step_group is not None
        assert dist.get_process_group_ranks(apart.step_group) == [4, 5, 6, 7]
    assert made == ["mesh_copy"]

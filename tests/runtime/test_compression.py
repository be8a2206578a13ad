"""`wrap` and the recipes with gradients in fewer bytes, by torch's own hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankup.parallel.build import replicate
from rankup.runtime.compression import parse
from rankup.runtime.context import CONTEXT, count
from rankup.runtime.model import wrap
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.parallel.tasks import SmallLM
from tests.parallel.test_same_run import SGD
from tests.parallel.traffic import delivered
from tests.pool import RankPool
from tests.train.runs import losses, train_task

NAMES = ("bf16", "powersgd:3")
SEVERAL = 0.002  # MB of a bucket: each layer has its own


@contextmanager
def small_buckets() -> Iterator[None]:
    """DDP lays out many buckets, in the first backward and anew after it."""
    plain = DistributedDataParallel.__init__

    def init(self: Any, model: nn.Module, **kwargs: Any) -> None:
        plain(self, model, **kwargs, bucket_cap_mb=SEVERAL)

    with mock.patch.object(DistributedDataParallel, "__init__", init):
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 2)
    )


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(size, 6, generator=draw)
    return inputs, torch.stack([inputs[:, 0] * inputs[:, 1], inputs[:, 2:].sum(1)], 1)


def flat(tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def forget() -> None:
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()


def _each(world: World, names: tuple[str, ...], function: Callable[..., Any], *args: Any) -> Any:
    """What `function(world, name, *args)` gives for each name; a call of the pool costs more."""
    return {name: function(world, name, *args) for name in names}


def _train(world: World, name: str) -> dict[str, Any]:
    """Steps of uneven batches through several buckets; the last rank has a NaN for none."""
    forget()
    sizes = (9, 7, 0)
    with small_buckets():
        model = wrap(network(), compress=name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(60):
        pairs = zip(*(part.split(list(sizes)) for part in batch(step, sum(sizes))), strict=True)
        inputs, targets = list(pairs)[world.rank]
        CONTEXT.samples = (sizes[world.rank], sum(sizes))
        if not len(inputs):
            inputs, targets = torch.full((1, 6), torch.nan), torch.zeros(1, 2)
        count(2 * sizes[world.rank])
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    inputs, targets = batch(1000, 500)
    with torch.no_grad():
        loss = float((model(inputs) - targets).square().mean())
    return {"weights": flat(model.parameters()), "loss": loss, "started": float(targets.var())}


def test_uneven_batches_train_as_without(ranks: RankPool) -> None:
    """In bf16 it ends where the plain run does, by PowerSGD near it; and equal on all ranks."""
    by_rank = ranks.run(3, _each, ("none", *NAMES), _train)
    plain = by_rank[0]["none"]
    assert plain["loss"] < 0.8 * plain["started"], "there is something to learn"
    for name, bound in {"bf16": 0.01, "powersgd:3": 0.05}.items():
        trained = [of_rank[name] for of_rank in by_rank]
        for other in trained:
            assert torch.equal(trained[0]["weights"], other["weights"]), name
        assert trained[0]["loss"] == pytest.approx(plain["loss"], rel=bound), name


def _zeros(world: World, name: str) -> bool:
    forget()
    model = wrap(network(), compress=name)
    for _ in range(5):
        model.zero_grad()
        (model(torch.zeros(1, 6)) * 0.0).sum().backward()
    return not flat(p.grad for p in model.parameters()).any()


def test_gradients_of_zeros_stay_so(ranks: RankPool) -> None:
    assert ranks.run(2, _each, NAMES, _zeros) == [dict.fromkeys(NAMES, True)] * 2


def _wire(world: World, name: str) -> int:
    """Bytes on the wire in a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 300))
    replica = replicate(model, parse(name))
    before = 0
    for step in range(5):
        if step == 4:  # the first two of powersgd are sent whole
            before = delivered()
        replica(torch.ones(2, 300) * (step + world.rank)).square().mean().backward()
    return delivered() - before


def test_fewer_bytes_are_on_the_wire(ranks: RankPool) -> None:
    for sent in ranks.run(2, _each, ("none", "bf16", "powersgd:4"), _wire):
        assert sent["bf16"] < 0.55 * sent["none"]
        assert sent["powersgd:4"] < 0.1 * sent["none"]


def _of_recipe(world: World, directory: Path, options: TrainOptions) -> str:
    return train_task(world, SmallLM(options), options, directory, False).error


@pytest.mark.parametrize(
    ("strategy", "name", "near"),
    [("ddp", "bf16", 1e-3), ("fsdp", "bf16", 1e-3), ("ddp", "powersgd:4", 0.1)],
)
def test_a_recipe_trains_nearly_as_without(
    ranks: RankPool, tmp_path: Path, strategy: Any, name: str, near: float
) -> None:
    """Under FSDP by its own type of sums: another run than without, and close to it."""
    options = replace(SGD, steps=8, valid_every=8, checkpoint_every=8, strategy=strategy)
    for kind in ("none", name):
        asked = replace(options, compress=kind)
        assert ranks.run(2, _of_recipe, tmp_path / kind, asked) == ["", ""]
    plain, sent = losses(tmp_path / "none"), losses(tmp_path / name)
    assert sent != plain
    assert sent[-1] < sent[0]
    assert sent == pytest.approx(plain, rel=near)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gzip", "known are none, bf16 and powersgd"),
        ("int8", "compress='int8' is gone in 0.3: give bf16 or powersgd"),
        ("bf16:2", "no compression"),
        ("powersgd:0", "the rank of its matrices"),
    ],
)
def test_what_is_no_compression_is_named_with_those_there_are(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrap(nn.Linear(1, 1), compress=text)

"""The promise of the runtime in one place: a small training script is the same on 1, 2, 4 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankup
from rankup.runtime.context import CONTEXT
from rankup.runtime.world import World
from tests.pool import RankPool

Losses = list[tuple[float, float]]


def _data(n: int, seed: int) -> TensorDataset:
    inputs = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def _train(world: World, folder: Path) -> Losses:
    """What a user writes; 50 samples by 8 leave 2 in the last batch, 7 by 4 leave 3."""
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()
    torch.manual_seed(0)
    world = rankup.setup()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(world.device)
    train = rankup.shard(DataLoader(_data(50, 1), batch_size=8, shuffle=True))
    valid = rankup.shard(DataLoader(_data(7, 2), batch_size=4))
    model = rankup.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        model.train()
        total = count = 0.0
        for x, y in train:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert CONTEXT.samples is not None
            total += loss.item() * CONTEXT.samples[0]
            count += CONTEXT.samples[0]
        train_loss = rankup.mean(total, count)
        model.eval()
        total = count = 0.0
        with torch.no_grad():
            for x, y in valid:
                total += float(nn.functional.mse_loss(model(x), y, reduction="sum"))
                count += len(x)
        losses.append((train_loss, rankup.mean(total, count)))
    rankup.save0(model, folder / f"model-{world.world_size}.pt")
    return losses


def test_the_same_losses_and_weights_on_any_number_of_ranks(
    ranks: RankPool, tmp_path: Path
) -> None:
    """Invariants 1 and 3: same run, exact evaluation."""
    expected = ranks.run(1, _train, tmp_path)[0]
    assert expected[-1][1] < expected[0][1] / 2, "it learns"
    weights = torch.load(tmp_path / "model-1.pt", weights_only=True)
    for world_size in (2, 4):
        for losses in ranks.run(world_size, _train, tmp_path):
            for found, alone in zip(losses, expected, strict=True):
                assert found == pytest.approx(alone, rel=1e-5)
        others = torch.load(tmp_path / f"model-{world_size}.pt", weights_only=True)
        for name, value in weights.items():
            torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-6)

"""What a ported script counts is what one process counts."""

from __future__ import annotations

import functools
import operator
import random

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import rankup
from rankup.runtime.context import CONTEXT
from rankup.runtime.world import World
from tests.pool import RankPool

Found = dict[str, object]


def _loader(n: int, batch: int, shuffle: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(float(n))), batch_size=batch, shuffle=shuffle)


def _forget() -> None:
    CONTEXT.samples = CONTEXT.units = CONTEXT.last = CONTEXT.counted = None


def _train(world: World) -> Found:
    """11 values in batches of 4: the last batch has 3, fewer than there are ranks."""
    _forget()
    torch.manual_seed(0)
    means, sums, tensors, losses = [], [], [], []
    for (x,) in rankup.shard(_loader(11, 4, True)):
        means.append(rankup.batch_mean(x.mean().item()))
        tensors.append(rankup.batch_mean(torch.stack([x.mean(), 2 * x.mean()])).tolist())
        sums.append((rankup.batch_sum(len(x)), rankup.batch_sum(x.sum()).item()))
        # What `wrap` does with it: the mean over samples of the ranks' parts.
        mine, size = CONTEXT.samples or (1, 1)
        loss = rankup.summed(x.sum())
        losses.append(rankup.all_reduce(float(loss) * mine / size))
    return {"means": means, "sums": sums, "tensors": tensors, "losses": losses}


def _evaluate(world: World, n: int) -> Found:
    _forget()
    correct = seen = 0
    by_batch, rows, outputs = [], [], []
    mean, histogram = 0.0, torch.zeros(3)
    tensor: torch.Tensor | int = 0
    with torch.no_grad():
        for (x,) in rankup.shard(_loader(n, 4, False)):
            correct += int((x > 2).sum())
            seen += len(x)
            mean += rankup.share(x.mean().item())
            by_batch.append(rankup.share(x.mean()))
            tensor = tensor + x.sum()
            histogram[0] += x.sum()
            rows.extend(x.tolist())
            outputs.append(x.sum().item())
    correct, seen, mean, tensor, histogram = rankup.total(correct, seen, mean, tensor, histogram)
    assert isinstance(correct, int)
    assert isinstance(seen, int)
    assert isinstance(tensor, torch.Tensor), "also on a rank that had no batch"
    per_batch = rankup.total(by_batch)
    return {
        "numbers": [float(v) for v in (correct, seen, mean, tensor)],
        "histogram": histogram.tolist(),
        "by_batch": [float(value) for value in per_batch],
        "dict": rankup.total({"seen": len(rows), "pair": (len(rows), 1.0)}),
        "rows": rankup.gather(rows),
        "tensor rows": rankup.gather(torch.tensor(rows)).tolist(),
        "pieces": sum(rankup.gather(outputs)),
    }


def _all(world: World) -> list[Found]:
    return [_train(world), *(_evaluate(world, n) for n in (1, 2, 9, 12))]


def test_counts_of_any_number_of_ranks_are_those_of_one(ranks: RankPool) -> None:
    one = ranks.run(1, _all)[0]
    for world_size in (2, 4):
        for found in ranks.run(world_size, _all):
            for ours, expected in zip(found, one, strict=True):
                assert ours.pop("dict", {}).get("seen") == expected.get("dict", {}).get("seen")
                plain = {k: v for k, v in expected.items() if k != "dict"}
                for key, value in plain.items():
                    torch.testing.assert_close(
                        torch.tensor(ours[key]),
                        torch.tensor(value),
                        msg=lambda m, k=key: f"{k}: {m}",
                    )


def _batches(world: World) -> tuple[list[int], int, list[float]]:
    _forget()
    torch.manual_seed(0)
    loader = rankup.shard(_loader(11, 2, True), batch="per-gpu")
    mine, seen = [], []
    for (x,) in loader:
        mine.append(len(x))
        seen += x.tolist() if CONTEXT.samples and CONTEXT.samples[0] else []
    return mine, len(loader), seen


def test_per_gpu_gives_each_rank_a_batch_of_the_loader(ranks: RankPool) -> None:
    found = ranks.run(2, _batches)
    assert [mine for mine, _, _ in found] == [[2, 2, 1], [2, 2, 2]]
    assert {length for _, length, _ in found} == {3}
    assert sorted(v for _, _, seen in found for v in seen) == [float(i) for i in range(11)]
    with pytest.raises(ValueError, match="'global' or 'per-gpu'"):
        rankup.shard(_loader(3, 1, False), batch="node")  # type: ignore[arg-type]


def _drawn(world: World) -> tuple[list[list[float]], float, tuple[int, int] | None]:
    _forget()
    random.seed(world.rank)
    torch.manual_seed(world.rank)
    rankup.same_random()
    number = random.random()
    drawn = torch.randperm(7)[:5].float()
    torch.manual_seed(world.rank)  # however the ranks' streams part later
    x, (y, more) = rankup.deal((drawn, [drawn * 2, "kept"]))  # type: ignore[misc]
    assert more == "kept"
    return [x.tolist(), y.tolist()], number, CONTEXT.samples


def test_a_batch_drawn_by_hand_is_cut_by_position(ranks: RankPool) -> None:
    one = ranks.run(1, _drawn)[0]
    found = ranks.run(2, _drawn)
    assert len({number for _, number, _ in found}) == 1
    assert [samples for _, _, samples in found] == [(2, 5), (3, 5)]
    assert functools.reduce(operator.iadd, (parts[0] for parts, _, _ in found), []) == one[0][0]
    assert functools.reduce(operator.iadd, (parts[1] for parts, _, _ in found), []) == one[0][1]
    with pytest.raises(ValueError, match="no tensor"):
        rankup.deal("text")

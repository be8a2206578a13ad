"""What `shard` deals to ranks that compute one batch together, and in evaluation."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import rankup
from rankup.base.errors import UserError
from rankup.data.loader import Loader
from rankup.parallel.user.parallelize import parallelize
from rankup.runtime.context import CONTEXT, Place
from rankup.runtime.shard import rounds
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import forget, sgd, stack


@pytest.mark.parametrize(
    ("sizes", "ranks_", "wanted"),
    [
        ([4, 4, 4], 2, [4, 4, 4]),
        ([4, 4, 1], 2, [4, 5]),
        ([2, 2, 2, 1], 3, [4, 3]),
        ([2, 2, 1], 3, [5]),
        ([1, 1, 1], 1, [1, 1, 1]),
        ([2], 4, [2]),
        ([], 4, []),
    ],
)
def test_rounds(sizes: list[int], ranks_: int, wanted: list[int]) -> None:
    numbers = iter(range(100))
    batches = [[next(numbers) for _ in range(size)] for size in sizes]
    found = [list(chain(*group)) for group in rounds(batches, ranks_)]
    assert [len(batch) for batch in found] == wanted
    assert list(chain(*found)) == list(chain(*batches))


class Noisy(Dataset[torch.Tensor]):
    """The sample's number, and a random draw."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(torch.rand(()))])


class Coins(Sampler[int]):
    """Throws for every single index."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            yield int(torch.randint(8, ()))


def _dealt(world: World, workers: int) -> list[torch.Tensor]:
    """What two loaders, made before the layout is known, deal this rank."""
    forget()
    coins = rankup.shard(DataLoader(Noisy(), batch_size=4, sampler=Coins()), train=True)
    options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    loader = rankup.shard(DataLoader(Noisy(), batch_size=4, shuffle=True, **options), train=True)
    parallelize(stack, sgd, dp=world.world_size // 2, tp=2)
    assert CONTEXT.place() == Place(world.rank // 2, world.world_size // 2, True)
    # The pool's own processes are daemons, which may not start any, and would spawn them.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    try:
        return [batch for one in (coins, loader, coins) for batch in one]
    finally:
        multiprocessing.current_process()._config["daemon"] = True  # type: ignore[attr-defined]


def test_ranks_of_a_tensor_group_get_the_same_samples(ranks: RankPool) -> None:
    first, second = ranks.run(2, _dealt, 0)
    assert len(first) == 6
    assert all(len(batch) == 4 for batch in first)
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_also_with_workers_and_beside_data_ranks(ranks: RankPool) -> None:
    results = ranks.run(4, _dealt, 1)
    for a, b, c, d in zip(*results, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(c, d)
        assert len(a) + len(c) == 4
        assert not torch.equal(a[:, 1], c[:, 1])
    numbers = torch.cat([batch[:, 0] for one in (results[0], results[2]) for batch in one[2:4]])
    assert sorted(numbers.tolist()) == list(range(8))


def _evaluated(world: World, n: int, strategy: str) -> tuple[float, float, int]:
    forget()
    model, _ = parallelize(stack, sgd, strategy)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 6, generator=draw), torch.randn(n, 3, generator=draw)
    total, seen, forwards = 0.0, 0, 0
    with torch.no_grad():
        for xs, ys in rankup.shard(DataLoader(TensorDataset(x, y), batch_size=2), train=False):
            total += float(F.mse_loss(model(xs), ys)) * len(ys)
            seen += len(ys)
            forwards += 1
        # The whole, on every rank.
        return rankup.mean(total, seen), float(F.mse_loss(model(x), y)), forwards


def _each_evaluated(world: World, numbers: list[int]) -> list[tuple[float, float, int]]:
    return [_evaluated(world, n, "fsdp") for n in numbers]


@pytest.mark.parametrize(
    ("world_size", "numbers"),
    [(2, [1, 3, 4, 5]), pytest.param(3, [*range(1, 8)], marks=pytest.mark.slow)],
    ids=["2 ranks", "3 ranks"],
)
def test_each_sample_counts_once_in_evaluation(
    ranks: RankPool, world_size: int, numbers: list[int]
) -> None:
    by_rank = ranks.run(world_size, _each_evaluated, numbers)
    for n, *results in zip(numbers, *by_rank, strict=True):
        for found, wanted, forwards in results:
            assert found == pytest.approx(wanted, rel=1e-6), n
            assert forwards == results[0][2], f"{n}: a forward is a collective"


def _graded(world: World, numbers: list[int]) -> list[tuple[float, str]]:
    """Evaluate with gradients on and the model in eval(); then train on these batches of one."""
    found = []
    for n in numbers:
        forget()
        model, _ = parallelize(stack, sgd, "fsdp")
        model.eval()
        data = TensorDataset(torch.arange(float(n)).reshape(n, 1).expand(n, 6))
        loader = rankup.shard(DataLoader(data, batch_size=1, shuffle=True))
        total, seen = 0.0, 0
        for (xs,) in loader:
            total, seen = total + float((xs.mean(1) + 0 * model(xs)[:, 0]).sum()), seen + len(xs)
        mean = rankup.mean(total, seen)
        batches = iter(loader)
        loss = model(next(batches)[0]).mean()
        with pytest.raises(RuntimeError) as refused:
            loss.backward()
        found.append((mean, str(refused.value)))
    return found


def test_an_evaluation_with_gradients_is_exact_and_a_training_refused(ranks: RankPool) -> None:
    """In eval() nobody knows of a shuffled loader what it is for: small batches go together."""
    numbers = [1, 2, 3, 5]
    for found in ranks.run(2, _graded, numbers):
        for n, (mean, said) in zip(numbers, found, strict=True):
            assert mean == pytest.approx((n - 1) / 2, rel=1e-6)
            assert "train=True" in said
            assert ("were put together" in said) == (n > 1)


def _two_layouts(world: World) -> None:
    forget()
    first = parallelize(stack, sgd, "fsdp")
    with pytest.raises(ValueError, match="two models of one script must share the data alike"):
        parallelize(stack, sgd, tp=2)
    second = parallelize(stack, sgd, "ddp")
    assert CONTEXT.place() == Place(world.rank, 2, True), "a forward of the first is a collective"
    assert first.model is not second.model


@pytest.mark.slow
def test_models_of_one_script_share_the_data_alike(ranks: RankPool) -> None:
    ranks.run(2, _two_layouts)


def _loaded(world: World, asked: dict[str, int]) -> tuple[list[list[float]], str]:
    """What a `Loader` deals this rank of 8 samples, and what it says of an evaluation of 5."""
    forget()
    parallel = parallelize(stack, sgd, **asked)
    numbers = TensorDataset(torch.arange(8.0))
    dealt = [batch[0].tolist() for batch in Loader(numbers, 4, seed=1, workers=0)]
    said = ""
    try:
        Loader(TensorDataset(torch.arange(5.0)), 4, shuffle=False, train=False, workers=0)
    except UserError as error:
        said = str(error)
    assert parallel.model is not None
    return dealt, said


def test_a_loader_deals_by_the_layout(ranks: RankPool) -> None:
    first, second = ranks.run(2, _loaded, {"tp": 2})
    assert first == second
    assert [len(batch) for batch in first[0]] == [4, 4]
    assert first[1] == ""  # one part: each batch reaches it
    (ours, said), (theirs, _) = ranks.run(2, _loaded, {"shard": 2})
    assert sorted(number for batch in ours + theirs for number in batch) == list(range(8))
    assert "the last 1 of 5 samples do not reach all 2 parts" in said

"""`Loader`: lengths, orders, exact evaluation, and the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankup
from rankup.base.errors import UserError
from rankup.data import Batches, Loader, PackedDataset, orders
from rankup.data.batches import BatchRequest
from rankup.data.fetch import Made
from rankup.data.loader import copied_ahead
from rankup.runtime.context import CONTEXT
from rankup.runtime.world import World

from ..pool import RankPool
from .feeding import Digest, Large, epochs, flat, loader, small


def _evaluated(world: World, path: Path, most: int) -> list[tuple[float, int]]:
    data = PackedDataset(path, None, Digest())
    found = []
    for n in range(1, most + 1):
        one = Loader(data.subset(range(n)), 4, shuffle=False, workers=0)
        total, count = 0.0, 0
        for images, _ in one:
            total += float(images[:, :8].double().sum())
            count += len(images)
        one.close()
        found.append((rankup.mean(total, count), int(rankup.all_reduce(float(count)))))
    return found


def test_exact_evaluation(tmp_path: Path, ranks: RankPool) -> None:
    """Invariant "exact evaluation": for every n from 1 to 2 x world + 1 each sample once."""
    path = small(tmp_path, 20)
    data = PackedDataset(path, None, Digest())
    sums = [float(data[row][0][:8].double().sum()) for row in range(20)]
    expected = [(sum(sums[:n]) / n, n) for n in range(1, 8)]
    for found in ranks.run(3, _evaluated, path, 7):
        assert found == [(pytest.approx(mean, rel=1e-6), n) for mean, n in expected]


def test_lengths(tmp_path: Path) -> None:
    path = small(tmp_path, 20)
    data = PackedDataset(path, None, Digest())
    for batch, drop_last, count in [
        (1, False, 20), (1, True, 20), (7, False, 3), (7, True, 2), (20, True, 1),
        (21, False, 1), (21, True, 0), (100, False, 1),
    ]:  # fmt: skip
        one = loader(data, batch, drop_last=drop_last)
        assert len(one) == count
        assert len(epochs(one)) == count
        assert (one.epoch, one.consumed) == (1, 0)
    empty = loader(data.subset([]), 4)
    assert len(empty) == 0
    assert epochs(empty, 3) == []
    assert empty.epoch == 3
    for rank in range(5):  # more ranks than samples of a batch: all step, each sample once
        one = loader(data, 3, rank=rank, world_size=5)
        counts = [CONTEXT.samples for _ in one]
        assert len(counts) == 7
        alone = loader(data, 3, rank=rank, world_size=5, shuffle=False)
        assert len(one) == 7
        assert len(list(alone)) == len(alone)
        assert len(alone) == sum(count is not None and count[0] > 0 for count in counts)


def test_no_process_group_is_started(tmp_path: Path) -> None:
    before = torch.distributed.is_initialized()
    data = PackedDataset(small(tmp_path, 20), None, Digest())
    assert len(Loader(data, 10, workers=0)) == 2
    assert len(Batches(orders.Sequential(20), 10)) == 2
    assert torch.distributed.is_initialized() == before


def test_wrong_values(tmp_path: Path) -> None:
    data = PackedDataset(small(tmp_path, 20), None, Digest())
    for wrong in (
        {"rank": 2, "world_size": 2},
        {"rank": -1, "world_size": 2},
        {"rank": None},
        {"shuffle": orders.Sequential(20, 5)},
        {"shuffle": "yes"},
        {"kind": "both", "workers": 1},
    ):
        with pytest.raises(UserError):
            loader(data, **wrong)
    with pytest.raises(UserError, match="global_batch=0 has to be"):
        loader(data, 0)
    for values in ({"batch": 1.5}, {"batch": True}, {"seed": "1"}):
        with pytest.raises(UserError, match="whole number"):
            loader(data, **values)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="timeout=nan"):
        loader(data, timeout=float("nan"))
    for order in (orders.Shuffled(21, 3), orders.Sequential(19)):
        with pytest.raises(UserError, match=r"made for a data set of \d+ samples"):
            loader(data, shuffle=order)
    with pytest.raises(UserError, match="seed=3, and this order has the seed 4"):
        loader(data, shuffle=orders.Shuffled(20, 4))
    for wrong in ({"rank": 5}, {"seed": 1}, {"rank": None}, {"order": None}):
        with pytest.raises(UserError):
            Batches(**{
                "order": orders.Shuffled(20, 4), "global_batch": 8, "rank": 0, "world_size": 1,
                **wrong,
            })  # fmt: skip
    stream: Any = iter(())
    with pytest.raises(UserError, match="has no length"):
        loader(stream)


def test_any_map_style_data_set(tmp_path: Path) -> None:
    """Without keyed augmentation, but with the same samples anywhere."""
    numbers = torch.utils.data.TensorDataset(torch.arange(30), torch.arange(30) * 2)
    whole = [flat_pair(batch) for batch in loader(numbers, 8)]  # type: ignore[arg-type]
    for options in ({"workers": 2, "context": "fork"}, {"workers": 2, "kind": "threads"}):
        parts = [loader(numbers, 8, rank=r, world_size=2, **options) for r in range(2)]  # type: ignore[arg-type]
        found = [flat_pair(one) + flat_pair(two) for one, two in zip(*parts, strict=True)]
        assert found == whole
        for one in parts:
            one.close()


def flat_pair(batch: Any) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in batch), strict=True))


def test_channels_last(tmp_path: Path) -> None:
    transform = Large(channels_last=True, shape=(4, 5, 1200))
    data = PackedDataset(small(tmp_path, 20), None, transform)
    expected = list(loader(data))
    for options in ({"workers": 2, "kind": "processes"}, {"workers": 2, "kind": "threads"}):
        one = loader(data, context="fork", **options)  # type: ignore[arg-type]
        for (images, _), (wanted, _) in zip(one, expected, strict=True):
            assert images.shape[1:] == (1200, 4, 5)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(images, wanted)
        one.close()


def test_the_weights_of_a_loop_do_not_outlive_it(tmp_path: Path) -> None:
    data = PackedDataset(small(tmp_path, 20), None, Digest())
    one, two = loader(data), loader(data)
    run = iter(one)
    next(run)
    assert CONTEXT.samples == (8, 8)
    for _ in two:
        del run  # collected in the middle of another loop
        assert CONTEXT.samples is not None
        break
    assert CONTEXT.samples is None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_batches_on_a_gpu(tmp_path: Path, kind: Any) -> None:
    data = PackedDataset(small(tmp_path, 60), None, Large())
    expected = epochs(loader(data, 4, pin_memory=False))
    pinned = loader(data, 4, workers=2, kind=kind, pin_memory=True)
    for (images, _), wanted in zip(pinned, expected, strict=True):
        assert images.is_pinned()
        assert flat(images)[:70_000] == wanted[:70_000]
    pinned.close()
    for pin in (True, False):
        one = loader(data, 4, workers=2, kind=kind, device="cuda", pin_memory=pin)
        found = []
        for images, labels in one:
            assert images.is_cuda
            assert labels.is_cuda
            busy = torch.randn(2000, 2000, device="cuda")
            for _ in range(20):  # the step is still running when the next batch is copied
                busy = busy @ busy * 1e-3
            found.append((images + 0, labels))
        one.close()
        assert [flat((a.cpu(), b.cpu())) for a, b in found] == expected


@pytest.mark.gpu
def test_one_batch_ahead() -> None:
    asked = []

    def batches() -> Any:
        for number in range(4):
            asked.append(number)
            request = BatchRequest(np.empty(0, np.int64), 0, 0, 0, 0, 0)
            yield Made(request, None, None, 0), torch.full((3,), number)

    for number, (_, batch) in enumerate(copied_ahead(batches(), torch.device("cuda"))):
        assert batch.tolist() == [number] * 3
        assert asked == list(range(min(4, number + 2)))

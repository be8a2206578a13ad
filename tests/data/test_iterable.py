"""`PackedIterable` in torch's own DataLoader: the run's batches, whatever makes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from rankup.base.errors import UserError
from rankup.data import Loader, PackedDataset, PackedIterable
from rankup.data.orders import Blocks

from .feeding import Digest, small

COUNT, BATCH = 110, 16  # the last batch has 14
ORDER = Blocks(COUNT, 1, BATCH, 5, 12, 4)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("iterable"), COUNT)


def iterable(pack: Path, rank: int = 0, world: int = 1, **options: Any) -> PackedIterable:
    return PackedIterable(pack, "train", Digest(), **{
        "global_batch": BATCH, "seed": 1, "order": ORDER, "rank": rank, "world_size": world,
        **options,
    })  # fmt: skip


def expected(pack: Path, epoch: int = 0) -> list[bytes]:
    """Samples of an epoch, from the Loader that everything else is tested with."""
    photos = PackedDataset(pack, "train", Digest())
    loader = Loader(photos, BATCH, shuffle=ORDER, seed=1, workers=0, rank=0, world_size=1)
    loader.set_epoch(epoch)
    return rows(loader)


def rows(batches: Iterable[Any]) -> list[bytes]:
    """Each sample of some batches with its label."""
    return [
        bytes(image.numpy()) + bytes([label])
        for images, labels in batches
        for image, label in zip(images, labels.tolist(), strict=True)
    ]


def over_ranks(loaders: list[Iterable[Any]], limit: int | None = None) -> list[bytes]:
    """The samples of all ranks, by global batch."""
    steps: Iterator[tuple[Any, ...]] = zip(*map(iter, loaders), strict=limit is None)
    return [row for step in islice(steps, limit) for batch in step for row in rows([batch])]


def batched(data: PackedIterable, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


@contextmanager
def ended(loader: DataLoader[Any]) -> Iterator[Iterator[Any]]:
    """Where a worker raises: torch's own end of its workers takes 10 s from a garbage collector."""
    batches = iter(loader)
    try:
        yield batches
    finally:
        if loader.num_workers:
            batches._shutdown_workers()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("world", "workers"), [(1, 3), (2, 2), (3, 0)])
def test_the_batches_of_a_loader(pack: Path, world: int, workers: int) -> None:
    parts = [iterable(pack, rank, world) for rank in range(world)]
    assert [len(one) for one in parts] == [7] * world
    loaders: list[Iterable[Any]] = [batched(one, workers) for one in parts]
    assert over_ranks(loaders) == expected(pack)


@pytest.mark.parametrize(("worlds", "taken"), [((1, 3), 2), ((3, 2), 5), ((2, 1), 7)])
def test_it_goes_on_at_another_world_size(pack: Path, worlds: tuple[int, int], taken: int) -> None:
    before, after = ([iterable(pack, rank, world) for rank in range(world)] for world in worlds)
    first = over_ranks([*before], taken)
    (place,) = {tuple(one.state_dict().items()) for one in before}
    for one in after:
        one.load_state_dict(dict(place))
        one.set_epoch(one.epoch)  # as a loop over epochs does
    assert first + over_ranks([*after]) == expected(pack)


def test_it_goes_on_with_other_workers(pack: Path) -> None:
    data = iterable(pack)
    data.set_epoch(3)
    loader = batched(data, 2)
    taken = rows(islice(loader, 3))
    with pytest.raises(UserError, match="only the loop knows how many batches"):
        data.state_dict()
    place = data.state_dict(3)
    assert (place["epoch"], place["consumed"]) == (3, 48)
    again = iterable(pack)
    again.load_state_dict(place)
    assert again.epoch == 3
    more = rows(islice(batched(again, 0), 2))
    assert again.state_dict() == again.state_dict(2)
    # And from here on with the Loader, whose place it is, too.
    photos = PackedDataset(pack, "train", Digest())
    last = Loader(photos, BATCH, shuffle=ORDER, seed=1, workers=0, rank=0, world_size=1)
    last.load_state_dict(again.state_dict())
    assert taken + more + rows(last) == expected(pack, 3)


def test_epochs_reach_the_workers(pack: Path) -> None:
    data = iterable(pack)
    data.load_state_dict({**data.state_dict(), "epoch": 1, "consumed": 32})
    loader = batched(data, 2, persistent_workers=True)
    found = []
    for epoch in range(data.epoch, 3):
        data.set_epoch(epoch)
        found.append(rows(loader))
    assert found == [expected(pack, 1)[32:], expected(pack, 2)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_is_not_repeated_by_accident(pack: Path, workers: int) -> None:
    data = iterable(pack)
    loader = batched(data, workers)
    first = rows(islice(loader, 1))  # a look at what comes is none
    assert rows(loader)[: len(first)] == first
    again = pytest.raises(UserError, match=r"epoch 0 was run to its end.*call set_epoch")
    with ended(batched(data, workers)) if workers else nullcontext(loader) as batches, again:
        rows(batches)
    data.set_epoch(0)
    assert rows(loader) == expected(pack)
    evaluated = iterable(pack, train=False, order=None)
    loader = batched(evaluated, workers)
    assert rows(loader) == rows(loader)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_torchdatas_stateful_loader(pack: Path, workers: int) -> None:
    def stateful() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(iterable(pack), batch_size=None, num_workers=workers)

    for taken in (4, 7):
        loader = stateful()
        batches = iter(loader)
        first = rows(islice(batches, taken))
        state = loader.state_dict()
        del batches
        again = stateful()
        again.load_state_dict(state)
        assert first + rows(again) == expected(pack)


def test_a_workers_place_is_none_of_a_run(pack: Path) -> None:
    data = iterable(pack)
    own = {"worker": 0, "workers": 2, "taken": 1}
    with pytest.raises(UserError, match="the place of a worker of StatefulDataLoader"):
        data.load_state_dict({**data.state_dict(), **own})


def test_places_that_are_none(pack: Path) -> None:
    data = iterable(pack)
    place = data.state_dict()
    for wrong in ({"seed": 2}, {"samples": 109}, {"global_batch": 8}, {"consumed": 5}):
        with pytest.raises(UserError, match="place in a run"):
            data.load_state_dict({**place, **wrong})
    for batches in (-1, 8):
        with pytest.raises(UserError, match="cannot have taken"):
            data.state_dict(batches)
    assert data.state_dict(7)["consumed"] == COUNT


@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_has_each_sample_once(tmp_path: Path, world: int) -> None:
    for count in {1, world, 2 * world + 1}:
        pack = small(tmp_path, count)
        data = [iterable(pack, rank, world, train=False, order=None) for rank in range(world)]
        found = [list(batched(one, 0)) for one in data]
        assert [len(one) for one in found] == [len(one) for one in data]
        assert sum(len(labels) for one in found for _, labels in one) == count


def test_a_last_batch_that_cannot_be_dealt(pack: Path) -> None:
    with pytest.raises(UserError, match=r"last batch has 14 samples for 15 ranks.*drop_last=True"):
        iterable(pack, 0, 15)
    dropped = iterable(pack, 0, 15, drop_last=True)
    assert len(dropped) == len(list(batched(dropped, 0))) == 6


def test_bad_samples_are_dropped_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = small(tmp_path, COUNT, bad=[5, 77])
    loader = batched(iterable(root, on_bad="drop"), 2)
    assert len(rows(loader)) == COUNT - 2
    told = capfd.readouterr().err  # two processes wrote it: under pytest a line comes in two pieces
    assert sum(map(int, re.findall(r"(\d+) of 110 samples of epoch", told))) == 2, told
    assert "could not be made and were dropped" in told
    raised = pytest.raises(UserError, match=r"c\d/000(05|77)\.bin")
    with ended(batched(iterable(root), 2)) as batches, raised:
        rows(batches)


def test_transform_labels_and_collate(pack: Path) -> None:
    data = PackedIterable(
        pack, "train", lambda d, rng: len(d), global_batch=8, order=Blocks(COUNT, 5, 8, 4, 8, 2),
        labels=False, collate=lambda items: torch.tensor(items).sum(), rank=0, world_size=1,
    )  # fmt: skip
    assert int(sum(batched(data, 0))) == data.dataset.lengths.sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 0}, "global_batch=0"),
        ({"world_size": None}, "rank and world_size together"),
        ({"rank": 3}, "rank=3 is none of 1"),
        ({"order": Blocks(COUNT, 2, 16)}, "seed=1, and this order has the seed 2"),
        ({"order": Blocks(COUNT - 1, 1, 16)}, "made for a data set of 109 samples"),
        ({"order": Blocks(COUNT, 0, 8)}, "made for a global batch of 8, and here it is 16"),
    ],
)
def test_options_without_sense(pack: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        iterable(pack, **options)

"""`PackedDataset` behind data sets and loaders of others, and mistakes that are told at once."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset

import rankup
from rankup.base.errors import UserError
from rankup.data import BadSample, Batches, PackedDataset, orders, photos
from rankup.data.fetch import Pad

from .feeding import Digest, digest, epochs, loader, small


class Around(Dataset[Any]):
    """What everybody writes."""

    def __init__(self, inner: PackedDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, sample: int) -> Any:
        image, label = self.inner[sample]
        return image, label


class Whole(Around):
    """Hands on whole batches."""

    def __getitems__(self, samples: list[int]) -> Any:
        return self.inner.__getitems__(samples)


@pytest.mark.parametrize(
    ("around", "options"),
    [(Around, {"workers": 2, "kind": "threads"}), (lambda data: ConcatDataset([data]), {})],
)
def test_wrappers_augment_as_the_data_set(
    tmp_path: Path, around: Any, options: dict[str, Any]
) -> None:
    data = PackedDataset(small(tmp_path, 20), None, Digest(), seed=1)
    plain = epochs(loader(data), 2)
    over = loader(around(data), **options)
    assert epochs(over, 2) == plain
    over.close()
    assert plain[:3] != plain[3:]
    assert epochs(loader(around(data), seed=4, shuffle=False)) != epochs(
        loader(around(data), shuffle=False)
    )


def test_bad_samples_behind_a_wrapper_are_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = PackedDataset(small(tmp_path, 20, (3, 8)), None, Digest(), on_bad="drop")
    over = loader(ConcatDataset([data, data]), collate=list)
    with pytest.raises(BadSample, match="one sample alone cannot be left out"):
        epochs(over)
    over = loader(Whole(data))
    assert epochs(over) == epochs(loader(data))
    assert len(over.bad) == 2
    assert "rank 0: 2 of the 20 samples of epoch 0 could not be made" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_in_torchs_loader_are_told_and_limited(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    data = PackedDataset(small(tmp_path, 40, (3, 8)), None, Digest(), on_bad="drop")
    behind = DataLoader(data, 8, num_workers=workers)
    for _ in range(12):  # 24 of 480: a share that is no more than in the first epoch
        list(behind if workers == 0 else DataLoader(data, 8))
    said = capfd.readouterr().err
    assert said.count("samples of epoch 0 could not be made and are dropped; the first is") == 1
    many = PackedDataset(small(tmp_path, 60, range(0, 60, 2)), None, Digest(), on_bad="drop")
    assert re.search(r"\d\d samples of epoch 0.*20 is the", _bad_sample(many, workers))


def _bad_sample(data: PackedDataset, workers: int) -> str:
    """What the error says. Torch's frames hold it and the loader in a circle: where the garbage
    collection finds that, it waits five seconds for each worker."""
    try:
        list(DataLoader(data, 4, num_workers=workers))
    except BadSample as error:
        traceback.clear_frames(error.__traceback__)
        return str(error)
    return ""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_forgotten_set_epoch_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    path = small(tmp_path, 20)
    told = "call set_epoch before each epoch"
    plain = PackedDataset(path, None, lambda data, rng: torch.zeros(1))
    right = PackedDataset(path, None, digest)
    part = right.subset(range(5))
    for epoch in range(3):
        right.set_epoch(epoch)
        for data in (plain, right, part):  # neither repeats what it drew
            list(DataLoader(data, 8))
    assert told not in capfd.readouterr().err
    data = PackedDataset(path, None, digest)
    list(DataLoader(data, 8, num_workers=workers))
    assert told not in capfd.readouterr().err
    for _ in range(2):
        list(DataLoader(data, 8, num_workers=workers))
    assert capfd.readouterr().err.count(told) == 1
    data = PackedDataset(path, None, digest)
    sampler = Batches(orders.Shuffled(20), 8, rank=0, world_size=1)
    for _ in range(3):
        list(DataLoader(data, batch_sampler=sampler))
    assert told not in capfd.readouterr().err


def test_a_transform_is_a_function_of_two(tmp_path: Path) -> None:
    path = small(tmp_path, 4)

    class Module(torch.nn.Module):
        def forward(self, image: Any) -> Any:
            return image

    for one in (lambda data: data, Module()):
        with pytest.raises(UserError, match=r"function of \(bytes, rng\).*photos\.seeded"):
            PackedDataset(path, None, one)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"is no function of"):
        PackedDataset(path, None, "crop")  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"=RandomResizedCrop is a class.*RandomResizedCrop\(\.\.\."
    ):
        PackedDataset(path, None, photos.RandomResizedCrop)  # type: ignore[arg-type]
    data = PackedDataset(path, None, photos.seeded(bytes))
    with pytest.raises(UserError, match="collate=Pad is a class"):
        loader(data, collate=Pad)
    assert len(next(iter(loader(data, 4, collate=list)))) == 4


def test_streams_and_loaders_in_the_wrong_place(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Any:
            return iter(range(4))

    with pytest.raises(UserError, match="Stream is an IterableDataset or has no length"):
        loader(Stream())  # type: ignore[arg-type]
    data = PackedDataset(small(tmp_path, 4))
    with pytest.raises(TypeError, match="has dealt its own already"):
        rankup.shard(loader(data))  # type: ignore[arg-type]

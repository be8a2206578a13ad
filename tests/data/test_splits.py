"""Parts of a data set by torch's own means keep what belongs to each sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, random_split

from rankup.data import Loader, PackedDataset
from rankup.data.orders import unwrapped

from .feeding import Digest, small


def test_parts_of_a_pack_keep_what_belongs_to_each_sample(tmp_path: Path) -> None:
    photos = PackedDataset(small(tmp_path, 30), transform=Digest())
    train, val = map(unwrapped, random_split(photos, [0.8, 0.2], torch.Generator().manual_seed(3)))
    assert isinstance(train, PackedDataset)
    assert isinstance(val, PackedDataset)
    assert (len(train), len(val)) == (24, 6)
    assert train.labels is not None
    assert len(train.labels) == len(train.lengths) == 24
    whole = {bytes(image.numpy()) for image, _ in photos.__getitems__(range(30))}
    parts = [bytes(image.numpy()) for part in (train, val) for image, _ in part]  # type: ignore[attr-defined]
    assert sorted(parts) == sorted(whole)


def test_torchs_subset_around_a_pack(tmp_path: Path) -> None:
    photos = PackedDataset(small(tmp_path, 30), transform=Digest())
    rows = [7, 3, 29, 11, 0]
    torchs = Subset(photos, rows)
    # In torch's own DataLoader as it is,
    batch, labels = next(iter(DataLoader(torchs, batch_size=5)))
    expected = photos.__getitems__(rows)
    assert torch.equal(batch, torch.stack([image for image, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]
    # and with the Loader's epochs, as the data set's own subset.
    twice = unwrapped(Subset(torchs, [4, 2]))
    assert isinstance(twice, PackedDataset)
    assert [twice.row(n) for n in range(2)] == [0, 29]
    both = [
        [image for image, _ in Loader(data, 2, seed=5, workers=0, rank=0, world_size=1)]
        for data in (torchs, photos.subset(rows))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    assert unwrapped(Subset(range(3), [0])).__class__ is Subset  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        unwrapped(Subset(photos, np.array([30])))  # type: ignore[arg-type]

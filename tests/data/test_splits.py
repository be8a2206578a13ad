"""Parts of a data set by torch's own means keep what belongs to each sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, random_split

import rankup
from rankup.data import Loader, PackedDataset
from rankup.data.orders import unwrapped
from rankup.data.pack.command import pack
from rankup.data.pack.source import Request

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


def test_a_folder_in_capitals_is_the_split_that_is_asked_for(tmp_path: Path) -> None:
    for split in ("Train", "VAL"):
        for label in ("cat", "dog"):
            path = tmp_path / "photos" / split / label / "1.bin"
            path.parent.mkdir(parents=True)
            path.write_bytes(f"{split} {label}".encode())
    train = PackedDataset(tmp_path / "photos", "train")
    assert [item for item, _ in train.__getitems__([0, 1])] == [b"Train cat", b"Train dog"]
    out = tmp_path / "photos.h5"
    assert pack(Request(str(tmp_path / "photos"), str(out), as_json=True)) == 0
    with rankup.data.open(out) as samples:
        assert samples.splits == ("train", "val")
        assert samples.split("val").path(0) == "val/cat/1.bin"
    rows = "path,label,split\nphotos/Train/cat/1.bin,cat,Train\nphotos/VAL/cat/1.bin,cat,VAL\n"
    (tmp_path / "list.csv").write_text(rows)
    again = tmp_path / "list.h5"
    assert pack(Request(str(tmp_path / "list.csv"), str(again), as_json=True)) == 0
    with rankup.data.open(again) as samples:
        assert samples.splits == ("train", "val")

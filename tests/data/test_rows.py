"""Rows of arrays, in any order, by any way of reading."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from rankup.data import Loader, PackedDataset

VALUES = np.random.default_rng(0).standard_normal((60, 5, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits of an array that lies in one piece, of a compressed one, and of one of big-endian."""
    path = tmp_path_factory.mktemp("rows") / "arrays.h5"
    with h5py.File(path, "w") as file:
        for name, part in (("train", VALUES[:40]), ("val", VALUES[40:])):
            group = file.create_group(name)
            group["plain"] = part
            group.create_dataset("packed", data=part, compression="gzip", chunks=(7, 5, 3))
            group["foreign"] = part.astype(">f4")
            group["labels"] = np.arange(len(part)) % 4
    return path


@pytest.mark.parametrize("field", ["plain", "packed"])
def test_a_data_set_of_arrays(arrays: Path, field: str) -> None:
    train = PackedDataset(arrays, "train", field=field).subset(range(39, -1, -1))
    loader = Loader(train, 16, shuffle=False, workers=0, rank=0, world_size=1)
    batches = list(loader)
    assert [len(inputs) for inputs, _ in batches] == [16, 16, 8]
    joined = np.concatenate([inputs.numpy() for inputs, _ in batches])
    assert np.array_equal(joined, VALUES[39::-1])
    assert np.concatenate([labels for _, labels in batches]).tolist() == [
        row % 4 for row in range(39, -1, -1)
    ]
    item, label = train[3]
    assert np.array_equal(item, VALUES[36])
    assert label == 0

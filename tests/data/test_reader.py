"""`PackedDataset`: what an item is, subsets, and files that change under a running job."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from rankup.base.errors import UserError
from rankup.data import Loader, PackedDataset, transforms
from rankup.data.errors import BadContainer
from rankup.data.stage.staging import release, stage
from rankup.site import mounts

from . import made
from .feeding import Digest, Large, epochs, flat, loader, small


def _arrays(folder: Path) -> Path:
    path = folder / "arrays.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
        file["y"] = np.arange(10, dtype=np.int64) * 7
        file["packed"] = np.arange(20).reshape(10, 2)
        file.create_dataset("squeezed", data=np.arange(40).reshape(10, 4), compression="gzip")
    return path


def test_an_item(tmp_path: Path) -> None:
    path = small(tmp_path, 10)
    data = PackedDataset(path)
    image, label = data[4]
    assert (image, label) == (made.samples(10, most=300)[4][1], 1)
    assert data[-1] == data[9]
    assert PackedDataset(path, labels=False)[4] == image
    assert [len(one) for one in data.__getitems__([1, 2])] == [2, 2]
    assert data.labels is not None
    assert data.labels.tolist() == [row % 3 for row in range(10)]
    assert data.lengths[4] == len(image)
    with pytest.raises(UserError, match="no field 'caption'"):
        PackedDataset(path, field="caption")


def test_splits(tmp_path: Path) -> None:
    members = made.samples(10)
    made.pack(tmp_path / "p", {"train": members[:6], "val": members[6:]})
    with pytest.raises(UserError, match="name one of them: train, val"):
        PackedDataset(tmp_path / "p")
    with pytest.raises(UserError, match="no split 'test'"):
        PackedDataset(tmp_path / "p", "test")
    val = PackedDataset(tmp_path / "p", "val", verify=True)
    assert val[1] == (members[7][1], members[7][2])
    assert val.labels is not None
    assert (len(val), val.labels.tolist(), val.lengths[1]) == (4, [0, 1, 2, 0], len(members[7][1]))
    part = val.subset([3, 1]).subset([1])
    assert part[0] == val[1]
    assert part.labels is not None
    assert (len(part), part.labels.tolist(), part.row(0)) == (1, [1], 1)
    with pytest.raises(IndexError):
        val.subset([4])


@pytest.mark.parametrize("column", ["labels", "keys_data", "offset_0", "length_0"])
def test_a_bit_that_flips_in_the_index_is_refused(tmp_path: Path, column: str) -> None:
    """A wrong label, name or sample would else be trained on, also with `verify`."""
    path = small(tmp_path, 10)
    index = path / "index.npz"
    data = bytearray(index.read_bytes())
    with np.load(index) as arrays:
        data[data.index(arrays[column].tobytes()) + 8] ^= 1
    index.write_bytes(data)
    with pytest.raises(BadContainer, match=f"its array '{column}' has changed"):
        PackedDataset(path, verify=True)


def test_arrays_and_several_fields(tmp_path: Path) -> None:
    path = _arrays(tmp_path)
    x = PackedDataset(path, field="x", labels=False)
    batch = next(iter(loader(x, 4, shuffle=False)))
    assert torch.equal(batch, torch.arange(24.0).reshape(4, 2, 3))
    batch += 1  # a copy, not the file
    several = PackedDataset(path, field=("x", "packed", "squeezed"), labels=False)
    for options in ({}, {"workers": 2, "kind": "threads"}):
        one = loader(several, 5, shuffle=False, **options)  # type: ignore[arg-type]
        batch = list(one)[1]
        one.close()
        assert sorted(batch) == ["packed", "squeezed", "x"]
        assert batch["squeezed"].tolist() == np.arange(40).reshape(10, 4)[5:].tolist()
        assert batch["x"].dtype == torch.float32
    summed = PackedDataset(
        path, None, lambda data, rng: float(data["x"].sum() + data["packed"][0]),
        field=("x", "packed"), labels=False,
    )  # fmt: skip
    assert summed[1] == sum(range(6, 12)) + 2
    with pytest.raises(UserError, match="no hashes to verify"):
        PackedDataset(path, field="x", verify=True)


@given(key=st.integers(0, 2**63 - 1), samples=st.lists(st.integers(0, 2**63 - 1), max_size=4))
def test_what_a_sample_draws_is_its_own(key: int, samples: list[int]) -> None:
    """Whatever those before it have drawn."""
    draws = transforms.Generators(key)
    for number, sample in enumerate(samples):
        one, other = draws.of(sample), transforms.rng(key, sample)
        assert one.integers(0, 9, number).tolist() == other.integers(0, 9, number).tolist()
        assert one.random(dtype=np.float32) == other.random(dtype=np.float32)
        assert one.bytes(5) == other.bytes(5)


def test_torchs_own_loader_with_workers_that_stay(tmp_path: Path) -> None:
    """They see the epoch that is set later, and the bytes are those of our Loader."""
    data = PackedDataset(small(tmp_path, 40), None, Large(), seed=3)
    theirs = DataLoader(data, 8, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        data.set_epoch(epoch)
        one = loader(data, 8, shuffle=False)
        one.set_epoch(epoch)
        assert [flat(batch) for batch in theirs] == epochs(one)


def _written(path: Path) -> None:
    with (path / "train.bin").open("r+b") as file:
        file.seek(10)
        file.write(b"other")


def _renamed(path: Path) -> None:
    shutil.copy2(path / "train.bin", path / "new")
    (path / "new").rename(path / "train.bin")


def _packed_anew(path: Path) -> None:
    shutil.rmtree(path)
    made.pack(path, {"train": made.samples(40, seed=9, most=300)})


def _index(path: Path) -> None:
    index = path / "index.npz"
    shutil.copy(index, path / "new")
    (path / "new").rename(index)


def _removed(path: Path) -> None:
    (path / "train.bin").unlink()


CHANGES = {
    _written: "written to",
    _renamed: "replaced by another",
    _packed_anew: "replaced by another",
    _index: "replaced by another",
    _removed: "cannot be found any more",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_under_a_job(
    tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKUP_READ", "mmap" if change in (_written, _index) else "pread")
    path = small(tmp_path, 40)
    data = PackedDataset(path, None, Digest(), on_bad="drop")
    one = loader(data, workers=2, kind="processes", context="fork")
    epochs(one)
    change(path)
    with pytest.raises(BadContainer, match=CHANGES[change]):
        epochs(one)
    one.close()
    data.set_epoch(1)
    with pytest.raises(BadContainer, match=CHANGES[change]):
        list(DataLoader(data, 8))


@pytest.mark.parametrize(("kind", "replaced"), [("ext4", True), ("fuse.sshfs", False)])
def test_inodes_that_are_not_stable_do_not_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, replaced: bool
) -> None:
    """In FUSE a file may have another inode whenever it is looked at."""
    monkeypatch.setattr(mounts, "kind_of", lambda path: kind)
    path = small(tmp_path, 20)
    data = PackedDataset(path)
    shutil.copy2(path / "train.bin", tmp_path / "copy")
    (tmp_path / "copy").replace(path / "train.bin")
    if replaced:
        with pytest.raises(BadContainer, match="replaced by another file"):
            data.check()
    else:
        data.check()
    _written(path)
    with pytest.raises(BadContainer, match="replaced by another file" if replaced else "written"):
        data.check()


def test_a_change_is_noticed_in_the_epoch_in_which_it_is_made(tmp_path: Path) -> None:
    path = small(tmp_path, 40)
    one = loader(PackedDataset(path, None, Digest()))
    run = iter(one)
    next(run)
    _written(path)
    with pytest.raises(BadContainer, match=r"written to.*Samples of epoch 0 may have been others"):
        list(run)
    assert one.consumed == 40  # at its end


@pytest.mark.parametrize("how", ["mmap", "pread"])
def test_a_staged_copy_that_is_taken_away(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the end of another run of the same job: the source is read from then on."""
    monkeypatch.setenv("RANKUP_READ", how)
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    path = small(tmp_path, 40)
    expected = epochs(loader(PackedDataset(path, None, Digest())), 3)
    copy = stage(path, quiet=True, reserve=0).root
    data = PackedDataset(path, None, Digest())
    assert data.samples.staged == copy
    subset = data.subset(range(40))
    one, two = loader(data), loader(subset, workers=2, kind="processes", context="fork")
    found = epochs(one)
    assert epochs(two) == found
    travelled = pickle.dumps(data)
    release()
    assert pickle.loads(travelled)[3][0].tolist() == data[3][0].tolist()
    assert found + epochs(one, 2) == expected
    assert data.samples.staged is None
    assert epochs(two, 2) == expected[5:]
    two.close()
    _written(path)
    with pytest.raises(BadContainer, match="written to"):
        epochs(one)
    with pytest.raises(BadContainer, match=r"written to|changed"):
        pickle.loads(travelled).check()


_VALUES = np.random.default_rng(0).standard_normal((60, 5, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits of an array that lies in one piece, of a compressed one, and of one of big-endian."""
    path = tmp_path_factory.mktemp("rows") / "arrays.h5"
    with h5py.File(path, "w") as file:
        for name, part in (("train", _VALUES[:40]), ("val", _VALUES[40:])):
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
    assert np.array_equal(joined, _VALUES[39::-1])
    assert np.concatenate([labels for _, labels in batches]).tolist() == [
        row % 4 for row in range(39, -1, -1)
    ]
    item, label = train[3]
    assert np.array_equal(item, _VALUES[36])
    assert label == 0

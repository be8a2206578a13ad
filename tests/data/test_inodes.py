"""Files and folders, as a quota counts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankup.data import inodes
from rankup.data import open as open_data
from rankup.data.containers import Choice, files
from rankup.data.index import Field, Index, Split
from rankup.data.inodes import Inodes
from rankup.data.strings import Strings


def _index(*names: str) -> Index:
    return Index("files", Strings.of([name.encode() for name in names]), (), Strings.of([]), ())


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        ([], 1),
        (["1.txt", "2.txt"], 1),
        (["a/b/1.txt", "a/c/d/1.txt"], 5),
        (["a/1.txt", "1.txt"], 2),
        (["/data/x/1.txt", "/data/x/a/b/2.txt"], 3),
        (["/data/x/1.txt", "/data/y/2.txt"], 3),
        (["/1.txt", "/a/b/2.txt"], 3),
        (["/data/x/../y/1.txt", "/data/y/2.txt"], 1),
    ],
)
def test_of_a_source(names: list[str], folders: int) -> None:
    assert inodes.of_source(_index(*names), Path("/nowhere")) == Inodes(len(names), folders)


def test_a_tree_is_counted_as_it_lies(tmp_path: Path) -> None:
    for name in ("train/a/1.txt", "train/b/2.txt", "val/a/c/3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    lying = inodes.lying(tmp_path)
    assert lying == Inodes(3, 7)
    index = files.scan(tmp_path, Choice())
    assert inodes.of_source(index, tmp_path) == lying
    samples = open_data(tmp_path)
    assert inodes.of_samples(samples.index, samples.index.splits) == lying
    assert inodes.of_samples(index, index.splits[1:]) == Inodes(1, 4)


def test_arrays_come_back_as_one_file() -> None:
    rows = np.zeros(5, np.int64)
    array, caption = Field("x", rows, rows, dtype="<f4", shape=(2,)), Field("txt", rows, rows)
    splits = (Split("train", 0, 3, "train"), Split("val", 3, 5, "val"))
    keys = Strings.of([b"%d" % row for row in range(5)])
    index = Index("numpy", Strings.of([b""]), splits, keys, (array,))
    assert inodes.of_samples(index, splits) == Inodes(2, 3)
    both = Index("numpy", Strings.of([b""]), splits, keys, (array, caption))
    assert inodes.of_samples(both, splits) == Inodes(2 + 5, 3)


def test_words() -> None:
    assert str(Inodes(1, 0)) == "1 file"
    assert str(Inodes(12_000, 1)) == "12 000 files and 1 folder"

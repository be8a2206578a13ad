"""An HDF5 with an index from elsewhere: it leads to no other file, and to the documented error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rankup
from rankup.data import indexes, stamp
from rankup.data.errors import BadContainer
from rankup.data.index import Field, Index, Split, Strings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Data sets that `scan` takes, and such as it refuses."""
    (tmp_path / "secret").write_bytes(b"0123456789")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("mine", data=np.arange(10, dtype="u1"), compression="gzip")
        file.create_dataset("outside", (10,), "u1", external=[(str(tmp_path / "secret"), 0, 10)])
        file["link"] = h5py.ExternalLink("other.h5", "/x")
        file["soft"] = h5py.SoftLink("/outside")
        layout = h5py.VirtualLayout((10,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (10,))
        file.create_virtual_dataset("virtual", layout)
    return tmp_path / "a.h5"


def _read(root: Path, about: Any) -> bytes:
    field = Field("data", np.array([~3]), np.array([-1]))
    keys = Strings.of([b"k"])
    facts = {"hdf5": about, "ends": [stamp.ends(root)]}
    sizes = np.array([root.stat().st_size])
    splits = (Split("train", 0, 1),)
    index = Index("hdf5", Strings.of([b""]), splits, keys, (field,), sizes=sizes, facts=facts)
    indexes.save(index, indexes.place(root))
    with rankup.data.open(root) as found:
        return bytes(found.read(0))


@pytest.mark.parametrize("name", ["outside", "link", "soft", "virtual", "link/x", "none", ""])
def test_no_other_file_is_read(root: Path, name: str) -> None:
    assert _read(root, {"tables": [["/", 10, {}]], "base": 0, "data": "mine"}) == b"\3"
    with pytest.raises(
        BadContainer, match=r"cannot be read.*(in the file itself|other file|another file)"
    ):
        _read(root, {"tables": [["/", 10, {}]], "base": 0, "data": name})


@pytest.mark.parametrize(
    "about",
    [
        *(3, "x", [1], {"a": 1}),
        {"tables": [["/", 4]], "base": 0, "data": ""},
        {"tables": [["/", 10, [["x"]]]], "base": 0, "data": ""},
        {"tables": [["/", 10, {"mine": "x"}]], "base": 0, "data": "mine"},
        {"tables": [["/", -1, {}]], "base": 0, "data": "mine"},
    ],
)
def test_nonsense_is_a_damaged_index(root: Path, about: Any) -> None:
    with pytest.raises(BadContainer, match=r"does not say where its rows are|cannot be read"):
        _read(root, about)

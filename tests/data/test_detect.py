"""Formats are told by what is in a file, and what is not known is said with what is."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankup.base.errors import UserError
from rankup.data import npz, opened
from rankup.data.containers.detect import detect
from rankup.data.inspect import show
from rankup.data.pack.command import pack
from rankup.data.pack.source import Request, scanned


def _tar(path: Path, kind: int, mode: str = "w") -> None:
    with tarfile.open(path, mode, format=kind) as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO(b""))


def test_files_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2]})
    for options in ({}, *({"userblock_size": 512 << n} for n in range(4))):
        with h5py.File(tmp_path / "odd", "w", **options):
            pass
        assert detect(tmp_path / "odd") == "hdf5"
    with pa.ipc.new_file(str(tmp_path / "odd"), table.schema) as out:
        out.write(table)
    assert detect(tmp_path / "odd") == "arrow"
    with pa.ipc.new_stream(str(tmp_path / "odd"), table.schema) as out:
        out.write(table)
    assert detect(tmp_path / "odd") == "arrow"
    pq.write_table(table, tmp_path / "odd")
    assert detect(tmp_path / "odd") == "parquet"
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        _tar(tmp_path / "odd", kind)
        assert detect(tmp_path / "odd") == "tar"
    with zipfile.ZipFile(tmp_path / "odd", "w") as archive:
        archive.writestr("a", b"b")
    assert detect(tmp_path / "odd") == "zip"
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    assert detect(tmp_path / "a.npz") == "numpy"
    np.save(tmp_path / "a.npy", np.arange(3))
    assert detect(tmp_path / "a.npy") == "numpy"
    (tmp_path / "odd").write_bytes(b"hsqs" + bytes(92))
    assert detect(tmp_path / "odd") == "squashfs"
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    assert detect(tmp_path / "empty.tar") == "tar"


def test_folders_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    for name, expected in (
        ("x-000000.tar", "tar"),
        ("train.arrow", "arrow"),
        ("train-00000-of-00001.parquet", "parquet"),
        ("dataset_dict.json", "hf"),
        ("photo.jpg", "files"),
    ):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_bytes(b"")
        (folder / ".hidden.tar").write_bytes(b"")
        assert detect(folder) == expected
    (tmp_path / "classes" / "cat").mkdir(parents=True)
    assert detect(tmp_path / "classes") == "files"
    (tmp_path / "hub" / "data").mkdir(parents=True)
    (tmp_path / "hub" / "data" / "a.parquet").write_bytes(b"")
    assert detect(tmp_path / "hub") == "parquet"
    state = tmp_path / "saved"
    state.mkdir()
    for name in ("state.json", "data-00000-of-00001.arrow", "dataset_info.json"):
        (state / name).write_bytes(b"")
    assert detect(state) == "hf"


@pytest.mark.parametrize("kind", ["tar", "arrow", "parquet"])
def test_a_folder_for_each_split_holds_samples_not_files(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    for split, rows in (("train", [b"a", b"b", b"c", b"d"]), ("val", [b"e", b"f"])):
        (root / split).mkdir(parents=True)
        for number in range(2):
            path = root / split / f"data-{number:05}-of-00002.{kind}"  # as save_to_disk names them
            part = rows[number::2]
            if kind == "tar":
                with tarfile.open(path, "w") as tar:
                    for data in part:
                        info = tarfile.TarInfo(f"{data.decode()}.jpg")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
                continue
            table = pa.table({"image": pa.array(part, pa.binary())})
            if kind == "parquet":
                pq.write_table(table, path)
            else:
                with pa.ipc.new_file(str(path), table.schema) as out:
                    out.write(table)
    (root / "README.md").write_text("what it is")
    (root / "labels").mkdir()
    (root / "labels" / "names.csv").write_text("1,cat")
    assert detect(root) == kind
    with opened.open(root) as samples:
        found = {
            one.name: sorted(bytes(samples.read(row)) for row in range(one.start, one.stop))
            for one in samples.index.splits
        }
    assert found == {"train": [b"a", b"b", b"c", b"d"], "val": [b"e", b"f"]}
    assert show(str(root)) == 0
    assert "6 samples" in capsys.readouterr().out
    assert pack(Request(str(root), str(tmp_path / "out.h5"))) == 0
    assert show(str(tmp_path / "out.h5"), as_json=True) == 0
    assert '"samples": 4' in capsys.readouterr().out


def test_tars_that_lie_deeper_are_no_samples(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "a" / "shards" / split).mkdir(parents=True)
        _tar(tmp_path / "a" / "shards" / split / "0.tar", tarfile.GNU_FORMAT)
    with pytest.raises(UserError, match=r"containers, as a/shards/train/0\.tar, and no samples"):
        opened.open(tmp_path)
    assert detect(tmp_path / "a" / "shards") == "tar"


def test_class_folders_with_a_stray_tar_are_files(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "cat/code.tar", "dog/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert detect(tmp_path) == "files"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    def refused(name: str, data: bytes | None, why: str) -> None:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=why):
            detect(tmp_path / name)

    refused("gone", None, "no file or folder")
    refused("a.txt", b"words", "no format known here.*HDF5")
    refused("empty", b"", "is empty")
    refused("list.csv", b"path,label\n", "rankup pack")
    refused("a.h5.index.npz", b"PK", "the index of a.h5")
    (tmp_path / "tars").mkdir()
    npz.save(tmp_path / "tars" / "index.npz", dict.fromkeys(("about", "keys_ends"), np.zeros(1)))
    refused("tars/index.npz", None, r"the index of .*tars: open that folder")
    for name, magic in (("gzip", b"\x1f\x8b\x08"), ("xz", b"\xfd7zXZ\x00"), ("bzip2", b"BZh9")):
        refused("a.tar.x", magic, f"compressed as a whole .{name}")
    (tmp_path / "nothing").mkdir()
    refused("nothing", None, "empty folder")
    os.mkfifo(tmp_path / "pipe")
    refused("pipe", None, "neither")
    (tmp_path / "two").mkdir()
    for name in ("a.h5", "b.h5", "a.h5.index.npz"):
        (tmp_path / "two" / name).write_bytes(b"")
    np.savez(tmp_path / "index.npz", x=np.zeros(1))
    assert detect(tmp_path / "index.npz") == "numpy"
    refused("two", None, "2 containers of one file each: open .*a.h5")


def test_an_interrupted_pack_is_no_container(tmp_path: Path) -> None:
    (tmp_path / "out.h5.part").mkdir()
    (tmp_path / "out.h5.part" / "index.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"interrupted.*rankup pack … .*out\.h5 --resume"):
        detect(tmp_path / "out.h5")
    with pytest.raises(UserError, match=r"interrupted pack.*out\.h5 --resume"):
        detect(tmp_path / "out.h5.part")


def _other(top: Path, name: str) -> Path:
    """A file or folder as another program writes it."""
    files = {
        "lmdb/data.mdb": bytes(16) + b"\xde\xc0\xef\xbe" + bytes(4076),
        "lone.mdb": bytes(16) + b"\xde\xc0\xef\xbe" + bytes(4076),
        "below/val_lmdb/data.mdb": bytes(4096),
        "v2.zarr/.zgroup": b"{}",
        "v3.zarr/zarr.json": b"{}",
        "mds/shard.00000.mds": b"\1\0\0\0",
        "a.tfrecord": bytes(16),
        "records/train.tfrecord-00000-of-00002": bytes(16),
        "cifar/data_batch_1": b"\x80\x04N.",
        "encrypted.parquet": b"PARE" + bytes(60) + b"PARE",
        "old.feather": b"FEA1" + bytes(60),
        "x.mat": b"MATLAB 5.0 MAT-file, Platform" + bytes(500),
    }
    (path,) = [one for one in files if one.startswith(name)]
    (top / path).parent.mkdir(parents=True, exist_ok=True)
    (top / path).write_bytes(files[path])
    (top / path).with_name("beside.bin").write_bytes(b"beside")
    return top / name


@pytest.mark.parametrize(
    ("name", "what", "way"),
    [
        ("lmdb", "an LMDB database", "package lmdb"),
        ("lone.mdb", "an LMDB database", "package lmdb"),
        ("below", "an LMDB database", "package lmdb"),
        ("v2.zarr", "a zarr store", "h5py"),
        ("v3.zarr", "a zarr store", "h5py"),
        ("mds", "MosaicML", "StreamingDataset"),
        ("a.tfrecord", "TFRecord", "tf.data"),
        ("records", "TFRecord", "tf.data"),
        ("cifar", "CIFAR's batches", "numpy.savez"),
        ("encrypted.parquet", "an encrypted Parquet", "its keys"),
        ("old.feather", "Feather file of version 1", "write_feather"),
        ("x.mat", "MATLAB file of version 5", "-v7.3"),
    ],
)
def test_formats_of_other_programs_are_named_with_the_way_out(
    tmp_path: Path, name: str, what: str, way: str
) -> None:
    source = _other(tmp_path, name)
    for use in (opened.open, lambda path: request_of(path, tmp_path / "out.h5")):
        with pytest.raises(UserError, match=rf"is .*{what}.*, which rankup does not read: .*{way}"):
            use(source)
    assert not (tmp_path / "out.h5").exists()


def request_of(path: Path, out: Path) -> None:
    """Scan as `rankup pack` does."""
    scanned(Request(str(path), str(out)))


def test_a_zarr_store_in_a_zip_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x/.zarray", "{}")
        archive.writestr("x/0.0", "abcd")
    with pytest.raises(UserError, match=r"is a zarr store.*\(it has 'x/.zarray'\)"):
        opened.open(tmp_path / "x.zip")

"""The format of a file or folder: by its first bytes and by what is in it, not by its name."""

from __future__ import annotations

import itertools
import os
import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ...base.errors import UserError
from ...base.text import clean
from .. import keys
from . import FORMATS

KNOWN = (
    "HDF5, Arrow IPC (file or stream), tar, SquashFS, zip, Parquet, .npy/.npz; a folder of .tar, "
    ".arrow or .parquet files, also one below for each split, a Hugging Face data set saved to "
    "disk, or a folder of class folders"
)
PART = ".part"
_INDEX = ".index.npz"

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_BLOCK = 512  # of a tar
HUGGING_FACE = ("dataset_dict.json", "dataset_info.json", "state.json")
_LISTS = (".csv", ".tsv", ".json", ".jsonl", ".pkl", ".pickle")
_SINGLE = (".h5", ".hdf5", ".sqsh", ".squashfs", ".sfs")
SEVERAL = (".arrow", ".tar", ".parquet")  # formats of which a folder of files is one data set
_LOOKED_AT = 4096  # names of a folder, which may have a million

_SHARDS = "write its samples as tar shards (webdataset's ShardWriter), and pack these"
# What is no format of ours -> what it is called, and the way out.
_OTHERS = {
    "lmdb": ("an LMDB database", f"read it with the package lmdb, {_SHARDS}"),
    "mds": (
        "a data set of MosaicML's streaming",
        f"read it with streaming.StreamingDataset(local=…), {_SHARDS}",
    ),
    "tfrecord": ("TFRecord", f"read it with tf.data or the package tfrecord, {_SHARDS}"),
    "zarr": (
        "a zarr store",
        "write its arrays into an HDF5 file, h5py.File('x.h5', 'w')['x'] = zarr.open(…)['x'][:], "
        "and pack that",
    ),
    "cifar": (
        "CIFAR's batches: pickles, which could run anything and are not opened",
        "data = torchvision.datasets.CIFAR10(…); numpy.savez('train.npz', data=data.data, "
        "labels=data.targets), and pack that",
    ),
    "encrypted": (
        "an encrypted Parquet file",
        "read it with pyarrow and its keys, write it by pyarrow.parquet.write_table, and pack that",
    ),
    "feather": (
        "a Feather file of version 1",
        "pyarrow.feather.write_feather(pyarrow.feather.read_table(…), 'x.arrow') makes Arrow IPC "
        "of it",
    ),
    "matlab": (
        "a MATLAB file of version 5",
        "save it in MATLAB with -v7.3, which is HDF5, or numpy.savez what scipy.io.loadmat reads",
    ),
}
_BEGINS = {b"PARE": "encrypted", b"FEA1": "feather", b"MATLAB 5.0 MAT-file": "matlab"}
_LMDB = b"\xde\xc0\xef\xbe"  # behind the first 16 bytes
_NAMES = re.compile(
    rb"(?:^|/)(?:(?P<lmdb>data\.mdb)|(?P<zarr>\.zgroup|\.zarray|\.zmetadata|zarr\.json)"
    rb"|(?P<mds>[^/]*\.mds(?:\.[a-z]+)?)|(?P<cifar>data_batch_[0-9])"
    rb"|(?P<tfrecord>[^/]*\.tfrecords?(?:\.gz|-[0-9]+-of-[0-9]+)?))$"
)


def refuse_others(where: str, names: Iterable[bytes]) -> None:
    """Refuse files that only another program's format makes sense of, by their names.

    Args:
        where: what they lie in, for the message.

    Raises:
        UserError: what it is, and the way out.
    """
    for name in names:
        if (match := _NAMES.search(name)) is not None:
            assert match.lastgroup is not None
            raise UserError(f"{_named(where, match.lastgroup)} (it has {keys.shown(name)})")


def _named(where: str, other: str) -> str:
    what, way = _OTHERS[other]
    return f"{where} is {what}, which rankup does not read: {way}"


def is_squashfs(path: Path) -> bool:
    """Return True for a SquashFS image.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(4) in FORMATS["squashfs"].begins


def detect(path: Path) -> str:
    """The name of the format, one of `containers.FORMATS`.

    Raises:
        UserError: there is nothing at `path`, or nothing that is known; what is known is listed.
        OSError: it cannot be read.
    """
    part = path.with_name(path.name + PART)
    if not path.exists():
        if part.exists():
            raise UserError(
                f"{path} is not there, but {part} is: a pack that was interrupted; "
                f"`rankup pack … {path} --resume` finishes it"
            )
        raise UserError(f"no file or folder {path}")
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder")
    return _file(path)


def _file(path: Path) -> str:
    if path.name.endswith(_INDEX):
        data = path.name.removesuffix(_INDEX)
        raise UserError(f"{path} is the index of {data}: open {path.with_name(data)} instead")
    with path.open("rb") as file:
        head = file.read(_BLOCK)
        if path.name == "index.npz" and _is_index(file):
            raise UserError(f"{path} is the index of {path.parent}: open that folder instead")
        for name, about in FORMATS.items():
            if head.startswith(about.begins):
                return name
        if head.startswith(_ZIP):
            return "numpy" if path.suffix == ".npz" else "zip"
        # What h5py's users put in front of their file has a power of two as its length.
        at = 0
        while at < 1 << 24:
            file.seek(at)
            if file.read(len(_HDF5)) == _HDF5:
                return "hdf5"
            at = max(512, at * 2)
    if _is_tar(head) or (path.suffix == ".tar" and not any(head)):
        return "tar"
    other = next((one for begin, one in _BEGINS.items() if head.startswith(begin)), "")
    if other or head[16:20] == _LMDB:
        raise UserError(_named(str(path), other or "lmdb"))
    refuse_others(str(path), [os.fsencode(path.name)])
    for begin, name in keys.COMPRESSED.items():
        if head.startswith(begin):
            raise UserError(
                f"{path} is compressed as a whole ({name}), so that no sample in it can be read "
                f"without all before it: decompress it first"
            )
    if zipfile.is_zipfile(path):  # with something in front, as one that unpacks itself
        return "zip"
    raise UserError(f"{path} {_seems(path, head)}; what can be opened: {KNOWN}")


def _seems(path: Path, head: bytes) -> str:
    if not head:
        return "is empty"
    if path.suffix.lower() in _LISTS:
        return "seems to be a list of files: `rankup pack` takes it; open what that makes"
    return f"is of no format known here (it begins with {head[:8]!r})"


def _is_index(file: BinaryIO) -> bool:
    """Return True for an .npz that is an index, and not somebody's arrays of that name."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {"about.npy", "keys_ends.npy"} <= set(archive.namelist())
    except (zipfile.BadZipFile, ValueError):
        return False


def _is_tar(head: bytes) -> bool:
    """Return True where the sum of the first header is right, as in any tar."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.HeaderError:  # type: ignore[attr-defined]
        return False
    return True


def _folder(path: Path) -> str:
    if path.name.endswith(PART):
        whole = path.with_name(path.name.removesuffix(PART))
        raise UserError(
            f"{path} is an interrupted pack; `rankup pack … {whole} --resume` finishes it"
        )
    with os.scandir(path) as entries:
        every = [os.fsencode(one.name) for one in entries]
    refuse_others(str(path), every)
    names = [os.fsdecode(one) for one in every if not keys.hidden(one)]
    if not names:
        raise UserError(f"{path} is an empty folder; what can be opened: {KNOWN}")
    if any(name in names for name in HUGGING_FACE):
        return "hf"
    ends = {os.path.splitext(name)[1].lower() for name in names}
    for end in SEVERAL:
        if end in ends or _all_below(path, names, end):
            return end.removeprefix(".")
    if "data" in names and any((path / "data").glob("*.parquet")):
        return "parquet"  # as a repository of the Hub has it
    single = [name for name in names if os.path.splitext(name)[1].lower() in _SINGLE]
    if single and not any((path / name).is_dir() for name in names):
        raise UserError(
            f"{path} holds {len(single)} container{'s' if len(single) > 1 else ''} of one file "
            f"each: open {clean(str(path / min(single)))}"
        )
    return "files"


def _all_below(path: Path, names: Iterable[str], end: str) -> bool:
    """Return whether the splits in a folder, or else all folders in it, hold files of one kind."""
    folders = [name for name in names if (path / name).is_dir()]
    found = False
    for name in [one for one in folders if keys.kind_of(one)] or folders:
        with os.scandir(path / name) as entries:
            some = [
                entry.name.lower()
                for entry in itertools.islice(entries, _LOOKED_AT)
                if not keys.hidden(os.fsencode(entry.name)) and entry.is_file()
            ]
        if some and not any(one.endswith(end) for one in some):
            return False
        found = found or bool(some)
    return found

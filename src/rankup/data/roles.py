"""The names by which data sets say what is a label, a key, a split, or nobody's data."""

from __future__ import annotations

import re

# Of columns, arrays and data sets, in any case; where several are there the first one counts.
LABELS = ("label", "labels", "class", "class_name", "cls", "target", "targets", "y")
KEYS = (
    "key",
    "keys",
    "__key__",
    "id",
    "ids",
    "path",
    "paths",
    "filename",
    "filenames",
    "file_name",
)
PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path")
SPLIT_COLUMNS = ("split", "subset", "partition")
CLASSES = ("classes", "class_names", "label_names")  # of names of classes, in HDF5

# Of splits, in lower case -> their kind, in the order in which splits stand.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_ORDER = ("train", "val", "test")

# Hidden files and folders, and what file managers and archivers leave behind.
_HIDDEN = re.compile(rb"(?:^|/)(?:\.|(?:Thumbs\.db|ehthumbs\.db|desktop\.ini|__MACOSX)(?:/|\Z))")

# First bytes of what is compressed as a whole -> the program that unpacks it.
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}


def kind_of(split: str) -> str:
    """Return `train`, `val` or `test` for a name of such a split; else nothing."""
    return SPLITS.get(split.lower(), "")


def split_order(name: str) -> tuple[int, str]:
    """Sort splits as people expect them: train, validation, test, then the others by name."""
    kind = SPLITS.get(name)
    return (_ORDER.index(kind) if kind else len(_ORDER)), name


def split_in(name: str) -> str:
    """Return the split that the name of a file tells: its last word of splits of one kind.

    >>> split_in("imagenet-validation-00012"), split_in("train_val"), split_in("photos")
    ('validation', '', '')
    """
    words = [word for word in re.split(r"[^A-Za-z]+", name) if kind_of(word)]
    return words[-1] if len(set(map(kind_of, words))) == 1 else ""


def hidden(name: bytes) -> bool:
    """Return whether a path is nobody's data: hidden, in a hidden folder, or left by a program."""
    return _HIDDEN.search(name) is not None

"""The names by which data sets say what is a label, a key, a split, or nobody's data; safe keys.

Keys come from tars, lists and files of others, and become paths below a folder of ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from .errors import BadContainer
from .index import Int64s, Strings

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


def split_names(names: Sequence[str], said: str) -> list[str]:
    """Return splits by the names that they are asked for: `train` also of a folder `Train`.

    Args:
        said: a name that was asked for, and stays as it is.

    >>> split_names(["Train", "Val"], "train"), split_names(["train", "Train"], "train")
    (['train', 'val'], ['train', 'Train'])
    """
    lower = [name.lower() if kind_of(name) and name != said else name for name in names]
    return lower if len(set(lower)) == len(lower) else list(names)


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


# PATH_MAX of Linux; a component is at most NAME_MAX, which is checked where files are made.
LONGEST = 4096
_MANY = 1 << 16  # keys that are looked at together


def safe(key: bytes) -> bool:
    r"""Return True for a key that, joined to a folder, is a path below that folder.

    Relative, of 1 to 4096 bytes, without empty, `.` and `..` components and NUL. A backslash is
    legal inside a name, but not where Windows would see `\root`, `C:\` or `..\up`.
    """
    if not 0 < len(key) <= LONGEST or b"\0" in key:
        return False
    # One search instead of a split per key: a key without these has only plain components.
    framed = b"/" + key + b"/"
    if b"//" in framed or b"/./" in framed or b"/../" in framed:
        return False
    return b"\\" not in key or _safe_backslashes(key)


def _safe_backslashes(key: bytes) -> bool:
    parts = key.replace(b"\\", b"/").split(b"/")
    return parts[0] != b"" and not parts[0].endswith(b":") and b".." not in parts


def check(key: bytes, where: str) -> None:
    """Refuse a key that is not `safe`.

    Args:
        where: what it was found in, for the message.

    Raises:
        BadContainer: the key, and why it is refused.
    """
    if not safe(key):
        raise BadContainer(
            f"{where} has a sample named {shown(key)}: a name must be a relative path of at most "
            f"{LONGEST} bytes without empty, '.' or '..' parts and NUL, since files are made from "
            "it; rename it there"
        )


def check_all(names: Strings, where: str) -> None:
    """Refuse keys of which one is not `safe`; see `check`."""
    found = unsafe(names)
    if found is not None:
        check(found, where)


def unsafe(names: Strings) -> bytes | None:
    """Return the first of many keys that is not `safe`; most of them are not looked at alone."""
    for start in range(0, len(names), _MANY):
        ends = names.ends[start : start + _MANY + 1]
        for row in _suspect(names, ends).tolist():
            if not safe(name := names[start + row]):
                return name
    return None


def _suspect(names: Strings, ends: Int64s) -> Int64s:
    """Rows that are empty or long, or have what only some safe keys have."""
    data = names.data[int(ends[0]) : int(ends[-1])]
    slash, dot = data == ord("/"), data == ord(".")
    length = np.diff(ends)
    there = np.flatnonzero(length)
    first, last = ends[:-1][there] - ends[0], ends[1:][there] - ends[0] - 1
    # A dot that "." or ".." may begin with: another one, a slash or the end of the name follows.
    ending = np.zeros(len(data), bool)
    ending[last] = True
    dot[:-1] &= dot[1:] | slash[1:] | ending[:-1]
    odd = (data == 0) | (data == ord("\\"))
    odd[:-1] |= slash[:-1] & (slash[1:] | dot[1:])
    odd[first] |= slash[first] | dot[first]
    odd[last] |= slash[last]
    found = (length == 0) | (length > LONGEST)
    found[there[np.searchsorted(last, np.flatnonzero(odd))]] = True
    return np.flatnonzero(found)


def shown(key: bytes) -> str:
    """A key as a message shows it: quoted, escaped, and cut to a line."""
    text = repr(key[:120])[1:]
    return f"{text}... ({len(key)} bytes)" if len(key) > 120 else text

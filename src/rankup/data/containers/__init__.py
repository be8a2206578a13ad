"""Formats with many samples in few files, each reduced to an index. No torch.

A format is a module with the functions of `Format`, and a line in `FORMATS`. Both functions may use
a C library on a file from anywhere, so that `finding.py` runs the first in a child process.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import BadContainer
from ..index import Index


@dataclass(frozen=True)
class Choice:
    """The user's choice of columns and names; None: by name, as each format's `scan` says.

    Attributes:
        label: name of the column, array or data set with the labels.
        key: name of the column with the keys.
        fields: names of what else is taken; empty: all.
        split: the split of samples that belong to none.
    """

    label: str | None = None
    key: str | None = None
    fields: tuple[str, ...] = ()
    split: str = "train"


class Fallback(Protocol):
    """Reader of samples that do not lie in one piece, of one process and one thread."""

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        """The bytes of one field of one sample, piece by piece.

        Args:
            number: `~offset` of the index.

        Raises:
            BadContainer: they cannot be read.
        """


class Format(Protocol):
    """A module of this folder."""

    def scan(self, path: Path, choice: Choice) -> Index:
        """Return the index; samples in the container's own order within their splits.

        Raises:
            BadContainer: it is damaged, hostile, or not of this format.
            UserError: what `choice` names is not in it.
            OSError: it cannot be read.
        """

    def fallback(self, index: Index, root: Path) -> Fallback:
        """Return the reader of what has a negative offset; not there where nothing has."""


class About(NamedTuple):
    """A row of the table of formats.

    Attributes:
        module: its name in this folder.
        title: what people call it.
        begins: the first bytes of its files, where these tell.
        child: True where a C library reads it, which a damaged file can bring down.
    """

    module: str
    title: str
    begins: tuple[bytes, ...] = ()
    child: bool = False


FORMATS = {
    "hdf5": About("hdf5", "HDF5", child=True),  # its first bytes may stand further behind
    # A file, or the first message of a stream.
    "arrow": About("arrow", "Arrow IPC", (b"ARROW1", b"\xff\xff\xff\xff"), child=True),
    "tar": About("tar", "tar shards"),
    "squashfs": About("squashfs", "SquashFS", (b"hsqs",)),
    "files": About("files", "plain files"),
    "zip": About("zipped", "zip"),
    "parquet": About("parquet", "Parquet", (b"PAR1",), child=True),
    "numpy": About("arrays", "numpy arrays", (b"\x93NUMPY",)),
    "hf": About("arrow", "Hugging Face data set", child=True),
}


def module(name: str) -> Format:
    """The module of a format."""
    found: Format = importlib.import_module(f"{__name__}.{FORMATS[name].module}")  # type: ignore[assignment]
    return found


class Fallbacks:
    """A `Fallback` of an index for each process and thread that reads by it.

    What decompresses samples keeps the place it is at, which is no place for two; and a library's
    handle that came over a fork is not used.
    """

    def __init__(self, index: Index, root: Path) -> None:
        self._index, self._root = index, root
        self._own = threading.local()

    def chunks(self, field: str, offset: int) -> Iterator[bytes | memoryview]:
        """The bytes of one field of one sample, by its negative offset.

        Raises:
            BadContainer: they cannot be read.
        """
        if getattr(self._own, "pid", 0) != os.getpid():
            format = module(self._index.container)
            if not hasattr(format, "fallback"):  # there, each sample lies in one piece
                raise BadContainer(
                    f"{self._root}: a sample begins at {offset}: its index is damaged"
                )
            self._own.fallback = format.fallback(self._index, self._root)
            self._own.pid = os.getpid()
        yield from self._own.fallback.chunks(field, ~offset)

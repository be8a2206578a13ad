"""Zip files: what is stored lies in one piece, what is deflated is read through `Fallback`.

The central directory is what counts; each local header is held against it, since programs that read
the one and programs that read the other would else see different files.
"""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .. import keys
from .. import keys as safe_keys
from ..errors import DAMAGE, BadContainer
from ..index import Index, Int64s, Strings
from ..npz import LOCAL, local
from ..spans import Spans
from . import Choice
from .detect import refuse_others
from .grouping import Members, archived, plain

_DESCRIPTOR = b"PK\x07\x08"
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_DESCRIBED = 0x8  # sum and sizes come behind the data
_UTF8 = 0x800
_WINDOWS = (0, 10)
_RATIO = 1032  # the most that deflate can make of a byte
_CHUNK = 256 << 10


def scan(path: Path, choice: Choice) -> Index:
    """Return the index of the files in a zip.

    Raises:
        BadContainer: it is damaged or hostile, or has what cannot be read: encrypted files, other
            methods than stored and deflated, links.
        UserError: its names leave open what is a sample.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            refuse_others(str(path), (os.fsencode(info.filename) for info in infos))
            members = Members()
            found = _files(path, infos, members)
            place = _offsets(file.fileno(), path, infos, archive.start_dir)
            members.names = list(found)
            rows = list(found.values())
            members.offset = [place[id(info)] for info in rows]
            members.length = [info.file_size for info in rows]
            return archived(
                "zip",
                str(path),
                members,
                choice,
                lambda row: archive.read(rows[row]),
                files=Strings.of([b""]),
                sizes=np.array([os.fstat(file.fileno()).st_size], np.int64),
            )
    except MemoryError:  # of a zip with very many files
        raise
    except DAMAGE as error:
        raise BadContainer(f"{path} is no zip, or a damaged one: {error}") from None


def fallback(index: Index, root: Path) -> Inflated:
    """Return the reader of deflated members."""
    return Inflated(index, root)


class Inflated:
    """Reader of deflated members, which the index knows by the place of their local header."""

    def __init__(self, index: Index, root: Path) -> None:
        self._path = root
        self._spans = Spans(root, index.files, index.sizes, "pread")
        # An index that is to be compared with the file has no sizes.
        self._end = int(index.sizes[0]) if len(index.sizes) else root.stat().st_size
        self._fields = {one.name: (one.offset, one.length) for one in index.fields}
        self._sizes: dict[str, tuple[Int64s, Int64s]] = {}

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        """The bytes of a member; never more of them than the zip has said.

        Raises:
            BadContainer: the stream is damaged, or of another length.
            OSError: it cannot be read.
        """
        size = self._size(field, number)
        where = f"{self._path}: the file at byte {number}"
        about = local(self._read(number, LOCAL.size), number)
        if about is None:
            raise BadContainer(f"{where} has no header: the zip was changed since it was indexed")
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        at, total, found = about.start, 0, 0
        waiting: bytes | memoryview = b""
        while not stream.eof:
            if not waiting:
                waiting = self._read(at, _CHUNK)
                at += len(waiting)
            try:
                data = stream.decompress(waiting, _CHUNK)
            except zlib.error as error:
                raise BadContainer(f"{where} is damaged: {error}") from None
            if not (data or waiting or stream.eof):
                raise BadContainer(f"{where} ends too early: the zip was cut short")
            waiting = stream.unconsumed_tail
            total += len(data)
            if total > size:
                raise BadContainer(f"{where} is longer than the {size} bytes that the zip says")
            found = zlib.crc32(data, found)
            if data:
                yield data
        crc = about.crc
        if about.flags & _DESCRIBED:
            behind = stream.unused_data
            if len(behind) < 8:
                behind += self._read(at, 8)
            behind = behind[4:8] if behind.startswith(_DESCRIPTOR) else behind[:4]
            crc = int.from_bytes(behind, "little")
        if total != size or found != crc:
            raise BadContainer(f"{where} is damaged: {total} of {size} bytes, or a wrong CRC")

    def _read(self, at: int, length: int) -> bytes | memoryview:
        """Return as many of these bytes as there are."""
        return self._spans.read(0, at, min(length, max(0, self._end - at)))

    def _size(self, field: str, number: int) -> int:
        if field not in self._sizes:
            offset, length = self._fields[field]
            rows = np.flatnonzero(offset < 0)
            numbers = ~offset[rows]
            order = np.argsort(numbers)
            self._sizes[field] = numbers[order], length[rows][order]
        numbers, lengths = self._sizes[field]
        row = int(np.searchsorted(numbers, number))
        if row == len(numbers) or numbers[row] != number:
            raise BadContainer(f"{self._path}: the index knows no file at byte {number}")
        return int(lengths[row])


def _files(
    path: Path, infos: Sequence[zipfile.ZipInfo], members: Members
) -> dict[bytes, zipfile.ZipInfo]:
    """The files in it, of equal names the last; what is passed over is counted."""
    last: dict[bytes, zipfile.ZipInfo] = {}
    for info in infos:
        name = plain(_name(info))
        kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == 3 else 0
        if _name(info).endswith(b"/") or kind == stat.S_IFDIR:
            members.passed["folders"] += 1
            if name:
                safe_keys.check(name, str(path))
            continue
        safe_keys.check(name, str(path))
        if kind not in (0, stat.S_IFREG):
            what = "a link" if kind == stat.S_IFLNK else "no file"
            raise BadContainer(
                f"{path}: {safe_keys.shown(name)} is {what}: zip the files themselves"
            )
        _check_readable(path, name, info)
        if keys.hidden(name):
            members.passed["hidden"] += 1
            continue
        if last.pop(name, None) is not None:
            members.passed["written twice, the last counts"] += 1
        last[name] = info
    return last


def _name(info: zipfile.ZipInfo) -> bytes:
    """The bytes in the zip; where those are no UTF-8, what the old code page means by them."""
    name = _raw(info)
    try:
        name.decode()
    except UnicodeDecodeError:
        name = info.orig_filename.encode()
    if info.create_system in _WINDOWS and b"/" not in name:
        name = name.replace(b"\\", b"/")
    return name


def _raw(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def _check_readable(path: Path, name: bytes, info: zipfile.ZipInfo) -> None:
    where = f"{path}: {safe_keys.shown(name)}"
    if info.flag_bits & _ENCRYPTED:
        raise BadContainer(f"{where} is encrypted: unzip it with its password first")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadContainer(
            f"{where} is compressed by method {info.compress_type}; stored (0) and deflated (8) "
            f"can be read: unzip it first"
        )
    stored = info.compress_type == zipfile.ZIP_STORED
    most = info.compress_size if stored else _RATIO * info.compress_size
    if info.file_size > most or (stored and info.file_size != most):
        raise BadContainer(
            f"{where} should be {info.file_size} bytes made of {info.compress_size}, which cannot "
            f"be: a damaged zip, or a bomb"
        )


def _offsets(
    descriptor: int, path: Path, infos: Sequence[zipfile.ZipInfo], end: int
) -> dict[int, int]:
    """Return the place of each file's data, by the `id` of its info; `~header` of deflated ones."""
    place: dict[int, int] = {}
    before = 0
    for info in sorted(infos, key=lambda one: one.header_offset):
        at, name, raw = info.header_offset, safe_keys.shown(_name(info)), _raw(info)
        if at < before:
            raise BadContainer(f"{path}: {name} lies over the file before it: a zip bomb")
        head = os.pread(descriptor, LOCAL.size + len(raw), at)
        about = local(head, at)
        if about is None:
            raise BadContainer(f"{path}: {name} has no header at byte {at}: a damaged zip")
        same = (about.method, about.names) == (info.compress_type, len(raw))
        if not same or head[LOCAL.size :] != raw:
            raise BadContainer(
                f"{path}: {name} is listed otherwise than its header at byte {at} says: a damaged "
                f"or hostile zip"
            )
        before = about.start + info.compress_size
        if before > end:
            raise BadContainer(f"{path}: {name} ends at byte {before}, in or behind the directory")
        place[id(info)] = about.start if info.compress_type == zipfile.ZIP_STORED else ~at
    return place

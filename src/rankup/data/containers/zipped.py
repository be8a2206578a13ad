"""Zip files: what is stored lies in one piece, what is deflated is read through `Fallback`.

The central directory is what counts; each local header is held against it, since programs that read
the one and programs that read the other would else see different files.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import keys as safe_keys
from ..errors import BadContainer
from ..index import Field, Index, Int64s, data_path
from ..strings import Strings
from . import Choice, label_text
from .grouping import Groups, group
from .member_names import hidden, plain

_LOCAL = struct.Struct("<4s5H3I2H")
_MAGIC = b"PK\x03\x04"
_DESCRIPTOR = b"PK\x07\x08"
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_DESCRIBED = 0x8  # sum and sizes come behind the data
_UTF8 = 0x800
_WINDOWS = (0, 10)
_RATIO = 1032  # the most that deflate can make of a byte
_CHUNK = 256 << 10
_BAD = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(NotImplementedError, ValueError, OverflowError),
)


@dataclass
class _Found:
    """Files of a zip; the columns have a row for each."""

    names: list[bytes] = field(default_factory=list)
    infos: list[zipfile.ZipInfo] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)


def scan(path: Path, choice: Choice) -> Index:
    """Where every file of a zip lies.

    Raises:
        BadContainer: it is damaged or hostile, or has what cannot be read: encrypted files, other
            methods than stored and deflated, links.
        UserError: its names leave open what is a sample.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos, end = archive.infolist(), archive.start_dir
    except _BAD as error:
        raise BadContainer(f"{path} is no zip, or a damaged one: {error}") from None
    found = _files(path, infos)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        offset = _offsets(descriptor, path, infos, end, found)
    finally:
        os.close(descriptor)
    groups = group(Strings.of(found.names), choice=choice, stems=True)
    return _index(path, size, found, offset, groups)


def fallback(index: Index, root: Path) -> Inflated:
    """Reads what is deflated."""
    return Inflated(index, root)


class Inflated:
    """Reads deflated members, which the index knows by the place of their local header.

    Opens the file when it first reads; reads by position, so that a forked child can go on with it.
    """

    def __init__(self, index: Index, root: Path) -> None:
        self._path = data_path(root, index.files, 0) if len(index.files) else root
        self._fields = {one.name: (one.offset, one.length) for one in index.fields}
        self._sizes: dict[str, tuple[Int64s, Int64s]] = {}
        self._descriptor = -1

    def chunks(self, field: str, number: int) -> Iterator[bytes | memoryview]:
        """The bytes of a member; never more of them than the zip has said.

        Raises:
            BadContainer: the stream is damaged, or of another length.
            OSError: it cannot be read.
        """
        size = self._size(field, number)
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        where = f"{self._path}: the file at byte {number}"
        head = os.pread(self._descriptor, _LOCAL.size, number)
        if len(head) < _LOCAL.size or not head.startswith(_MAGIC):
            raise BadContainer(f"{where} has no header: the zip was changed since it was indexed")
        _, _, flags, _, _, _, crc, _, _, names, extra = _LOCAL.unpack(head)
        described = bool(flags & _DESCRIBED)
        at = number + _LOCAL.size + names + extra
        yield from _inflated(self._descriptor, at, size, None if described else crc, where)

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

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": -1}

    def __del__(self) -> None:
        if os is not None:  # else the interpreter ends
            self.close()


def _inflated(
    descriptor: int, at: int, size: int, crc: int | None, where: str
) -> Iterator[bytes | memoryview]:
    """Inflate `size` bytes and hold them against their sum, which may stand behind them."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    total, found, waiting = 0, 0, b""
    while not stream.eof:
        if not waiting:
            waiting = os.pread(descriptor, _CHUNK, at)
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
    if crc is None:
        behind = stream.unused_data
        if len(behind) < 8:
            behind += os.pread(descriptor, 8, at)
        behind = behind[4:8] if behind.startswith(_DESCRIPTOR) else behind[:4]
        crc = int.from_bytes(behind, "little")
    if total != size or found != crc:
        raise BadContainer(f"{where} is damaged: {total} of {size} bytes, or a wrong CRC")


def _files(path: Path, infos: Sequence[zipfile.ZipInfo]) -> _Found:
    """The files in it, of equal names the last."""
    found = _Found()
    last: dict[bytes, zipfile.ZipInfo] = {}
    for info in infos:
        name = plain(_name(info))
        kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == 3 else 0
        if _name(info).endswith(b"/") or kind == stat.S_IFDIR:
            found.passed["folders"] += 1
            if name and not safe_keys.safe(name):
                safe_keys.check(name, str(path))
            continue
        safe_keys.check(name, str(path))
        if kind not in (0, stat.S_IFREG):
            what = "a link" if kind == stat.S_IFLNK else "no file"
            raise BadContainer(f"{path}: {_shown(name)} is {what}: zip the files themselves")
        _check_readable(path, name, info)
        if hidden(name):
            found.passed["hidden"] += 1
            continue
        if last.pop(name, None) is not None:
            found.passed["written twice, the last counts"] += 1
        last[name] = info
    found.names, found.infos = list(last), list(last.values())
    return found


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
    where = f"{path}: {_shown(name)}"
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
    descriptor: int, path: Path, infos: Sequence[zipfile.ZipInfo], end: int, found: _Found
) -> Int64s:
    """Where the data of each file found begins; `~header` for deflated ones."""
    place: dict[int, int] = {}
    before = 0
    for info in sorted(infos, key=lambda one: one.header_offset):
        at, name = info.header_offset, _shown(_name(info))
        raw = _raw(info)
        head = os.pread(descriptor, _LOCAL.size + len(raw), at) if at >= before else b""
        if not head:
            raise BadContainer(f"{path}: {name} lies over the file before it: a zip bomb")
        if len(head) < _LOCAL.size + len(raw) or not head.startswith(_MAGIC):
            raise BadContainer(f"{path}: {name} has no header at byte {at}: a damaged zip")
        _, _, _, method, _, _, _, _, _, names, extra = _LOCAL.unpack_from(head)
        if (method, head[_LOCAL.size :]) != (info.compress_type, raw) or names != len(raw):
            raise BadContainer(
                f"{path}: {name} is listed otherwise than its header at byte {at} says: a damaged "
                f"or hostile zip"
            )
        data = at + _LOCAL.size + names + extra
        before = data + info.compress_size
        if before > end:
            raise BadContainer(f"{path}: {name} ends at byte {before}, in or behind the directory")
        place[id(info)] = data if method == zipfile.ZIP_STORED else ~at
    return np.array([place[id(info)] for info in found.infos], np.int64)


def _index(path: Path, size: int, found: _Found, offset: Int64s, groups: Groups) -> Index:
    rows, splits = groups.rows()
    length = np.array([info.file_size for info in found.infos], np.int64)
    fields = []
    for number, name in enumerate(groups.fields):
        members = np.flatnonzero((groups.field == number) & (groups.sample >= 0))
        of = np.empty(len(rows), np.int64)
        of[groups.sample[members]] = members
        fields.append(Field(name, offset[of[rows]], length[of[rows]]))
    labels, classes = groups.labels, groups.classes
    if groups.label_member is not None:
        rows_of = groups.label_member.tolist()
        texts = _texts(path, [found.infos[row] if row >= 0 else None for row in rows_of])
        labels, classes = label_text.parse(texts, (), str(path))
    passed = dict(found.passed)
    if groups.skipped:
        passed["outside of samples"] = len(groups.skipped)
    return Index(
        "zip",
        Strings.of([b""]),
        splits,
        groups.keys.take(rows),
        tuple(fields),
        None if labels is None else labels[rows],
        classes,
        np.array([size], np.int64),
        facts={"skipped": passed} if passed else {},
    )


def _texts(path: Path, members: Sequence[zipfile.ZipInfo | None]) -> list[bytes | None]:
    """The bytes of labels."""
    texts = []
    with zipfile.ZipFile(path) as archive:
        for info in members:
            if info is not None:
                label_text.check_length(info.filename, info.file_size, str(path))
            try:
                texts.append(None if info is None else archive.read(info))
            except _BAD as error:
                raise BadContainer(f"{path}: a label cannot be read: {error}") from None
    return texts


def _shown(name: bytes) -> str:
    return safe_keys.shown(name)

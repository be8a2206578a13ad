"""Tar files, one or a folder of shards, ours and other people's, as an index.

Members are grouped as `grouping` says: in the habit of WebDataset, or as class folders. What a tar
may hold beside files is passed over and counted (folders, symbolic links, hidden files) or refused
(devices, sparse files); of a member that is there twice the last counts, as for tar itself.

What is written has names and headers for thousands of members at a time. WebDataset cuts a name at
the first dot of its base name and takes neighbours with equal stems for one sample. A key for which
that would go wrong is written under another name, in which the dots of its base name are `%2E`; the
key itself stands in the member's PAX header.

What the ustar header has no room for stands in a PAX header before it: names of more than 100
bytes or beyond ASCII, sizes from 8 GiB, and the true key of a sample that is written under another
name. Mode, owner and time are the same for all, so that the same samples give the same bytes.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import keys
from .. import keys as safe_keys
from ..errors import BadContainer
from ..index import Index, Int64s, Strings
from ..spans import Spans
from . import Choice
from .grouping import LABEL, Members, Parts, archived, cut, plain

BLOCK = 512
KEY = b"RANKUP.key"
# A tar ends with two blocks of zeros, and is a whole number of records of 20 blocks.
END = 2 * BLOCK
RECORD = 20 * BLOCK

_NAME = 100
_LARGE = 8**11
_MODE = slice(100, 107)
_SIZE = slice(124, 135)
_SUM = slice(148, 154)
_TYPE = 156
_DEVICE = slice(329, 345)

# What has no extension gets one: WebDataset passes over a member without.
BARE = b"data"
# One dot in the base name, with something on both sides. `%` is of our own names; `.` in
# WebDataset's pattern is no line end; what begins with `__` it takes for its own.
_LONE = re.compile(rb"(?!__)(?:[^%\n]*/)?[^/.%\n]+\.(?!__)[^/.%\n]+")
_STEM = re.compile(rb"(?!__)(?:[^%\n]*/)?[^/.%\n]+")

_TEMPLATE = b"".join(
    (
        bytes(_NAME),
        b"0000644\0",  # mode
        b"0000000\0" * 2,  # owner, group
        b"0" * 11 + b"\0",  # size
        b"0" * 11 + b"\0",  # time
        b" " * 8,  # sum
        b"0",  # a file
        bytes(100),  # target of a link
        b"ustar\0" + b"00",
        bytes(64),  # names of owner and group
        b"0000000\0" * 2,  # device
        bytes(155 + 12),
    )
)

Blocks = npt.NDArray[np.uint8]
CLASSES = "classnames.txt"
_LARGEST = 1 << 20  # of an extension header, which holds a path or two; members are not read
_LARGEST_LIST = 1 << 28
_TRAILER = 64 << 10
# Records of other programs (access lists, attributes, inode tables), and labels of volumes.
_FOREIGN = (b"A", b"D", b"E", b"I", b"N", b"V")
_ALL = {"path", "size", KEY.decode()}  # what one member is, so that no global header says it


def padded(size: int) -> int:
    """A size, rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def length(name: bytes, size: int, key: bytes | None = None) -> int:
    """Bytes of the headers of one member, PAX included."""
    records = _records(name, size, key)
    return 2 * BLOCK + padded(len(records)) if records else BLOCK


def headers(names: Sequence[bytes], sizes: Int64s, keys: Mapping[int, bytes]) -> list[bytes]:
    """The headers of regular members, of each all that stands before its data.

    Args:
        names: relative paths.
        sizes: int64, bytes of each.
        keys: row -> true key, for those that are written under another name.
    """
    odd = {
        row: records
        for row, (name, size) in enumerate(zip(names, sizes.tolist(), strict=True))
        if (records := _records(name, size, keys.get(row)))
    }
    blocks = _blocks([_ascii(name) for name in names], np.where(sizes < _LARGE, sizes, 0))
    blocks[list(odd), _DEVICE] = 0
    result = _cut(blocks)
    lengths = np.array([len(one) for one in odd.values()], np.int64)
    pax = _blocks([b"././@PaxHeader"] * len(odd), lengths)
    pax[:, _DEVICE] = 0
    pax[:, _MODE] = ord("0")
    pax[:, _TYPE] = ord("x")
    for (row, records), head in zip(odd.items(), _cut(pax), strict=True):
        result[row] = head + records.ljust(padded(len(records)), b"\0") + result[row]
    return result


def _records(name: bytes, size: int, key: bytes | None) -> bytes:
    """The PAX records of a member, as `tarfile` has them; empty where a ustar header says all."""
    found = []
    if key is not None:
        found.append((KEY, key))
    if len(name) > _NAME or not name.isascii():
        found.append((b"path", name))
    if size >= _LARGE:
        found.append((b"size", b"%d" % size))
    if not found:
        return b""
    try:
        b"".join(value for _, value in found).decode()
    except UnicodeDecodeError:
        found.insert(0, (b"hdrcharset", b"BINARY"))
    return b"".join(_record(word, value) for word, value in found)


def _record(word: bytes, value: bytes) -> bytes:
    """A PAX record, which begins with its own length."""
    rest = len(word) + len(value) + 3
    total = rest + len(str(rest))
    total = rest + len(str(total))
    return b"%d %s=%s\n" % (total, word, value)


def _ascii(name: bytes) -> bytes:
    """A name as a ustar header has it: a question mark for each character that is not ASCII."""
    return (
        name if name.isascii() else name.decode(errors="surrogateescape").encode("ascii", "replace")
    )


def _cut(rows: Blocks) -> list[bytes]:
    """Each header with its sum, for which the field itself counts as spaces."""
    rows[:, _SUM] = _octal(rows.sum(axis=1, dtype=np.int64), 6)
    rows[:, 154] = 0
    data = rows.tobytes()
    return [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]


def _blocks(names: Sequence[bytes], sizes: Int64s) -> Blocks:
    """uint8 (n, 512): ustar headers without their sums. Names are cut to 100 bytes."""
    rows = np.empty((len(names), BLOCK), np.uint8)
    rows[:] = np.frombuffer(_TEMPLATE, np.uint8)
    cells = np.array(names, dtype=f"S{_NAME}") if names else np.empty(0, f"S{_NAME}")
    rows[:, :_NAME] = cells.view(np.uint8).reshape(len(names), _NAME)
    rows[:, _SIZE] = _octal(sizes, 11)
    return rows


def _octal(values: Int64s, digits: int) -> Blocks:
    shifts = np.arange(3 * (digits - 1), -1, -3)
    return (((values[:, None] >> shifts) & 7) + ord("0")).astype(np.uint8)


def lone_names(keys: Strings, splits: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """Row -> name, for the samples of one field whose name is not their key.

    Args:
        splits: start and stop of each; keys are unique in one.
    """
    changed: dict[int, bytes] = {}
    for start, stop in splits:
        names = [keys[row] for row in range(start, stop)]
        stems = [cut(name)[0] for name in names]
        often = Counter(stems) if len(set(stems)) < len(stems) else {}
        for row, (name, stem) in enumerate(zip(names, stems, strict=True), start):
            if often.get(stem, 1) > 1 or not _LONE.fullmatch(name) or _is_label(name):
                if often.get(stem, 1) == 1 and _STEM.fullmatch(name):
                    changed[row] = name + b"." + BARE
                else:
                    changed[row] = _escaped(name) + b"." + _extension(name)
    return changed


def stem_names(keys: Strings) -> dict[int, bytes]:
    """Row -> stem, for the samples of several fields whose stem is not their key."""
    return {row: _escaped(key) for row, key in enumerate(keys) if not _STEM.fullmatch(key)}


def _is_label(name: bytes) -> bool:
    return name[-4:].lower() == b"." + LABEL.encode()


def _escaped(name: bytes) -> bytes:
    """No two keys give the same, and none gives what is a stem that needs no change."""
    folder, slash, base = name.rpartition(b"/")
    folder = folder.replace(b"%", b"%25").replace(b"\n", b"%0A")
    base = base.replace(b"%", b"%25").replace(b"\n", b"%0A").replace(b".", b"%2E")
    result = folder + slash + base
    if result.startswith(b"__"):
        result = b"%5F" + result[1:]
    return result if b"%" in result else result + b"%"


def _extension(name: bytes) -> bytes:
    found = name[name.rfind(b"/") + 1 :].rpartition(b".")[2] if b"." in name else b""
    plain = re.fullmatch(rb"(?!__)[A-Za-z0-9_]{1,16}", found)
    return found if plain and found.lower() != LABEL.encode() else BARE


def scan(path: Path, choice: Choice) -> Index:
    """Return the index of the members of a tar, or of a folder of them.

    Args:
        path: a tar, or a folder of them, also one folder below; their names tell the split.

    Raises:
        BadContainer: it is damaged, cut short, compressed, or holds what no sample can be.
        UserError: its members leave open what is a sample.
        OSError: it cannot be read.
    """
    names = _shard_names(path)
    members = Members()
    sizes = []
    for part, name in enumerate(names):
        shard = path / name
        with shard.open("rb") as file:
            sizes.append(os.fstat(file.fileno()).st_size)
            _walk(file, str(shard), sizes[-1], part, members)
    if members.names and all(name.endswith(b".tar") for name in members.names):
        raise BadContainer(
            f"{path} is a tar of {len(members.names)} tars: unpack it once, each into a folder of "
            f"its name, or into a folder of tars"
        )
    stems = [os.path.splitext(name or path.name)[0] for name in names]
    parts = Parts(
        np.array(members.part, np.int64),
        [os.fsencode(stem) for stem in stems],
        [_split_of(stem) for stem in stems],
    )

    files, lengths = Strings.of(map(os.fsencode, names)), np.array(sizes, np.int64)
    spans = Spans(path, files, lengths, "pread")
    try:
        return archived(
            "tar",
            str(path),
            members,
            choice,
            lambda row: bytes(
                spans.read(members.part[row], members.offset[row], members.length[row])
            ),
            files=files,
            sizes=lengths,
            parts=parts,
            classes=_class_names(path),
        )
    finally:
        spans.close()


def _shard_names(path: Path) -> list[str]:
    """Names of the tars below a folder; an empty one for a file."""
    if not path.is_dir():
        return [""]
    found = [*path.glob("*.tar"), *path.glob("*/*.tar")]
    names = sorted(os.fsencode(one.relative_to(path)) for one in found if one.is_file())
    if not names:
        raise BadContainer(f"{path} holds no file that ends with .tar")
    return list(map(os.fsdecode, names))


def _split_of(stem: str) -> str:
    """The split that a shard's name, or its folder's, tells: `imagenet-train-0001`; or empty."""
    return next(filter(None, map(keys.split_in, reversed(stem.split("/")))), "")


def _class_names(path: Path) -> tuple[str, ...]:
    """Names of classes, one a line, in the file beside shards of ours."""
    try:
        with (path / CLASSES).open("rb") as file:
            text = file.read(_LARGEST_LIST)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    lines = text.decode("utf-8", "surrogateescape").removesuffix("\n")
    return tuple(line.removesuffix("\r") for line in lines.split("\n")) if lines else ()


class _Headers:
    """A tar of which headers are read alone: a large read is that of a damaged one."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST:
            raise tarfile.ReadError(f"an extension header of {size} bytes")
        return self._file.read(size)


class _Place(NamedTuple):
    offset: int
    length: int
    key: bytes | None  # the true one, where rankup has written it under another name


def _walk(file: BinaryIO, where: str, size: int, part: int, members: Members) -> None:
    """Add the members of one tar."""
    head = file.read(8)
    for magic, program in keys.COMPRESSED.items():
        if head.startswith(magic):
            raise BadContainer(
                f"{where} is compressed as a whole, so that no sample can be read without all "
                f"before it: unpack it once with `{program} -d`, which leaves a tar"
            )
    file.seek(0)
    found: dict[bytes, _Place] = {}
    at = 0
    try:
        archive: Any = tarfile.TarFile(
            fileobj=cast(Any, _Headers(file)), encoding="utf-8", errors="surrogateescape"
        )
        while (info := archive.next()) is not None:
            archive.members = []  # it would keep them all
            if info.size < 0 or info.offset_data + info.size > size or archive.offset <= at:
                raise tarfile.ReadError(
                    f"{info.name!a} should have {info.size} bytes from {info.offset_data} on, of "
                    f"{size}: cut short, or damaged"
                )
            if archive.pax_headers.keys() & _ALL:
                raise tarfile.ReadError("a global header gives all members one name or size")
            at = archive.offset
            _member(info, where, found, members.passed)
        at = archive.offset
    except (UserError, OSError):
        raise
    except Exception as error:  # of hostile bytes tarfile raises anything
        raise BadContainer(
            f"{where}: no tar, or a damaged or cut one: {error} (from byte {at} on)"
        ) from None
    _check_end(file, where, at, size)
    for name, (offset, length, key) in found.items():
        if key is not None:
            members.keys[len(members.names)] = key
        members.names.append(name)
        members.offset.append(offset)
        members.length.append(length)
        members.part.append(part)


def _member(
    info: tarfile.TarInfo, where: str, found: dict[bytes, _Place], passed: Counter[str]
) -> None:
    name = plain(info.name.encode("utf-8", "surrogateescape"))
    if info.isdir():
        if name.strip(b"/."):
            safe_keys.check(name, where)
        passed["folders"] += 1
        return
    if info.type in _FOREIGN:
        passed["records of other programs"] += 1
        return
    safe_keys.check(name, where)
    if info.issym():
        passed["symbolic links"] += 1  # which nobody follows
        return
    true = info.pax_headers.get(KEY.decode())
    key = None if true is None else true.encode("utf-8", "surrogateescape")
    place = _Place(info.offset_data, info.size, key)
    if info.islnk():  # its target's bytes under another name
        target = plain(info.linkname.encode("utf-8", "surrogateescape"))
        if target not in found:
            shown, to = safe_keys.shown(name), safe_keys.shown(target)
            raise BadContainer(f"{where}: {shown} is a link to {to}, which does not come before")
        place = found[target]._replace(key=key)
        if name == target:
            return
    else:
        _check_plain(info, where)
    if key is not None:
        safe_keys.check(key, where)
    elif keys.hidden(name):
        passed["hidden"] += 1
        return
    if name in found:
        raise UserError(
            f"{where} has {safe_keys.shown(name)} twice, and one sample of that name would be "
            "lost: unpack it with tar, which keeps the last, or have its writer give each its own "
            "name"
        )
    found[name] = place


def _check_plain(info: tarfile.TarInfo, where: str) -> None:
    what, advice = f"of type {info.type!r}", "pack the tar again without it"
    if info.issparse() or any(one.startswith("GNU.sparse.") for one in info.pax_headers):
        what, advice = "a sparse file, which is not in one piece", "pack it without --sparse"
    elif info.isfifo():
        what = "a pipe"
    elif info.isdev():
        what = "a device"
    elif info.isreg():
        return
    raise BadContainer(f"{where}: {info.name!a} is {what}, and no sample: {advice}")


def _check_end(file: BinaryIO, where: str, at: int, size: int) -> None:
    """A lone block of zeros may be a hole in the middle, behind which all would be lost."""
    file.seek(at)
    end = file.read(_TRAILER)
    if at + 2 * BLOCK > size:
        raise BadContainer(
            f"{where} ends at byte {size} without the two blocks of zeros that end a tar: it was "
            f"cut short, or its writer did not finish; copy or make it again"
        )
    if any(end[:BLOCK]):
        raise BadContainer(f"{where}: what stands at byte {at} is no header: it is damaged")
    if any(end):
        raise BadContainer(
            f"{where}: something follows the block of zeros at byte {at} that ends a tar: tars put "
            f"together with cat (tar --concatenate does it right), or a damaged one"
        )

"""Tar files, one or a folder of shards, ours and other people's, as an index.

Members are grouped as `grouping` says: in the habit of WebDataset, or as class folders. What a tar
may hold beside files is passed over and counted (folders, symbolic links, hidden files) or refused
(devices, sparse files); of a member that is there twice the last counts, as for tar itself.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from .. import keys as safe_keys
from .. import roles
from ..errors import BadContainer
from ..index import Index
from ..spans import Spans
from ..strings import Strings
from . import Choice
from .grouping import Members, Parts, archived, plain
from .tar_headers import BLOCK, KEY

CLASSES = "classnames.txt"
_LARGEST = 1 << 20  # of an extension header, which holds a path or two; members are not read
_LARGEST_LIST = 1 << 28
_TRAILER = 64 << 10
# Records of other programs (access lists, attributes, inode tables), and labels of volumes.
_FOREIGN = (b"A", b"D", b"E", b"I", b"N", b"V")
_ALL = {"path", "size", KEY.decode()}  # what one member is, so that no global header says it


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
    return next(filter(None, map(roles.split_in, reversed(stem.split("/")))), "")


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
    for magic, program in roles.COMPRESSED.items():
        if head.startswith(magic):
            raise BadContainer(
                f"{where} is compressed as a whole, so that no sample can be read without all "
                f"before it: unpack it once with `{program} -d`, which leaves a tar"
            )
    file.seek(0)
    found: dict[bytes, _Place] = {}  # of members of one name the last
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
    except (BadContainer, OSError):
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
        passed["hard links"] += 1
        if name == target:
            return
    else:
        _check_plain(info, where)
    if key is not None:
        safe_keys.check(key, where)
    elif roles.hidden(name):
        passed["hidden"] += 1
        return
    if found.pop(name, None) is not None:
        passed["written twice, the last counts"] += 1
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

"""A tar archive of the web becomes a folder, whole or not at all; nothing lands outside of it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...base import lock
from ...base.files import fsync_directory, write_json
from ...base.text import say
from ...base.urls import public
from ...site.caches import Caches
from ..record import Item, Record
from . import progress
from .request import FetchFailed, place

# Written last, before the folder gets its name.
MARKER = ".rankup-unpacked.json"


@dataclass(frozen=True)
class Archive:
    """A tar archive of the web.

    Attributes:
        folder: what it unpacks to, there and here.
        parts: folders that must be in it; a tar file that is cut short may not show otherwise.
    """

    url: str
    sha256: str
    folder: str
    parts: tuple[str, ...]


def fetch_archive(key: str, known: Archive, caches: Caches) -> tuple[Record, list[str]]:
    """Download and unpack; the archive does not stay, it would only be there twice.

    Raises:
        FetchFailed: it did not come, is no such archive, or holds what does not belong into one.
        OSError: the folder cannot be written to.
    """
    from .download import download  # httpx takes a tenth of a second

    folder = caches.own / "datasets" / known.folder
    if (found := _unpacked(folder, known)) is None:
        with lock.held(folder, say, doing="fetching") as held:
            if (found := _unpacked(folder, known)) is None:
                archive = place(known.url, caches.own / "files")
                download(known.url, archive, sha256=known.sha256, replace=True)
                found = _unpack(archive, folder, known, held)
                archive.unlink(missing_ok=True)
    files, size = found
    item = Item(known.folder, public(known.url), str(folder), size, files, known.sha256)
    return Record(key, items=(item,)), [f"in it: {', '.join(known.parts)}"]


def _unpacked(folder: Path, known: Archive) -> tuple[int, int] | None:
    """Return the numbers of files and bytes that lie there, where it is whole."""
    if not folder.exists():
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        note = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if note["sha256"] == known.sha256 and all((folder / one).is_dir() for one in known.parts):
            return note["files"], note["bytes"]
    raise FetchFailed(
        f"{folder} is there, and is not what rankup has unpacked; remove it, or move it away"
    )


def _unpack(archive: Path, folder: Path, known: Archive, held: lock.Held) -> tuple[int, int]:
    """Make `folder` from the folder of that name in a tar archive; return its files and bytes.

    What an interrupted one has left is thrown away: to go on from it would mean to read the archive
    from its beginning all the same.
    """
    part = folder.with_name(f"{folder.name}.part")
    if os.path.lexists(part):  # another user's can only be moved out of the way
        aside = part.with_name(f".{part.name}.{secrets.token_hex(4)}")
        part.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    part.mkdir(parents=True)
    files = size = 0
    try:
        with progress.shown(f"unpacking {archive.name}") as show:
            for count in _members(archive, folder.name, part):
                held.check()
                files, size = files + 1, size + count
                show(size, None)
        if lacking := [name for name in known.parts if not (part / name).is_dir()]:
            raise FetchFailed(
                f"{archive} holds no folder {folder.name}/{lacking[0]}; nothing is unpacked"
            )
        write_json(part / MARKER, {"sha256": known.sha256, "files": files, "bytes": size})
        held.check()
        part.rename(folder)
        fsync_directory(folder.parent)
    except (tarfile.TarError, EOFError) as error:
        raise FetchFailed(f"{archive} cannot be unpacked: {error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return files, size


def _members(archive: Path, top: str, into: Path) -> Iterator[int]:
    """Write each file below `top` into a folder; yield the bytes of each."""
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            outside = path.is_absolute() or ".." in path.parts
            # A link could lead the next file anywhere, a device is no data.
            if outside or not (member.isfile() or member.isdir()):
                why = "would land outside" if outside else "is no file or folder"
                raise FetchFailed(f"{archive}: {member.name!r} {why}; not unpacked")
            if path.parts[:1] != (top,):
                continue
            target = into.joinpath(*path.parts[1:])
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None  # it is a regular file
            with content, target.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            yield member.size

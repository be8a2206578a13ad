"""An archive becomes a folder, whole or not at all, and nothing lands outside of it."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...base import lock
from ...base.files import fsync_directory, write_json
from . import progress
from .result import FetchFailed

# Written last, before the folder gets its name.
MARKER = ".rankup-unpacked.json"


@dataclass(frozen=True)
class Unpacked:
    """What came out: regular files and their bytes."""

    files: int
    bytes: int


def unpack(
    archive: Path, folder: Path, parts: tuple[str, ...], held: lock.Held, sha256: str
) -> Unpacked:
    """Make `folder` from the folder of that name in a tar archive, while its lock is held.

    Args:
        parts: folders that must be in it; a tar file that is cut short may not show otherwise.
        sha256: of the archive, which has been checked; it is noted in the folder.

    What an interrupted one has left is thrown away: to go on from it would mean to read the archive
    from its beginning all the same.

    Raises:
        FetchFailed: it is no such archive, holds what does not belong into one, or the disk is
            full; nothing is left then.
        OSError: the folder cannot be written to.
    """
    part = folder.with_name(f"{folder.name}.part")
    _clear(part)
    part.mkdir(parents=True)
    files = size = 0
    try:
        with progress.shown(f"unpacking {archive.name}") as show:
            for count in _members(archive, folder.name, part):
                held.check()
                files, size = files + 1, size + count
                show(size, None)
        if lacking := [name for name in parts if not (part / name).is_dir()]:
            raise FetchFailed(
                f"{archive} holds no folder {folder.name}/{lacking[0]}; nothing is unpacked"
            )
        # Durable before the name is: a crash must not leave a whole folder of empty files.
        _sync_file_system(part)
        write_json(part / MARKER, {"sha256": sha256, "files": files, "bytes": size})
        held.check()
        part.rename(folder)
        fsync_directory(folder.parent)
    except (tarfile.TarError, EOFError) as error:
        raise FetchFailed(f"{archive} cannot be unpacked: {error}") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FetchFailed(
            f"no room in {folder.parent} after {files} files and {progress.size(size)} "
            f"({os.strerror(error.errno)}): free bytes or files, quotas count both; run it again"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Unpacked(files, size)


def _clear(part: Path) -> None:
    """Remove what an interrupted one has left; another user's folder is moved out of the way."""
    if not os.path.lexists(part):
        return
    aside = part.with_name(f".{part.name}.{secrets.token_hex(4)}")
    part.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _sync_file_system(path: Path) -> None:
    """Of this one alone: another one that hangs, as networks do, must not be waited for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)


def _members(archive: Path, top: str, into: Path) -> Iterator[int]:
    """Write each file below `top` into a folder; bytes of each."""
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise FetchFailed(f"{archive}: {member.name!r} would land outside; not unpacked")
            if not (member.isfile() or member.isdir()):
                # A link could lead the next file anywhere, a device is no data.
                raise FetchFailed(f"{archive}: {member.name!r} is no file or folder; not unpacked")
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

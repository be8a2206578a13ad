"""Where copies lie: one folder per user, in memory that all users of a node may write to."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import xxhash

from ...base.errors import UserError
from .. import spans

VARIABLE = "RANKUP_STAGE_DIR"
MEMORY = Path("/dev/shm")  # noqa: S108 - whose folder it is is looked at
_NAME = 48  # characters of the source's name that people find in the folder's


def home(environment: Mapping[str, str]) -> Path | None:
    """Where copies are looked for: `$RANKUP_STAGE_DIR`, else `/dev/shm`, else `$TMPDIR`."""
    named = environment.get(VARIABLE)
    if named:
        return Path(named)
    if MEMORY.is_dir():
        return MEMORY
    temporary = environment.get("TMPDIR")
    return Path(temporary) if temporary else None


def folder_of(base: Path) -> Path:
    """The folder of this user's copies below a place."""
    return base / f"rankup-{os.getuid()}"


def trusted(folder: Path) -> str:
    """Why what lies in a folder is not to be believed; empty where it is ours alone.

    Anybody may write to /dev/shm, and so may make a folder of this name before us.

    Raises:
        FileNotFoundError: there is none.
    """
    about = os.lstat(folder)
    if stat.S_ISLNK(about.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(about.st_mode):
        return "it is no folder"
    if about.st_uid != os.getuid():
        return f"it belongs to user {about.st_uid}"
    if about.st_mode & 0o077:
        return f"others may use it (mode {stat.S_IMODE(about.st_mode):o}, and not 700)"
    return ""


def ours(base: Path) -> Path:
    """The folder of this user's copies, made if it is not there, readable by this user alone.

    Raises:
        UserError: there is no place for it, or what is there is not ours.
    """
    folder = folder_of(base)
    try:
        if not base.is_dir():
            raise UserError(f"{base} is no folder; give one that is on this node for copies")
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        why = trusted(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made ({error.strerror}): choose another place with ${VARIABLE}"
        ) from None
    if why:
        theirs = os.lstat(folder).st_uid != os.getuid()
        cure = "Ask them to remove it" if theirs else "Remove it"
        raise UserError(
            f"{folder} is not safe to use: {why}. {cure}, or choose another place with ${VARIABLE}"
        )
    return folder


def local(base: Path) -> None:
    """Make sure that a place is on this node: a copy serves the processes of one.

    Raises:
        UserError: it is on a network file system.
    """
    kind = spans.network(base)
    if kind:
        raise UserError(
            f"{base} is on a network file system ({kind}), where a copy is no nearer than the "
            f"data itself: choose /dev/shm, or a disk of this node"
        )


def keyed(source: str | os.PathLike[str]) -> str:
    """The name of the folder for a source, from its real path: equal for all its names."""
    real = os.path.realpath(source)
    digest = xxhash.xxh3_128_hexdigest(real.encode("utf-8", "surrogateescape"))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(real)).lstrip(".")[:_NAME]
    return f"{name or 'data'}-{digest[:20]}"


def keys(root: Path) -> Iterator[Path]:
    """The folders of copies in one of ours, and links to such, by name."""
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return
    # Hidden are locks, and what is mounted (`mount`).
    yield from (root / name for name in names if not name.startswith("."))

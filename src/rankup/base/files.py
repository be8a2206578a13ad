"""Two ways to write a file so that a kill at any moment leaves the old one or the new one.

Small files go through a temporary name, fsync and rename (`write_atomic`). What is large is written
beside its place and counts only once its marker, itself written by `write_atomic`, is there.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import UserError


def user_path(text: str, option: str) -> Path:
    """A path that a user has written for `option`, with `~` expanded.

    Raises:
        UserError: it is empty, or no file system could hold it.
    """
    try:
        if not text:
            raise ValueError("it is empty")
        path = Path(text).expanduser()
        path.is_file()  # a null byte or a name of over 255 characters shows here
        os.lstat(path.parent)
    except FileNotFoundError:
        return path
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        shown = text if len(text) < 60 else f"{text[:57]}..."
        raise UserError(f"{option} {shown!r} is no usable path: {why}") from None
    return path


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace `path` by `data`: readers see the old content or the new, never a part.

    A `private` file is readable by its owner alone (mode 0600), from its first byte on.

    Raises:
        OSError: the file could not be written (disk full, no permission); `path` is unchanged.
    """
    with replacing(path, private=private) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A new file, also to be read, that replaces `path` at the end of the body.

    Raises:
        OSError: it could not be written; `path` is unchanged, also where the body raises.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        mode = 0o600 if private else 0o666
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def open_regular(path: Path) -> BinaryIO:
    """A file to be read, opened without waiting: a pipe in its place would never answer.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path.name} is not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def tail(path: Path, most: int) -> list[bytes]:
    """Return the last lines of a file, of at most so many bytes; none where it is not there."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            lines = file.read(most).split(b"\n")
    except OSError:
        return []
    return lines[1:] if size > most else lines


def pwrite_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at an offset; the system may take it in parts (2 GiB at most).

    Args:
        data: of bytes, where it is a memoryview.
    """
    done = 0
    view = memoryview(data)
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def no_space(error: OSError) -> bool:
    """Return True for an error that says there is no space, or no more of it for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """`write_atomic` of a JSON document."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # What is no UTF-8 in the name of a file becomes an escape of JSON.
    write_atomic(path, text.encode(errors="backslashreplace"), private=private)


def fsync_directory(path: Path) -> None:
    """Make renames inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cut_json_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Keep the lines of a JSON-lines file for which `keep` holds; the rest goes.

    Return how many lines went because they are unreadable, not counting an end without a newline,
    which a killed writer leaves. A missing file stays missing.
    """
    if not path.exists():
        return 0
    kept: list[bytes] = []
    unreadable = 0
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not line.endswith(b"\n"):
                break
            if not isinstance(record, dict):
                unreadable += 1
            elif keep(record):
                kept.append(line)
    write_atomic(path, b"".join(kept))
    return unreadable


def done_by(record: dict[str, Any], step: int) -> bool:
    """Return True for a line of a run's record that belongs to a step up to `step`."""
    number = record.get("step", record.get("checkpoint", 0))
    return isinstance(number, int) and number <= step and not record.get("final")

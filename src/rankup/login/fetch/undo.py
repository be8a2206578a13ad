"""Puts a script's files back, step by step, whatever of it was done before."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from .outputs import Undo


@dataclass(frozen=True)
class Undone:
    """What has been done, in the order it was, and what could not be, in words.

    Attributes:
        joined: new files that are now in an old folder that came back.
    """

    done: tuple[Undo, ...] = ()
    problems: tuple[str, ...] = ()
    joined: frozenset[str] = frozenset()

    @property
    def removed(self) -> frozenset[str]:
        """Paths that were removed."""
        return frozenset(one.path for one in self.done if one.how in ("removed", "again"))

    @property
    def restored(self) -> frozenset[str]:
        """Paths of what was there before, and is again."""
        back = ("put back", "copied back", "renamed", "cut back", "handed")
        return frozenset(one.path for one in self.done if one.how in back)


def undo(plan: Iterable[Undo]) -> Undone:
    """Do it; what a fetch that was killed has done of it already is passed over."""
    done: list[Undo] = []
    problems: list[str] = []
    joined: set[str] = set()
    for one in plan:
        try:
            if _do(one, joined):
                done.append(one)
        except OSError as error:  # noqa: PERF203 - one that fails does not keep the others
            kept = f"; the old one is {one.backup}" if one.backup else ""
            problems.append(f"{one.path} could not be {one.how}: {error.strerror}{kept}")
    return Undone(tuple(done), tuple(problems), frozenset(filter(os.path.lexists, joined)))


def _do(one: Undo, joined: set[str]) -> bool:
    if one.how == "gone":
        return not os.path.lexists(one.path)
    if not os.path.lexists(one.backup or one.path):
        return False
    if one.how == "handed" and _same_file(one.path, one.backup):
        os.unlink(one.backup)
        return False
    if one.how == "lost":
        return os.stat(one.path).st_mtime_ns != one.changed
    if one.how == "mode":
        return _set_mode(one)
    if one.how in ("put back", "renamed") and _is_folder(one.path) and _is_folder(one.backup):
        joined.update(_put_back_folder(one))
    elif one.how == "copied back" and _same_content(one.path, one.backup):
        os.unlink(one.backup)
        return False
    elif one.how in ("put back", "copied back", "renamed", "handed"):
        os.replace(one.backup, one.path)
        # Two names of one file: the script was killed before it replaced the file.
        if os.path.lexists(one.backup):
            os.unlink(one.backup)
    elif one.how == "cut back":
        found = os.stat(one.path)
        if found.st_size <= one.number:
            return False
        os.truncate(one.path, one.number)
        os.utime(one.path, ns=(found.st_atime_ns, one.changed or found.st_mtime_ns))
    elif one.how == "emptied":
        # What is not empty stays, and so does what has become a file or a link.
        with suppress(OSError):
            os.rmdir(one.path)
            return True
        return False
    else:
        _remove(one.backup or one.path)
    return one.how != "forget"


def _set_mode(one: Undo) -> bool:
    if stat.S_IMODE(os.stat(one.path).st_mode) == one.number:
        return False
    os.chmod(one.path, one.number)
    return True


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _same_file(one: str, other: str) -> bool:
    return os.path.lexists(one) and os.path.samestat(os.lstat(one), os.lstat(other))


def _same_content(one: str, other: str) -> bool:
    return os.path.isfile(one) and filecmp.cmp(one, other, shallow=False)


def _put_back_folder(one: Undo) -> set[str]:
    """Put back a folder that the script has made anew: what it has put there joins the old files.

    Of two files with the same name the old one is kept.

    Returns:
        The files that joined.
    """
    joined = set()
    for root, _, names in os.walk(one.path):
        for name in names:
            new = os.path.join(root, name)
            old = os.path.join(one.backup, os.path.relpath(new, one.path))
            if not os.path.lexists(old):
                os.makedirs(os.path.dirname(old), exist_ok=True)
                os.replace(new, old)
                joined.add(new)
    shutil.rmtree(one.path)
    os.replace(one.backup, one.path)
    return joined


def _remove(path: str) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)

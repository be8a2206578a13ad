"""SquashFS images as folders: mounted by a program of FUSE, for a job or for this process.

A job's mounts lie in its folder, so that the table of mounts says whose each of them is. Jobs share
none: one through FUSE is a process, which ends with the job that started it. An image of others is
mounted for the process that reads it, and is a folder of files then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...base.errors import RunFailed, UserError
from ...base.text import say
from ...site import mounts
from .. import indexes
from ..containers.detect import is_squashfs
from ..errors import BadContainer
from . import place

_SECONDS = 60.0  # for a tool that mounts or unmounts: a disk that does not answer
_PACKAGES = (
    "install squashfuse and fuse3 (Debian, Ubuntu: `apt install squashfuse fuse3`; Fedora, EPEL: "
    "`dnf install squashfuse fuse3`; without root: `conda install -c conda-forge squashfuse`)"
)
_FUSE = ("squashfuse_ll", "squashfuse")
# Ends with the last process that has the other end of its stdin, also where that was killed.
_GUARD = (
    'exec 3<&0; (read _ <&3; fusermount3 -u "$0" || fusermount -u "$0" || umount "$0"; '
    'rmdir "$0" "${0%/*}") >/dev/null 2>&1 &'
)


class _Mount(NamedTuple):
    """The folder of a mount, and the end of a pipe that closes with the process."""

    point: Path
    watched: int


# Of this process and those forked from it: an image is mounted once.
_MOUNTS: dict[Path, _Mount] = {}


def files_of(path: Path) -> Path:
    """Return the folder in which the files of an image of others are seen; else the path itself.

    It is mounted until the process ends, and those forked from it.

    Raises:
        UserError: it cannot be mounted here.
        BadContainer: it is damaged.
    """
    if not path.is_file() or indexes.place(path).is_file() or not is_squashfs(path):
        return path
    image = path.resolve()
    if image not in _MOUNTS:
        _MOUNTS[image] = _for_process(image)
    return _MOUNTS[image].point


def _for_process(image: Path) -> _Mount:
    # Of the image's name, since people see it.
    point = Path(tempfile.mkdtemp(prefix="rankup-mount-")).resolve() / image.name
    point.mkdir()
    try:
        unpack = f"or unpack it once, `unsquashfs -d FOLDER {image}`, and take FOLDER"
        _mounted(image, point, unpack)
    except (UserError, RunFailed) as error:
        point.rmdir()
        point.parent.rmdir()
        if isinstance(error, UserError):
            raise
        raise BadContainer(f"{image} is damaged, or this node cannot mount it: {error}") from None
    reading, watched = os.pipe()
    subprocess.run(
        ["/bin/sh", "-c", _GUARD, str(point)], stdin=reading, start_new_session=True, check=True
    )
    os.close(reading)
    return _Mount(point, watched)


def release() -> None:
    """Unmount the images that this process has mounted by `files_of`, as its end does."""
    while _MOUNTS:
        _, mount = _MOUNTS.popitem()
        os.close(mount.watched)
        until = time.monotonic() + _SECONDS
        # Unless a forked process still has the pipe, the shell at its other end goes on now.
        while mount.point.parent.exists() and time.monotonic() < until:
            time.sleep(0.01)


def mount(
    image: str | os.PathLike[str],
    *,
    to: Path | None = None,
    job: str | None = None,
    say: Callable[[str], None] = say,
) -> Path:
    """Mount a SquashFS image on this node, for one job; what that has mounted before is found.

    By `squashfuse_ll`, else by `squashfuse`. The staged copy of the image is taken where there is
    one. It stays until `release`.

    Args:
        to: see `staging.stage`.
        job: see `staging.stage`.
        say: gets a line about how it was mounted.

    Returns:
        The folder in which its files are seen.

    Raises:
        UserError: there is no such image, nothing here can mount one, or there is no place.
        RunFailed: what can mount it did not.
    """
    source = Path(os.path.realpath(image))
    try:
        if not is_squashfs(source):
            raise UserError(
                f"{image} is no SquashFS image, and nothing else can be mounted: `rankup pack "
                f"SOURCE NAME.sqsh` makes one; `rankup stage` without --mount copies any pack"
            )
    except OSError as error:
        raise UserError(f"{image} cannot be mounted: {error.strerror}") from None
    bases = place.bases(os.environ) if to is None else [to]
    if not bases:
        raise UserError(f"there is no place for mounts on this node: set ${place.VARIABLE}")
    root = place.ours(bases[0])
    job = place.current(os.environ) if job is None else job
    point = root / job / place.MOUNTS / place.keyed(source)
    copy = place.copy_of(source, os.environ)
    lower = copy.root if copy is not None else source
    with place.alone(root, say):
        if str(point) in _points():
            if _answers(point):
                return point
            _unmount(point)  # the process of FUSE is gone
        point.mkdir(0o700, parents=True, exist_ok=True)
        try:
            tool = _mounted(lower, point, "or leave --mount away, which copies the image")
        except BaseException:
            unmount_all(root / job)
            raise
    of = "its staged copy" if lower != source else "where it lies"
    say(
        f"{source} is mounted at {point} by {tool}, {of}; through FUSE, which costs CPU time that "
        f"loading lacks"
    )
    return point


def below(folder: Path) -> list[Path]:
    """Return where in a folder something is mounted, sorted."""
    return sorted(Path(point) for point in _points() if point.startswith(f"{folder}/"))


def unmount_all(folder: Path) -> list[str]:
    """Unmount what is mounted below a job's folder, at the latest when its last reader is gone.

    Returns:
        What was done, line by line.
    """
    done = [_unmount(point) for point in below(folder)]
    for path in sorted((folder / place.MOUNTS).glob("*")):
        with suppress(OSError):  # it is still mounted
            path.rmdir()
    for path in (folder / place.MOUNTS, folder):
        with suppress(OSError):  # others are there
            path.rmdir()
    return done


def _mounted(image: Path, point: Path, instead: str) -> str:
    """Mount it by the first tool that can, and return its name.

    Args:
        instead: what can be done where nothing mounts it.

    Raises:
        UserError: nothing here can.
        RunFailed: what can did not.
    """
    found = [name for name in _FUSE if shutil.which(name)]
    lacks = "" if found else f"squashfuse is not installed here; {_PACKAGES}"
    if found and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lacks = "/dev/fuse is not there, or not for you; ask the site for FUSE on compute nodes"
    if lacks:
        raise UserError(f"{image} is a SquashFS image that cannot be mounted: {lacks}, {instead}")
    why = []
    for name in found:
        said = _run(name, "-o", "ro,nosuid,nodev", str(image), str(point))
        if not said and _answers(point):
            return name
        why.append(f"{name}: {said or 'nothing was mounted'}")
        _unmount(point)
    if not shutil.which("fusermount3"):
        why.append("fusermount3 is missing, which is of the package fuse3")
    raise RunFailed(f"{image} could not be mounted at {point} ({'; '.join(why)})")


def _run(*command: str) -> str:
    """Run a tool; return what it said where it failed, else nothing."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            # The process of FUSE lives on, and must not keep the caller's pipes open.
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_SECONDS:g} s"
    except OSError as error:
        return str(error.strerror)
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else f"exit code {done.returncode}"


def _answers(point: Path) -> bool:
    try:
        return str(point) in _points() and os.statvfs(point).f_files >= 0
    except OSError:  # the process of FUSE is gone
        return False


def _points() -> set[str]:
    return {one.point for one in mounts.table()}


def _unmount(point: Path) -> str:
    """Unmount it, at the latest when the last process has left it; return a line about it."""
    if str(point) not in _points():
        return f"{point} is not mounted any more"
    ways = [[name, "-u"] for name in ("fusermount3", "fusermount") if shutil.which(name)]
    lazily = [[*words, "-z"] for words in ways]
    if os.geteuid() == 0:
        ways, lazily = [["umount"], *ways], [["umount", "-l"], *lazily]
    why = ""
    for words in (*ways, *lazily):
        why = _run(*words, str(point)) or why
        if str(point) not in _points():
            return f"{point} is unmounted"
    return f"{point} could not be unmounted: {why or 'fusermount3 is missing'}"

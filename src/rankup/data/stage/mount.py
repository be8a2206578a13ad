"""SquashFS images as folders: mounted for a job, by a program of FUSE.

They lie in the job's folder, so that the table of mounts says whose each of them is. Jobs share no
mount: one through FUSE is a process, which ends with the job that started it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...base.errors import RunFailed, UserError
from ...base.text import say
from ...site import mounts
from ..containers.detect import is_squashfs
from . import find, place

_SECONDS = 60.0  # for a tool that mounts or unmounts: a disk that does not answer
_PACKAGES = (
    "install squashfuse and fuse3 (Debian, Ubuntu: `apt install squashfuse fuse3`; Fedora, EPEL: "
    "`dnf install squashfuse fuse3`; without root: `conda install -c conda-forge squashfuse`)"
)
_FUSE = ("squashfuse_ll", "squashfuse")


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
    copy = find.copy_of(source, os.environ)
    lower = copy.root if copy is not None else source
    with place.alone(root, say):
        if str(point) in _points():
            if _answers(point):
                return point
            _unmount(point)  # the process of FUSE is gone
        point.mkdir(0o700, parents=True, exist_ok=True)
        try:
            tool = _mounted(lower, point)
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


def _mounted(image: Path, point: Path) -> str:
    """Mount it by the first tool that can, and return its name.

    Raises:
        UserError: nothing here can.
        RunFailed: what can did not.
    """
    found = [name for name in _FUSE if shutil.which(name)]
    lacks = "" if found else f"squashfuse is not installed here; {_PACKAGES}"
    if found and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lacks = "/dev/fuse is not there, or not for you; ask the site for FUSE on compute nodes"
    if lacks:
        raise UserError(
            f"{image} cannot be mounted: {lacks}, or leave --mount away: rankup reads an image "
            f"without mounting it"
        )
    why = []
    for name in found:
        said = _run(name, "-o", "ro,nosuid,nodev", str(image), str(point))
        if not said and _answers(point):
            return name
        why.append(f"{name}: {said or 'nothing was mounted'}")
        _unmount(point)
    raise RunFailed(
        f"{image} could not be mounted at {point} ({'; '.join(why)}). Where fusermount3 is "
        f"missing, {_PACKAGES}"
    )


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

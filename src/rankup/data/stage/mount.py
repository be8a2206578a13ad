"""SquashFS images as folders: a mount for each job, which goes when the job does.

    <home>/rankup-<uid>/.mounts/NAME-<job>          the folder, where none was named
    <home>/rankup-<uid>/.mounts/NAME-<job>.json     whose it is, which image, how it was mounted

Jobs share no mount: one through FUSE is a process, which ends with the job that started it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from ...base import lock
from ...base.errors import UserError
from ...base.files import write_json
from ...base.text import say
from ..containers.detect import is_squashfs
from . import find, mounting, place, users
from .users import Alive, Job

FOLDER = ".mounts"


@dataclass(frozen=True)
class Mounted:
    """A mounted image.

    Attributes:
        image: what is mounted, the staged copy of it where there is one.
        source: the image as it was named, its real path.
        point: the folder in which its files are seen.
        tool: `kernel`, `squashfuse_ll` or `squashfuse`.
        made: whether the folder was made for it, and so goes with it.
        job: whose it is.
    """

    image: Path
    source: Path
    point: Path
    tool: str
    made: bool
    job: Job


def mount(
    image: str | os.PathLike[str],
    *,
    where: str | os.PathLike[str] | None = None,
    job: Job | None = None,
    say: Callable[[str], None] = say,
) -> Mounted:
    """Mount a SquashFS image on this node, for one job; what that has mounted before is found.

    By the kernel where root asks, else by `squashfuse_ll`, else by `squashfuse`. The staged copy of
    the image is taken where there is one. It stays until `release`.

    Args:
        where: an empty folder, made if it is not there; by default one beside the copies.
        job: by default the job of Slurm, else this process.
        say: gets a line about how it was mounted.

    Raises:
        UserError: there is no such image, nothing here can mount one, or the folder is not empty.
        RunFailed: what can mount it did not.
    """
    source = _image(image)
    job = users.current(os.environ) if job is None else job
    records = _records_folder(make=True)
    assert records is not None
    named = None if where is None else Path(where).absolute()
    entry = records / f"{_key(source, named)}-{job.name}"
    record = records / f"{entry.name}.json"
    with lock.held(entry, say, doing="mounting"):
        there = _read(record)
        if there is not None and mounting.answers(there.point):
            return there
        if there is not None:
            _undo(there, record)
        copy = find.copy_of(source, os.environ)
        lower = copy.root if copy is not None and copy.whole else source
        point = named or entry
        made = _empty_folder(point)
        mounted = Mounted(lower, source, point, "", made, job)
        # Written before: whoever is killed in between leaves a mount that is found.
        _write(record, mounted)
        try:
            tool = mounting.mount(lower, point)
        except BaseException:
            _undo(mounted, record)
            raise
        mounted = Mounted(lower, source, point, tool, made, job)
        _write(record, mounted)
    cost = (
        "" if tool == "kernel" else "; through FUSE, which costs CPU time that loading then lacks"
    )
    of = "its staged copy" if lower != source else "where it lies"
    say(f"{source} is mounted at {point} by {'the ' if tool == 'kernel' else ''}{tool}, {of}{cost}")
    return mounted


def release(job: Job | None = None) -> list[str]:
    """Unmount all that a job has mounted on this node.

    Args:
        job: by default the job of Slurm, else this process.

    Returns:
        What was done, line by line.
    """
    name = (users.current(os.environ) if job is None else job).name
    return [_undo(one, record) for record, one in _all() if one.job.name == name]


def clean(alive: Alive = users.unknown) -> list[str]:
    """Unmount what dead jobs and processes have left, also where the process of FUSE is gone.

    Args:
        alive: tells whether a job of Slurm lives.

    Returns:
        What was done, line by line.
    """
    done = [
        _undo(one, record)
        for record, one in _all()
        if users.over(one.job, alive) or mounting.cut_off(one.point)
    ]
    folder = _records_folder()
    points = mounting.below(folder) if folder is not None else []
    known = {str(one.point) for _, one in _all()}  # asked last: a record is written before
    for point in points:
        if point not in known:
            done.append(f"{mounting.unmount(Path(point))}: nothing says whose it was")
            with suppress(OSError):
                Path(point).rmdir()
    return done


def listed() -> list[str]:
    """What this user has mounted on this node, line by line."""
    points = mounting.points()
    return [
        f"{one.source}: mounted at {one.point} by {one.tool or 'nobody yet'}, "
        f"used by {users.shown(one.job)}{'' if str(one.point) in points else ', and gone'}"
        for _, one in _all()
    ]


def _image(image: str | os.PathLike[str]) -> Path:
    source = Path(os.path.realpath(image))
    try:
        right = is_squashfs(source)
    except OSError as error:
        raise UserError(f"{image} cannot be mounted: {error.strerror}") from None
    if not right:
        raise UserError(
            f"{image} is no SquashFS image, and nothing else can be mounted: `rankup pack "
            f"SOURCE NAME.sqsh` makes one; `rankup stage` without --mount copies any pack"
        )
    return source


def _key(source: Path, point: Path | None) -> str:
    return place.keyed(source) + (
        "" if point is None else f"-{xxhash.xxh3_64_hexdigest(bytes(point))[:8]}"
    )


def _records_folder(make: bool = False) -> Path | None:
    """The folder of records, ours alone; None where there is none."""
    home = place.home(os.environ)
    if home is None:
        if make:
            raise UserError(f"there is no place for mounts on this node: set ${place.VARIABLE}")
        return None
    if make:
        folder = place.ours(home) / FOLDER
        folder.mkdir(0o700, exist_ok=True)
        return folder
    root = place.folder_of(home)
    try:
        return None if place.trusted(root) else root / FOLDER
    except OSError:
        return None


def _all() -> Iterator[tuple[Path, Mounted]]:
    folder = _records_folder()
    for record in sorted(folder.glob("*.json")) if folder is not None else ():
        one = _read(record)
        if one is not None:
            yield record, one


def _write(record: Path, mounted: Mounted) -> None:
    values = asdict(mounted)
    paths = {name: str(values[name]) for name in ("image", "source", "point")}
    write_json(record, {**values, **paths}, private=True)


def _read(record: Path) -> Mounted | None:
    try:
        text: Mapping[str, Any] = json.loads(record.read_bytes())
        job = users.parsed(text["job"])
        if job is None:
            return None
        image, source, point = (Path(str(text[name])) for name in ("image", "source", "point"))
        return Mounted(image, source, point, str(text["tool"]), bool(text["made"]), job)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _empty_folder(point: Path) -> bool:
    """Make the folder to mount at; whether it was not there.

    Raises:
        UserError: it is something else, not empty, or cannot be made.
    """
    try:
        point.mkdir(0o700, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(f"{point} cannot be made to mount at: {error.strerror}") from None
    else:
        return True
    try:
        if not stat.S_ISDIR(os.lstat(point).st_mode) or os.listdir(point):
            raise UserError(f"{point} is not an empty folder; name one with --to DIR")
    except OSError as error:
        raise UserError(f"{point} cannot be mounted at: {error.strerror}") from None
    return False


def _undo(mounted: Mounted, record: Path) -> str:
    """Unmount, and remove what was made for it; a line about it."""
    line = mounting.unmount(mounted.point)
    if mounted.made:
        with suppress(OSError):
            mounted.point.rmdir()
    if str(mounted.point) not in mounting.points():  # else `--clean` has to find it again
        record.unlink(missing_ok=True)
    return line

"""What a run stages: checked where it is asked for, done here by a run on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..base.amounts import bytes_of, size
from ..base.errors import UserError
from ..base.files import user_path
from ..base.signals import ended_as_an_exception, ignore
from ..site.rundir import Job

OPTIONS = ("--stage", "--stage-to", "--stage-reserve", "--stage-broadcast", "--mount")
_MOST_FILES = 20_000  # of a folder that are looked at; with more it is no pack


@dataclass(frozen=True)
class Staging:
    """What is to lie in the memory of each node before the ranks start.

    Attributes:
        files: containers, by absolute path once `checked`.
        folder: on each node, where the copies go; None for its memory.
        broadcast: they are read once for all nodes.
        mounts: SquashFS images to mount.
        reserve: memory that is kept for the processes of the run, as people write sizes; None
            leaves it to `rankup stage`.
    """

    files: tuple[str, ...] = ()
    folder: str | None = None
    broadcast: bool = False
    mounts: tuple[str, ...] = ()
    reserve: str | None = None

    def __bool__(self) -> bool:
        return bool(self.files or self.mounts)

    def over(self, before: Mapping[str, Any]) -> Staging:
        """This, and where nothing was said what `said` said when the run was started."""
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in before.items()}
        known = {name: value for name, value in values.items() if name in asdict(self)}
        new = {name: value for name, value in asdict(self).items() if value not in ((), None)}
        if not self.broadcast:
            new.pop("broadcast")
        return Staging(**{**known, **new})

    def said(self) -> dict[str, Any]:
        """What was said, for `job.json`."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in ((), None, False)
        }

    def words(self) -> tuple[str, ...]:
        """Options of `rankup stage`."""
        found = [] if self.reserve is None else ["--reserve", self.reserve]
        return (*found, *(["--broadcast"] if self.broadcast else []))

    def lines(self) -> Iterator[str]:
        """The commands that do the same."""
        to = [] if self.folder is None else ["--to", self.folder]
        if self.files:
            yield shlex.join(["rankup", "stage", *self.words(), *to, "--", *self.files])
        if self.mounts:
            yield shlex.join(["rankup", "stage", "--mount", "--", *self.mounts])


def before(job: Job | None) -> Mapping[str, Any]:
    """What `job.json` says that a run stages."""
    found = job.launch.get("staging") if job is not None else None
    return found if isinstance(found, dict) else {}


def recorded(staging: Staging) -> dict[str, Any]:
    """What `before` finds again, to be put into `Job.launch`."""
    return {"staging": staging.said()} if staging else {}


def checked(staging: Staging, folder: Path) -> Staging:
    """It with absolute paths, those of `folder` being relative to it.

    Raises:
        UserError: something is not there or cannot be read, or options do not fit together.
    """
    if not staging.files:
        left = {
            "--stage-to": staging.folder is not None and not staging.mounts,
            "--stage-reserve": staging.reserve is not None,
            "--stage-broadcast": staging.broadcast,
        }
        for option, given in left.items():
            if given:
                raise UserError(f"{option} says how to stage, and nothing is: add --stage FILE")
    _reserve(staging)
    if staging.folder is not None and not Path(staging.folder).is_absolute():
        raise UserError(
            f"--stage-to {staging.folder}: give an absolute path; each node has its own folder"
        )
    return replace(
        staging,
        files=tuple(_present("--stage", name, folder) for name in staging.files),
        mounts=tuple(_present("--mount", name, folder) for name in staging.mounts),
    )


def _reserve(staging: Staging) -> int | None:
    """Bytes."""
    if staging.reserve is None:
        return None
    return bytes_of(staging.reserve, "--stage-reserve")


def _present(option: str, name: str, folder: Path) -> str:
    path = folder / user_path(name, option)
    if not path.exists():
        raise UserError(f"{option} {name}: {path} does not exist")
    if not os.access(path, os.R_OK):
        raise UserError(f"{option} {name}: {path} cannot be read by you")
    if option == "--mount" and not _is_squashfs(path):
        raise UserError(
            f"--mount {name} is no SquashFS image, and nothing else can be mounted; make one with "
            f"`rankup pack SOURCE NAME.sqsh`, or give it to --stage"
        )
    return os.path.abspath(path)


def _is_squashfs(path: Path) -> bool:
    from ..data.containers.detect import is_squashfs

    return path.is_file() and is_squashfs(path)


def require_room(staging: Staging, memory_gib: int | None, where: str) -> None:
    """Refuse on the login node what cannot fit into a node's memory, whatever else lies there.

    Args:
        memory_gib: of a node; None or 0 where it is not known. What is free there, and what the
            ranks need, only the node knows: `rankup stage` looks before it copies.

    Raises:
        UserError: with the numbers.
    """
    if not memory_gib or staging.folder is not None:
        return
    sizes = {name: _size(Path(name)) for name in staging.files}
    needed = sum(sizes.values())
    memory = memory_gib << 30
    if needed <= memory:
        return
    raise UserError(
        f"--stage {' '.join(sizes)}: {size(needed)} do not fit into the memory of {where}, which "
        f"is {size(memory)}. Name a folder on the nodes' own disks with --stage-to, or leave "
        "--stage away: it is then read from where it lies"
    )


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    total = seen = 0
    for folder, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(folder, name)).st_size
            seen += 1
            if seen > _MOST_FILES:  # `rankup stage` will say that this wants to be packed
                return total
    return total


@contextmanager
def staged(staging: Staging) -> Iterator[dict[str, str]]:
    """Stage and mount here while the body runs; what the ranks need in their environment.

    Raises:
        UserError: it does not fit, or cannot be read or mounted; nothing is left behind.
    """
    if not staging:
        yield {}
        return
    from ..data.stage import mount, place
    from ..data.stage import staging as copies

    if staging.broadcast:
        print("note: one machine has nobody to broadcast to; it reads all itself", file=sys.stderr)
    # Not the job's: of that there may be other runs, which need what they have staged.
    variables = {place.JOB: place.of_process(os.getpid())}
    if staging.folder is not None:
        variables[place.VARIABLE] = staging.folder
    with _environment(variables), ended_as_an_exception():
        try:
            for name in staging.files:
                copies.stage(name, reserve=_reserve(staging), prefix="--stage-")
            points = [str(mount.mount(name)) for name in staging.mounts]
            yield {**variables, **({"RANKUP_MOUNTS": os.pathsep.join(points)} if points else {})}
        finally:
            try:
                ignore()
            finally:
                for line in copies.release():
                    print(line, file=sys.stderr)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

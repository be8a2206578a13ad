"""Staging of a run: checked where it is asked for, done here by a run on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..base.amounts import bytes_of, size
from ..base.errors import UserError
from ..base.files import user_path
from ..base.processes import ended_as_an_exception, ignore
from ..site.jobspec import JobSpec

_MOST_FILES = 20_000  # of a folder that are looked at; with more it is no pack


def words(spec: JobSpec) -> tuple[str, ...]:
    """Options of `rankup stage`."""
    found = [] if spec.stage_reserve is None else ["--reserve", spec.stage_reserve]
    return (*found, *(["--sent"] if spec.stage_broadcast else []))


def lines(spec: JobSpec) -> Iterator[str]:
    """The commands that do the same."""
    to = [] if spec.stage_to is None else ["--to", spec.stage_to]
    if spec.stage:
        yield shlex.join(["rankup", "stage", *words(spec), *to, "--", *spec.stage])
    if spec.mount:
        yield shlex.join(["rankup", "stage", "--mount", "--", *spec.mount])


def checked(spec: JobSpec, folder: Path) -> JobSpec:
    """It with absolute paths, those of `folder` being relative to it.

    Raises:
        UserError: something is not there or cannot be read, or options do not fit together.
    """
    if not spec.stage:
        left = {
            "--stage-to": spec.stage_to is not None and not spec.mount,
            "--stage-reserve": spec.stage_reserve is not None,
            "--stage-broadcast": spec.stage_broadcast,
        }
        for option, given in left.items():
            if given:
                raise UserError(f"{option} says how to stage, and nothing is: add --stage FILE")
    _reserve(spec)
    if spec.stage_to is not None and not Path(spec.stage_to).is_absolute():
        raise UserError(
            f"--stage-to {spec.stage_to}: give an absolute path; each node has its own folder"
        )
    return replace(
        spec,
        stage=tuple(_present("--stage", name, folder) for name in spec.stage),
        mount=tuple(_present("--mount", name, folder) for name in spec.mount),
    )


def _reserve(spec: JobSpec) -> int | None:
    """Bytes."""
    if spec.stage_reserve is None:
        return None
    return bytes_of(spec.stage_reserve, "--stage-reserve")


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


def require_room(spec: JobSpec, memory_gib: int | None, where: str) -> None:
    """Refuse on the login node what cannot fit into a node's memory, whatever else lies there.

    Args:
        memory_gib: of a node; None or 0 where it is not known. What is free there, and what the
            ranks need, only the node knows: `rankup stage` looks before it copies.

    Raises:
        UserError: with the numbers.
    """
    if not memory_gib or spec.stage_to is not None:
        return
    sizes = {name: _size(Path(name)) for name in spec.stage}
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
def staged(spec: JobSpec) -> Iterator[dict[str, str]]:
    """Stage and mount here while the body runs; what the ranks need in their environment.

    Raises:
        UserError: it does not fit, or cannot be read or mounted; nothing is left behind.
    """
    if not (spec.stage or spec.mount):
        yield {}
        return
    from ..data.stage import mount, place
    from ..data.stage import staging as copies

    if spec.stage_broadcast:
        print("note: one machine has nobody to broadcast to; it reads all itself", file=sys.stderr)
    # Not the job's: of that there may be other runs, which need what they have staged.
    variables = {place.JOB: place.of_run()}
    if spec.stage_to is not None:
        variables[place.VARIABLE] = spec.stage_to
    with _environment(variables), ended_as_an_exception():
        try:
            for name in spec.stage:
                copies.stage(name, reserve=_reserve(spec), prefix="--stage-")
            points = [str(mount.mount(name)) for name in spec.mount]
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

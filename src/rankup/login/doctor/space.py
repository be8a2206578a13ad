"""Folders that matter: the room left on them and in shared memory, and whether nodes see them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.amounts import number, size
from ...base.findings import Finding, Level
from ...site import places
from ...site.caches import Caches
from ...site.config import Config
from ...site.profile import Profile
from . import codes

HOME = "$HOME"
# A job writes here: full is an error. The other folders are only read, as far as is known.
_WRITTEN = (HOME, "scratch", "runs", "caches", "this folder")
_FULL = 10 * 10**6  # bytes; with less left, not even a job's log is certain
_LOW = 50 * 10**9
_LOW_FILES = 10_000
_LOW_PART = 0.05
# Every node has its own.
_LOCAL_TO_A_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - only compared

# Data-loader workers hand over batches through it.
_SHARED = Path("/dev/shm")  # noqa: S108 - its size is asked, nothing is written
_LITTLE_SHARED = 10**9


@dataclass(frozen=True)
class Folder:
    """A folder that matters.

    Attributes:
        name: what a user calls it.
        made: it is made when needed; until then its nearest parent counts.
    """

    name: str
    path: Path
    made: bool = False


@dataclass(frozen=True)
class Space:
    """What is left on the file system of a folder; bytes and files.

    Attributes:
        names: of all folders that lie on it.
        free, files_free: for this user, without what is kept for root; quotas are not in it, but
            where the file system itself counts them in.
        files: 0 where it does not say.
        problem: why nothing can be said, else empty.
    """

    names: tuple[str, ...]
    path: Path
    total: int = 0
    free: int = 0
    files: int = 0
    files_free: int = 0
    read_only: bool = False
    problem: str = ""


def folders(
    config: Config, profile: Profile, caches: Caches, environment: Mapping[str, str], here: Path
) -> list[Folder]:
    """The folders that matter, home first; one path may have several names."""
    account = config.job.get("account")
    found = [Folder(HOME, Path.home())]
    for name, templates in (
        ("project", profile.project),
        ("scratch", profile.scratch),
        ("data", profile.data),
    ):
        path = places.folder(templates, environment, account)
        if path is not None:
            found.append(Folder(name, path))
    found.append(Folder("runs", _runs(config, profile, environment), made=True))
    found.append(Folder("caches", caches.own, made=True))
    found.append(Folder("this folder", here))
    return found


def measure(folder: Folder) -> Space:
    """Ask the file system of a folder."""
    path = folder.path
    try:
        while folder.made and not path.exists() and path != path.parent:
            path = path.parent
        said = os.statvfs(path)
    except OSError as error:
        return Space((folder.name,), folder.path, problem=error.strerror or str(error))
    return Space(
        names=(folder.name,),
        path=path,
        total=said.f_blocks * said.f_frsize,
        free=said.f_bavail * said.f_frsize,
        files=said.f_files,
        files_free=said.f_favail,
        read_only=bool(said.f_flag & os.ST_RDONLY),
    )


def grouped(spaces: Iterable[Space]) -> list[Space]:
    """One entry for folders whose file system says the same of itself."""
    found: dict[tuple[object, ...], Space] = {}
    for one in spaces:
        # What is free moves while the folders are asked one after the other.
        key = (one.problem, one.total, one.files, one.read_only, one.path if one.problem else "")
        first = found.get(key)
        found[key] = one if first is None else replace(first, names=(*first.names, *one.names))
    return list(found.values())


def check_project(
    profile: Profile, environment: Mapping[str, str], account: str | None
) -> list[Finding]:
    """Whether the folders that the site gives a project can be known here."""
    if profile.name in ("local", "generic"):
        return []
    known = {"project": profile.project, "scratch": profile.scratch}
    missing = [
        name
        for name, templates in known.items()
        if templates and places.folder(templates, environment, account) is None
    ]
    if not missing:
        return []
    todo = 'in rankup.toml: [job] account = "PROJECT"'
    if profile.jutil:
        todo = "`jutil env activate -p PROJECT`; `jutil user projects` lists yours"
    message = (
        f"your {' and '.join(missing)} folder: not known, so caches and runs stay where they are"
    )
    return [Finding(codes.PROJECT_FOLDERS, "warning", "folders", message, todo)]


def check_space(spaces: Sequence[Space]) -> list[Finding]:
    """Bytes and files left; a full folder that jobs write to is an error."""
    return [_space(one) for one in spaces]


def check_mounted(profile: Profile, folders: Sequence[Folder]) -> list[Finding]:
    """Whether compute nodes see the folders that a job needs; nothing where there are no others."""
    if profile.name == "local":
        return []
    seen: list[str] = []
    unknown: list[Folder] = []
    found = []
    for folder in folders:
        mounted = places.mounted(profile, folder.path)
        path = os.path.realpath(folder.path)
        if mounted is False:
            found.append(_unseen(folder, f"compute nodes of {profile.title} do not mount it"))
        elif mounted is None and path.startswith(tuple(f"{one}/" for one in _LOCAL_TO_A_NODE)):
            found.append(_unseen(folder, "every node has its own such folder", "warning"))
        elif mounted:
            seen.append(folder.name)
        else:
            unknown.append(folder)
    if seen:
        message = f"compute nodes mount: {', '.join(dict.fromkeys(seen))}"
        found.append(Finding(codes.MOUNTED, "ok", "mounts", message))
    if unknown:
        names = ", ".join(dict.fromkeys(folder.name for folder in unknown))
        paths = shlex.join(dict.fromkeys(str(folder.path) for folder in unknown))
        found.append(
            Finding(
                codes.MOUNTED,
                "ok",
                "mounts",
                f"whether compute nodes mount these is not known: {names}",
                f"`srun -N1 -n1 ls -d {paths}`",
            )
        )
    return found


def _runs(config: Config, profile: Profile, environment: Mapping[str, str]) -> Path:
    """As `rankup run` chooses: what is set or there, else scratch, else ./runs."""
    scratch = places.scratch(profile, environment, config.job.get("account"))
    if config.runs_set or os.path.lexists(config.runs) or scratch is None:
        return config.runs
    return scratch


def _space(one: Space) -> Finding:
    place, *others = one.names
    if one.problem:
        todo = "see that the variable names a folder of yours"
        return Finding(codes.SPACE, "warning", place, f"{one.path}: {one.problem}", todo)
    files = f", {number(one.files_free)} files" if one.files else ""
    also = f" (also {', '.join(others)})" if others else ""
    message = f"{one.path}{also}: {size(one.free)} of {size(one.total)} left{files}"
    written = any(name in _WRITTEN for name in one.names)
    home = " and what lies in ~/.cache" if HOME in one.names else ""
    todo = f"delete or move what is not needed{home}; `du -xsh --inodes` counts files"
    level: Level = "error" if written else "warning"
    if one.read_only:
        return Finding(codes.SPACE, level, place, f"{message}; read-only", "write elsewhere")
    if one.free < _FULL:
        return Finding(codes.SPACE, level, place, f"full: {message}", todo)
    if one.files and one.files_free == 0:
        return Finding(codes.SPACE, level, place, f"no file more: {message}", todo)
    low = one.free < min(_LOW, one.total * _LOW_PART)
    low_files = one.files and one.files_free < min(_LOW_FILES, one.files * _LOW_PART)
    if low or low_files:
        return Finding(codes.SPACE, "warning", place, f"nearly full: {message}", todo)
    return Finding(codes.SPACE, "ok", place, message)


def _unseen(folder: Folder, why: str, level: Level = "error") -> Finding:
    todo = {
        "runs": "set `runs` in rankup.toml to a folder in scratch",
        "caches": "[fetch] cache in rankup.toml: a folder in the project or in scratch",
        "Python": "make the environment in a folder that they mount: `rankup env create`",
    }.get(folder.name, "move the project to a folder that they mount: a job here dies without log")
    return Finding(codes.MOUNTED, level, folder.name, f"{folder.path}: {why}", todo)


def shared_memory(folder: Path = _SHARED) -> tuple[int, int] | None:
    """Bytes in all and free; None where a system has no such folder (macOS)."""
    try:
        said = os.statvfs(folder)
    except FileNotFoundError:
        return None
    return said.f_blocks * said.f_frsize, said.f_bavail * said.f_frsize


def check_shared_memory(said: tuple[int, int] | None) -> list[Finding]:
    """Return whether there is enough for some batches per worker."""
    if said is None:
        return []
    total, free = said
    message = f"{_SHARED} of this node: {size(free)} of {size(total)} left"
    if free >= _LITTLE_SHARED:
        return [Finding(codes.SHARED_MEMORY, "ok", "shared memory", message)]
    return [
        Finding(
            codes.SHARED_MEMORY,
            "warning",
            "shared memory",
            f"{message}: workers of a DataLoader die there with a bus error",
            f"delete what is left over in {_SHARED}; in a container: --ipc=host or --shm-size=8g; "
            "or fewer workers",
        )
    ]

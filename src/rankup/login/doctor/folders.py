"""Questions about folders: the room on them, and what compute nodes see of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...base.amounts import number, size
from ...base.findings import Finding
from ...site.caches import ROOT_VARIABLE, Cache
from ...site.profile import seen_by_nodes
from ..question import error, ok, question, warning
from .facts import Facts, Folder, Space

# A job writes here: full is an error. The other folders are only read, as far as is known.
_WRITTEN = ("$HOME", "scratch", "runs", "caches", "this folder")
_FULL = 10 * 10**6  # bytes; with less left, not even a job's log is certain
_LOW = 50 * 10**9
_LOW_FILES = 10_000
_LOW_PART = 0.05
# Every node has its own.
_LOCAL_TO_A_NODE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")  # noqa: S108 - only compared
# A job reads these; the others are for building, or are made anew on every node.
_READ_IN_JOBS = ("HF_HOME", "TORCH_HOME", "FASTAI_HOME", ROOT_VARIABLE)
_SET_BY = {
    "environment": "set in your environment",
    "site": "rankup sets it, here and in jobs",
    "default": "the program's default",
}


@question("RK512", "space and files left on a file system", "space")
def space(facts: Facts) -> Iterator[Finding]:
    """Bytes and files left on the file systems of `$HOME`, the project, scratch, data, the runs
    folder, the caches and the folder you are in, as the file system says (`statvfs`). Folders on
    one file system share a line. Quotas are [RK513](RK513.md).

    A full `$HOME` breaks logins, editors and every program that keeps a cache there. A full scratch
    loses checkpoints. Scratch may also delete a file that nobody has read or written for some days
    (90 at JSC), file by file: a data set with holes. Keep final models elsewhere.

    ```text
    ERROR $HOME  /p/home/jusers/me: full: 0 bytes of 11 GB left, 0 files [RK512]
          -> delete or move what is not needed and what lies in ~/.cache; `du -xsh --inodes` counts files
    ```

    `du -xsh ~/.[!.]* ~/* | sort -h` finds what is large; `du -xs --inodes` what has many files.
    Caches may always be deleted: they are made anew.
    """  # noqa: E501
    for one in grouped(facts.spaces):
        place, *others = one.names
        if one.problem:
            todo = "see that the variable names a folder of yours"
            yield warning(f"{one.path}: {one.problem}", todo, place)
            continue
        files = f", {number(one.files_free)} files" if one.files else ""
        also = f" (also {', '.join(others)})" if others else ""
        message = f"{one.path}{also}: {size(one.free)} of {size(one.total)} left{files}"
        if "scratch" in one.names and (days := facts.profile.purge_days) is not None:
            message += f"; files unused for {days} days are deleted"
        home = " and what lies in ~/.cache" if "$HOME" in one.names else ""
        todo = f"delete or move what is not needed{home}; `du -xsh --inodes` counts files"
        worst = error if set(one.names) & set(_WRITTEN) else warning
        low = one.free < min(_LOW, one.total * _LOW_PART)
        low_files = one.files and one.files_free < min(_LOW_FILES, one.files * _LOW_PART)
        if one.read_only:
            yield worst(f"{message}; read-only", "write elsewhere", place)
        elif one.free < _FULL:
            yield worst(f"full: {message}", todo, place)
        elif one.files and one.files_free == 0:
            yield worst(f"no file more: {message}", todo, place)
        elif low or low_files:
            yield warning(f"nearly full: {message}", todo, place)
        else:
            yield ok(message, place=place)


@question("RK513", "quota", "quota")
def quotas(facts: Facts) -> Iterator[Finding]:
    """Your quota and your project's, in bytes and files, asked from the command that fits the file
    system, where that is on `PATH`: `lfs quota` (Lustre), `mmlsquota` (GPFS), `quota` (NFS, XFS,
    ext4), `jutil project dataquota` (JSC). The line names the command. Each has until the end of
    doctor's time.

    The file system has terabytes left, and you cannot write: "Disk quota exceeded". It is often the
    number of files: an unpacked data set of images, a few environments.

    ```text
    WARN  quota  nearly reached: scratch training2543: 35.6 TB of 99 TB, 3.93M of 4M files (project, says mmlsquota) [RK513]
          -> delete or move what is not needed; many small files count more than large ones
    ```

    Over the soft limit you have some days, over the hard one nothing. Delete old runs and
    environments; keep data sets as few large files. `jutil`'s figures may be hours old.
    """  # noqa: E501
    found, late = facts.quotas
    todo = "delete or move what is not needed; many small files count more than large ones"
    for one in found:
        if one.part >= 1:
            over = f"nothing more can be written, now or in some days; {todo}"
            yield error(f"at its limit: {one}", over)
        elif one.part >= 0.9:
            yield warning(f"nearly reached: {one}", todo)
        else:
            yield ok(str(one))
    for command in late:
        todo = "ask it yourself; what is said above of space left does not know quotas"
        yield warning(f"`{command}` did not answer in time", todo)


@question("RK514", "compute nodes see a folder", "mounts")
def mounts(facts: Facts) -> Iterator[Finding]:
    """The folders that a job needs: the folder you are in, the script's, the runs folder, and this
    Python's environment; compute nodes have to mount them. Links are followed. Caches that they do
    not mount are [RK515](RK515.md). A job whose folder is not there on the node dies within
    seconds, without a log (`ExitCode=0:53`).

    ```text
    ERROR this folder  /p/project1/x: compute nodes of JUPITER do not mount it [RK514]
          -> move the project to a folder that they mount: a job here dies without log
    ```

    Move the project, or set `runs` and `[fetch] cache` in `rankup.toml`. Where it is not known, ask
    a node: `srun -N1 -n1 ls -d FOLDER`, and write `[site] mounts` into `rankup.toml`.
    """
    folders = [
        one
        for one in facts.folders
        if one.name == "this folder"
        or (one.name == "caches" and seen_by_nodes(facts.profile, one.path) is not False)
        or (one.name == "runs" and not one.path.is_relative_to(facts.here))
    ]
    folders.append(Folder("Python", facts.python.prefix))
    script = facts.script.resolve().parent
    if facts.script.name and not script.is_relative_to(facts.here.resolve()):
        folders.append(Folder("the script's folder", script))
    if facts.profile.name == "local":
        return
    seen, unknown = [], []
    for one in folders:
        mounted = seen_by_nodes(facts.profile, one.path)
        if mounted is False:
            yield error(
                f"{one.path}: compute nodes of {facts.profile.title} do not mount it",
                _move(one),
                one.name,
            )
        elif mounted:
            seen.append(one.name)
        elif os.path.realpath(one.path).startswith(_LOCAL_TO_A_NODE):
            yield warning(f"{one.path}: every node has its own such folder", _move(one), one.name)
        else:
            unknown.append(one)
    if seen:
        yield ok(f"compute nodes mount: {', '.join(seen)}")
    if unknown:
        names = ", ".join(one.name for one in unknown)
        paths = shlex.join(dict.fromkeys(str(one.path) for one in unknown))
        message = f"whether compute nodes mount these is not known: {names}"
        yield ok(message, f"`srun -N1 -n1 ls -d {paths}`")


@question("RK515", "where caches lie", "caches")
def caches(facts: Facts) -> Iterator[Finding]:
    """The folders in which Hugging Face, torch.hub, fastai, Triton, pip, uv and rankup itself keep
    what they download or compile, and who says so: a variable of yours, rankup (which sets it in
    jobs and for `fetch`), or the program's own default.

    `$HOME` has 10 GB and 10,000 files on some sites; one model fills it. A cache that compute nodes
    do not mount is no cache: the job would download again, without a network.

    ```text
    WARN  caches  in $HOME, which is small: Hugging Face ~/.cache/huggingface, torch.hub ~/.cache/torch (the program's default) [RK515]
          -> jutil env activate -p PROJECT; or in rankup.toml: [fetch] cache = "/a/folder/in/scratch"
    ```

    Let `$PROJECT` or `$SCRATCH` be set, or name a folder in `rankup.toml`. A variable that you have
    set wins over it: take it out of `~/.bashrc` first. What is in the old folder may be moved to
    the new one, or deleted.
    """  # noqa: E501
    profile, known = facts.profile, facts.caches
    own = Cache("rankup", ROOT_VARIABLE, known.own, "default" if known.root is None else "site")
    groups: dict[tuple[str, str], list[Cache]] = {}
    for one in (*known.entries, own):
        read = one.variable in _READ_IN_JOBS
        kind = "fine"
        if profile.name != "local":
            if read and seen_by_nodes(profile, one.path) is False:
                kind = "unseen"
            # $HOME may be a link, and a cache in it one that leads out of it.
            elif Path(os.path.realpath(one.path)).is_relative_to(os.path.realpath(facts.home)):
                kind = "home"
        groups.setdefault((one.said_by, kind), []).append(one)
    for said_by, set_by in _SET_BY.items():
        for kind in ("unseen", "home", "fine"):
            if some := groups.get((said_by, kind)):
                listed = f"{_listed(some, facts.home)} ({set_by})"
                if kind == "unseen":
                    yield error(f"compute nodes do not mount {listed}", _elsewhere(facts, some))
                elif kind == "home":
                    message = f"in $HOME, which is small: {listed}"
                    yield warning(message, _elsewhere(facts, some))
                else:
                    yield ok(listed)
    if known.refining:
        also = ", ".join(f"{name}={value}" for name, value in sorted(known.refining.items()))
        yield ok(f"also set: {also}")


def grouped(spaces: Iterable[Space]) -> list[Space]:
    """Return one entry for folders whose file system says the same of itself."""
    found: dict[tuple[object, ...], Space] = {}
    for one in spaces:
        # What is free moves while the folders are asked one after the other.
        key = (one.problem, one.total, one.files, one.read_only, one.path if one.problem else "")
        first = found.get(key)
        found[key] = one if first is None else replace(first, names=(*first.names, *one.names))
    return list(found.values())


def _move(folder: Folder) -> str:
    return {
        "runs": "set `runs` in rankup.toml to a folder in scratch",
        "caches": "[fetch] cache in rankup.toml: a folder in the project or in scratch",
        "Python": "make the environment in a folder that they mount: `rankup env create`",
    }.get(folder.name, "move the project to a folder that they mount: a job here dies without log")


def _listed(caches: Sequence[Cache], home: Path) -> str:
    def short(path: Path) -> str:
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

    parents = {one.path.parent for one in caches}
    if len(parents) == 1 and len(caches) > 1:
        programs = ", ".join(one.program for one in caches)
        return f"{programs} in {short(parents.pop())}"
    return ", ".join(f"{one.program} {short(one.path)}" for one in caches)


def _elsewhere(facts: Facts, some: Sequence[Cache]) -> str:
    """The settings to change; a variable wins over rankup.toml, so it has to go first."""
    lines = []
    if mine := [one.variable for one in some if one.said_by == "environment"]:
        lines.append(f"unset {' '.join(mine)}")
    if facts.caches.root is None or len(mine) < len(some):
        if facts.profile.jutil:
            lines.append("jutil env activate -p PROJECT")
        lines.append('or in rankup.toml: [fetch] cache = "/a/folder/in/scratch"')
    return "; ".join(lines).removeprefix("or ")

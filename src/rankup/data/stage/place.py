"""The folders that copies lie in: one of each user, and in it one of each job.

A copy has a marker in its folder, by which the copy of a source is found.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from ...base import files, holder
from ...base import text as texts
from ...base.errors import UserError
from .. import indexes, spans, stamp
from ..errors import BadContainer
from ..index import Index, Strings
from ..stamp import Look

VARIABLE = "RANKUP_STAGE_DIR"
JOB = "RANKUP_STAGE_JOB"  # names the folder of a job's copies, where Slurm's variables do not
MOUNTS, SENT = "mounts", "sent"  # folders of a job beside its copies
_MEMORY = Path("/dev/shm")  # noqa: S108 - its owner and mode are checked
_NAME = 48  # characters of the source's name that people find in the folder's
BY_HAND = "by-hand"  # the folder of what is staged outside of a job
_OF_JOB = re.compile(r"job-([0-9]+)\.(?:run-)?[0-9]+")
_OF_RUN = re.compile(r"run-([0-9]+)")
MARKER = "ready.json"
INDEX = "index.npz"
DATA, PART = "data", "part"
_VERSION = 2
_say = functools.cache(texts.say)  # once


def bases(environment: Mapping[str, str]) -> list[Path]:
    """Return the places for copies: `$RANKUP_STAGE_DIR`, else `/dev/shm` and `$TMPDIR`."""
    named = environment.get(VARIABLE)
    if named:
        return [Path(named).absolute()]
    temporary = environment.get("TMPDIR")
    found = [_MEMORY] if _MEMORY.is_dir() else []
    return found + ([Path(temporary).absolute()] if temporary else [])


def folder_of(base: Path) -> Path:
    """Return the folder of this user's copies below a place."""
    return base / f"rankup-{os.getuid()}"


def trusted(folder: Path) -> str:
    """Return why what lies in a folder is not to be believed; empty where it is ours alone.

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
    """Make the folder of this user's copies if it is not there, readable by this user alone.

    Raises:
        UserError: there is no place for it, what is there is not ours, or it is on a network file
            system: a copy serves the processes of one node.
    """
    folder = folder_of(base)
    try:
        if not base.is_dir():
            raise UserError(f"{base} is no folder; give one that is on this node for copies")
        kind = spans.network(base)
        if kind:
            raise UserError(
                f"{base} is on a network file system ({kind}), where a copy is no nearer than the "
                f"data itself: choose /dev/shm, or a disk of this node"
            )
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        why = trusted(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made ({error.strerror}): choose another place with ${VARIABLE}"
        ) from None
    if why:
        raise UserError(
            f"{folder} is not safe to use: {why}. Have it removed, or choose another place with "
            f"${VARIABLE}"
        )
    return folder


def roots(environment: Mapping[str, str], to: Path | None = None) -> Iterator[Path]:
    """Yield the folders of this user's copies that are there, and are to be believed.

    Args:
        to: a place beside the usual ones.
    """
    for base in dict.fromkeys([*([] if to is None else [to]), *bases(environment)]):
        root = folder_of(base)
        with suppress(OSError):
            if not trusted(root):
                yield root


@contextmanager
def alone(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only process of this user that copies: two must not count on the same memory.

    On a file system of this node flock holds, and ends with the process, however that ends.

    Raises:
        OSError: the lock cannot be made.
    """
    lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process of yours, which copies to {root}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def keyed(source: str | os.PathLike[str]) -> str:
    """Return the name of the folder for a source, from its real path: equal for all its names."""
    real = os.path.realpath(source)
    digest = xxhash.xxh3_128_hexdigest(real.encode("utf-8", "surrogateescape"))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(real)).lstrip(".")[:_NAME]
    return f"{name or 'data'}-{digest[:20]}"


def current(environment: Mapping[str, str]) -> str:
    """Return the name of the folder of this job's copies, or of a run on this machine."""
    job, named = _job(environment), environment.get(JOB, "")
    if _OF_RUN.fullmatch(named):
        return named
    # The environment of another job comes along where `sbatch` was called in that.
    if (match := _OF_JOB.fullmatch(named)) and match[1] == job:
        return named
    return _by_hand(job, environment)


def of_run() -> str:
    """Return the name of the folder of copies of a run on this machine, by this process."""
    return f"run-{os.getpid()}"


def readable(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the folders in which a process looks for copies.

    These are the job's or the run's own, and what was staged by hand.
    """
    return [*dict.fromkeys([current(environment), _by_hand(_job(environment), environment)])]


def jobs(root: Path) -> list[str]:
    """Return the names of the folders of jobs, sorted."""
    names = (path.name for path in root.glob("*"))
    return sorted(
        name
        for name in names
        if name == BY_HAND or _OF_JOB.fullmatch(name) or _OF_RUN.fullmatch(name)
    )


def keys(folder: Path) -> list[Path]:
    """Return the folders of the copies of a job, sorted."""
    return sorted(path for path in folder.glob("*") if path.name not in (MOUNTS, SENT))


def shown(name: str) -> str:
    """Return the owner of a folder in words."""
    job, run = _OF_JOB.fullmatch(name), _OF_RUN.fullmatch(name)
    if job is not None:
        return f"job {job[1]} of Slurm"
    return f"run of process {run[1]}" if run is not None else "by hand"


def used(folder: Path) -> int:
    """Return the bytes that copies below a folder take; what is mounted there is none."""
    taken = 0
    for path, below, names in os.walk(folder):
        below[:] = [name for name in below if name != MOUNTS]
        for name in names:
            with suppress(FileNotFoundError):
                taken += os.lstat(os.path.join(path, name)).st_blocks * 512
    return taken


def remove(entry: Path) -> int:
    """Remove a copy, at once for who looks for it; return the bytes it took.

    Raises:
        OSError: it cannot be removed.
    """
    gone = entry.with_name(f".gone-{secrets.token_hex(8)}")  # which goes with the folder of the job
    try:
        entry.rename(gone)
    except FileNotFoundError:
        return 0
    taken = used(gone)
    shutil.rmtree(gone, ignore_errors=True)  # another process may be at it, too
    if gone.exists():
        shutil.rmtree(gone)
    return taken


def _job(environment: Mapping[str, str]) -> str:
    """Return the number of the job of Slurm; it becomes the name of a folder."""
    job = environment.get("SLURM_JOB_ID", "")
    return job if job.isascii() and job.isdigit() else ""


def _by_hand(job: str, environment: Mapping[str, str]) -> str:
    if not job:
        return BY_HAND
    attempt = environment.get("SLURM_RESTART_COUNT", "")
    return f"job-{job}.{attempt if attempt.isascii() and attempt.isdigit() else 0}"


@dataclass(frozen=True)
class Copy:
    """A copy, as its marker describes it.

    Attributes:
        folder: that all of it lies in.
        source: real path of what it is a copy of.
        size: bytes of data.
        seen: of the source and its files path, bytes, mtime and inode.
        checked: each sample was compared with the hash that was packed with it.
        seconds: that this process has copied; 0 where the copy was there.
    """

    folder: Path
    source: Path
    size: int
    seen: tuple[Look, ...]
    checked: bool
    seconds: float = 0.0

    @property
    def shared(self) -> bool:
        """True where it was there, or another process has made it."""
        return self.seconds == 0

    @property
    def root(self) -> Path:
        """The file or folder that is the container."""
        return self.folder / DATA / self.source.name

    def of_files(self, index: Index) -> bool:
        """Return True where these are the files that an index is of."""
        try:
            own = self.load()
        except OSError:
            return False
        return (
            np.array_equal(own.files.data, index.files.data)
            and np.array_equal(own.files.ends, index.files.ends)
            and np.array_equal(own.sizes, index.sizes)
        )

    def load(self) -> Index:
        """Return the index of all samples; `bare` of tokens, and of a file that is no pack.

        Raises:
            BadContainer, OSError: it is damaged, or gone.
        """
        index = indexes.load(self.folder / INDEX)
        if indexes.stray(index, self.root) is not None:
            raise BadContainer(f"{self.folder / INDEX} is damaged: `rankup stage --release`")
        return index


def bare(sizes: Mapping[bytes, int]) -> Index:
    """Return an index of files, and of no samples: who reads them knows what is in them."""
    found = np.array(list(sizes.values()), np.int64)
    return Index("", Strings.of(sizes), (), Strings.of([]), (), sizes=found)


def write(copy: Copy) -> None:
    """Write the marker: from now on the copy is used.

    Raises:
        OSError: it could not be written.
    """
    text = {
        "rankup_stage": _VERSION,
        "source": str(copy.source),
        "size": copy.size,
        "seen": copy.seen,
        "checked": copy.checked,
        "boot": holder.boot(),
    }
    # In ASCII, so that names that are no UTF-8 come through.
    files.write_atomic(copy.folder / MARKER, json.dumps(text, indent=2), private=True)


def read(folder: Path) -> Copy | None:
    """Return what the marker of a copy says; None without one, or one that makes no sense."""
    try:
        text = json.loads((folder / MARKER).read_bytes())
        # What a disk has kept over a crash of the machine may lack its last writes.
        if (text["rankup_stage"], text["boot"]) != (_VERSION, holder.boot()):
            return None
        seen = tuple(Look(str(a), int(b), int(c), int(d)) for a, b, c, d in text["seen"])
        return Copy(folder, Path(text["source"]), int(text["size"]), seen, bool(text["checked"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def copy_of(path: str | os.PathLike[str], environment: Mapping[str, str]) -> Copy | None:
    """Return the copy to be read in the place of a source: ready, ours, and still the same.

    Where the source has changed since, that is said once, on stderr, by one process of a node. A
    copy is used also where the source cannot be seen any more.
    """
    key = keyed(path)
    for root in roots(environment):
        for job in readable(environment):
            copy = read(root / job / key)
            if copy is None or str(copy.source) != os.path.realpath(path):
                continue
            why = changed(copy)
            if not why:
                return copy
            if environment.get("LOCAL_RANK", "0") == "0":
                _say(
                    f"{copy.source}: {why}, so that its copy in {copy.folder} is out of date and "
                    f"not used"
                )
    return None


def changed(copy: Copy) -> str:
    """Return in which way the source is not what was copied; empty where it is, or is not seen."""
    try:
        return stamp.changed(copy.seen, copy.source)
    except OSError:
        return ""

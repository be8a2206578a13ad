"""Staging a source once per node: the order of it all."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ...base.errors import RunFailed, UserError
from ...base.files import no_space
from ...base.text import say
from . import copying, keeping, making, memory, place, users, waiting
from .choosing import OWN, Ask, Options
from .copying import Fill
from .making import Staged
from .memory import Reserve
from .users import Alive, Job
from .waiting import PATIENCE, Say


def stage(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    fraction: float = 1.0,
    reserve: int | None = None,
    job: Job | None = None,
    alive: Alive = users.unknown,
    say: Say = say,
    fill: Fill = copying.fill,
    patience: float = PATIENCE,
    quiet: bool = False,
    options: Options = OWN,
) -> Staged:
    """Copy a container into the memory of this node, where `rankup.data.open` finds it by itself.

    A single file may be anything: of one that is no pack its bytes are copied, and `Tokens` finds
    such a copy, too.

    May be called by many processes of a node at once: the first one copies, the others wait and
    share. Every sample is compared with its hash on the way, and a copy counts once its marker is
    there. It stays until `release` was called for each job that has staged it.

    The bytes of data without hashes are believed, as whoever reads the source believes them; its
    files' sizes and times are compared before and after.

    Args:
        path: what `rankup.data.open` opens, or any file; not a folder of single files.
        to: a folder for the copy; by default `$RANKUP_STAGE_DIR`, else `/dev/shm`, else `$TMPDIR`
            if it does not fit there and that is on a disk of this node.
        fraction: which part of the bytes is copied, above 0 and up to 1; the rest is read from the
            source.
        reserve: bytes of memory that are kept for the processes of the job; by default what
            `memory.reserve` says.
        job: who uses the copy; by default the job of Slurm and the run in it, else this process.
        alive: tells whether a job of Slurm lives, to remove what dead ones have left.
        say: gets lines for people.
        fill: gets the bytes of a copy.
        patience: seconds without a byte more after which a waiting process gives up.
        quiet: no progress is shown.
        options: what whoever asks calls these things, for what is said to people.

    Raises:
        UserError: there is nothing at `path`, it does not fit (with all numbers), or the place is
            not ours.
        BadContainer: it is damaged: the first sample that is not as it was packed is named.
        RunFailed: no space was left in the middle, or another process copies and comes no further.
        OSError: it cannot be read or written.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"{options.fraction} {fraction:g}: it should be above 0, and at most 1")
    ask = Ask(
        Path(os.path.realpath(path)),
        None if to is None else Path(to).absolute(),
        fraction,
        memory.reserve(os.environ) if reserve is None else Reserve(reserve, "as asked"),
        users.current(os.environ) if job is None else job,
        alive,
        say,
        fill,
        quiet,
        options,
    )
    home = place.home(os.environ)
    if home is None:
        raise UserError(f"there is no place for copies on this node: set ${place.VARIABLE}")
    for base in (home, ask.to):
        if base is not None:
            place.local(base)
    entry = place.ours(home) / place.keyed(ask.source)
    try:
        return _staged(entry, ask, patience)
    except OSError as error:
        if not no_space(error):
            raise
        raise RunFailed(
            f"{home} on node {os.uname().nodename} has no space left, not even for a lock: make "
            f"space there, or choose another place with ${place.VARIABLE}"
        ) from None


def _staged(entry: Path, ask: Ask, patience: float) -> Staged:
    began = time.time()
    with waiting.alone(entry, ask.say, patience) as (held, waited):
        with keeping.elsewhere(entry, ask.say):
            copy = making.there(entry, ask)
            if copy is not None:
                return making.shared(copy, ask)
            keeping.clear(entry)
            if entry.is_symlink():
                entry.unlink()
        if waited:
            waiting.others_failure(entry, began)
        waiting.forget_failure(entry)
        return making.made(entry, ask, held)


def release(
    job: Job | None = None, paths: list[Path] | None = None, *, say: Say = say
) -> list[str]:
    """Say that a job needs its copies no longer; those that nobody uses are removed.

    Args:
        job: by default the job of Slurm and the run in it, else this process: another run of the
            job, or what was staged by hand in it, is another user.
        paths: of sources; None: all that the job has staged, and what it has mounted.

    Returns:
        What was done, line by line.

    Raises:
        OSError: a copy could not be removed.
    """
    from . import mount

    job = users.current(os.environ) if job is None else job
    unmounted = mount.release(job) if paths is None else []
    return unmounted + keeping.release(job, paths, say)


def clean(alive: Alive = users.unknown, *, to: Path | None = None, say: Say = say) -> list[str]:
    """Remove copies that were interrupted, and those of jobs and processes that are over.

    What these have mounted is unmounted.

    Args:
        alive: tells whether a job of Slurm lives.
        to: a folder that was once given for copies, and is looked through too.

    Returns:
        What was done, line by line.

    Raises:
        OSError: a copy could not be removed.
    """
    from . import mount

    return mount.clean(alive) + keeping.clean(alive, to, say)

"""A copy is made once on a node: begun, filled, compared, published; and goes with its job.

Its bytes are read from the source, or are there: the job script has Slurm's `sbcast` bring them,
which reads a source once for all nodes. They are compared with the hashes in either case.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...base import progress
from ...base.amounts import size
from ...base.errors import RunFailed, UserError
from ...base.files import no_space
from ...base.text import say
from .. import indexes, stamp
from . import copying, memory, mount, place
from .copying import Plan
from .memory import Reserve, Room
from .place import Copy

Say = Callable[[str], None]
# Gets the bytes of all files of a copy, which are there and empty.
Fill = Callable[[Plan, Path, progress.Progress], None]


def stage(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    reserve: int | None = None,
    job: str | None = None,
    say: Say = say,
    fill: Fill = copying.fill,
    sent: int | None = None,
    quiet: bool = False,
    prefix: str = "--",
) -> Copy:
    """Copy a container into the memory of this node, where `rankup.data.open` finds it by itself.

    A single file may be anything: of one that is no pack its bytes are copied, and `Tokens` finds
    such a copy, too, as `Tokens` and recipes do that of a folder of `rankup tokenize`.

    May be called by many processes of a job at once: the first one copies, the others wait and
    share. A copy counts once its marker is there, and that is written when every sample in it has
    been compared with its hash. It stays until `release`.

    The bytes of data without hashes are believed, as whoever reads the source believes them; its
    files' sizes and times are compared before and after.

    Args:
        path: what `rankup.data.open` opens, or any file; not a folder of single files.
        to: a folder for the copy, which `$RANKUP_STAGE_DIR` has to name where it is opened; by
            default `$RANKUP_STAGE_DIR`, else the first of `/dev/shm` and `$TMPDIR` that it fits
            into and that is on this node.
        reserve: bytes of memory that are kept for the processes of the job; by default what
            `memory.reserve` says.
        job: a name of `place`, whose copy it is; by default of the job of Slurm, else of
            what is staged by hand.
        say: gets lines for people.
        fill: gets the bytes of a copy.
        sent: the number that `sbcast` has brought its files under, where it was asked to.
        quiet: no progress is shown.
        prefix: what options begin with where this was asked for, for what is said to people.

    Raises:
        UserError: there is nothing at `path`, it does not fit (with all numbers), or the place is
            not ours.
        BadContainer: it is damaged: the first sample that is not as it was packed is named.
        RunFailed: no space was left in the middle.
        OSError: it cannot be read or written.
    """
    source = Path(os.path.realpath(path))
    kept = memory.reserve(os.environ) if reserve is None else Reserve(reserve, "as asked")
    bases = place.bases(os.environ) if to is None else [Path(to).absolute()]
    if not bases:
        raise UserError(f"there is no place for copies on this node: set ${place.VARIABLE}")
    base, root = bases[0], place.ours(bases[0])
    job = place.current(os.environ) if job is None else job
    try:
        with place.alone(root, say):
            copy = _there(root, job, source, say)
            if copy is not None:
                return copy
            plan = copying.planned(source)
            came = [] if sent is None else copying.received(plan, root / job / place.SENT, sent)
            base = _base(bases, plan, kept, prefix, plan.size if came else 0)
            if came and base == bases[0]:
                fill = partial(copying.move, came)
            entry = place.ours(base) / job / place.keyed(source)
            return _made(entry, plan, fill, quiet)
    except OSError as error:
        if not no_space(error):
            raise
        raise RunFailed(
            f"{base} on node {os.uname().nodename} is full, and nothing of {source} was staged: "
            f"others write there too; make space, or choose another place ({prefix}to DIR)"
        ) from None


def release(
    job: str | None = None,
    paths: Sequence[Path] | None = None,
    *,
    to: Path | None = None,
) -> list[str]:
    """Remove the copies of a job, and unmount what it has mounted.

    Args:
        job: by default the job of Slurm and the run in it, else what is staged by hand: of another
            run of the job, or what was staged by hand in it, nothing is touched.
        paths: of sources; None: all that the job has staged, and what it has mounted.
        to: a place that was given for copies, beside the usual ones.

    Returns:
        What was done, line by line.

    Raises:
        OSError: a copy could not be removed.
    """
    job = place.current(os.environ) if job is None else job
    done = []
    for root in place.roots(os.environ, to):
        if paths is None:
            done += _removed(root / job)
            continue
        for path in paths:
            entry = root / job / place.keyed(path)
            if entry.exists():
                done.append(f"{path}: its copy of {size(place.remove(entry))} is removed")
    return done


def listed(*, to: Path | None = None) -> list[dict[str, Any]]:
    """Return all copies of this user on this node, by the names of their JSON form.

    These are source, path, state, size and job.
    """
    return [
        {**_described(entry), "job": place.shown(job)}
        for root in place.roots(os.environ, to)
        for job in place.jobs(root)
        for entry in place.keys(root / job)
    ]


def _there(root: Path, job: str, source: Path, say: Say) -> Copy | None:
    """Return the job's own copy; what is out of date, or was begun and not ended, is removed."""
    key = place.keyed(source)
    for one in dict.fromkeys([root, *place.roots(os.environ)]):
        entry = one / job / key
        copy = place.read(entry)
        why = place.changed(copy) if copy is not None else ""
        if copy is not None and copy.source == source and not why:
            return copy
        if one != root:  # whose lock is not held: another process may be making a copy there
            continue
        if why:
            say(f"{why} since {source} was staged: it is copied anew")
        place.remove(entry)
    return None


def _base(bases: Sequence[Path], plan: Plan, reserve: Reserve, prefix: str, there: int) -> Path:
    """Return the first place that a copy fits into.

    Args:
        there: bytes of it that lie in the first place already.

    Raises:
        UserError: there is none; with all numbers.
    """
    rooms: list[Room] = []
    for base in bases:
        try:
            place.ours(base)
        except UserError:
            if base == bases[0]:
                raise
            continue
        rooms.append(memory.room(base, os.environ, reserve))
        if rooms[-1].fits >= plan.needed - (there if base == bases[0] else 0):
            return base
    raise UserError(refusal(plan, rooms, prefix))


def refusal(plan: Plan, rooms: Sequence[Room], prefix: str) -> str:
    """Return what to say where a copy fits into none of these places."""
    node = os.uname().nodename
    lines = [f"{plan.source} needs {size(plan.needed)} on node {node}, and does not fit:"]
    for one in rooms:
        lines.append(f"  {one.base} has room for {size(one.fits)}")
        lines += [f"    {line}" for line in one.numbers()]
    advice = [f"name a disk of this node ({prefix}to DIR)"]
    if any(one.in_memory for one in rooms):
        advice.append(f"keep less for the job's processes ({prefix}reserve SIZE)")
    advice.append("pack it smaller (rankup pack --resize)")
    advice.append("do not stage it: it is then read from where it lies")
    return "\n".join([*lines, "; or ".join(advice)])


def _made(entry: Path, plan: Plan, fill: Fill, quiet: bool) -> Copy:
    """Copy a source that is not there yet; nothing of it stays where that fails."""
    start = time.monotonic()
    part = entry / place.PART / plan.source.name
    try:
        entry.mkdir(0o700, parents=True)
        copying.begin(plan, part)
        with progress.shown("staging", plan.size, quiet=quiet) as watch:
            fill(plan, part, watch)
        with progress.shown("comparing", plan.size, quiet=quiet) as watch:
            copying.compare(plan, part, watch)
        if plan.packed:
            os.link(indexes.place(part), entry / place.INDEX)
        else:
            indexes.save(plan.index, entry / place.INDEX)
        why = stamp.changed(plan.seen, plan.source)
        if why:
            raise UserError(f"{why} while it was copied: nothing was staged; run it again")
        (entry / place.PART).rename(entry / place.DATA)
        copy = Copy(entry, plan.source, plan.size, plan.seen, plan.checked)
        place.write(copy)
    except BaseException:
        place.remove(entry)
        raise
    finally:
        with suppress(OSError):  # nothing else of this job is there
            entry.parent.rmdir()
    return replace(copy, seconds=time.monotonic() - start)


def _removed(folder: Path) -> list[str]:
    """Remove a job's folder with all that is in it or mounted there; lines about it."""
    done = mount.unmount_all(folder)
    for entry in place.keys(folder):
        copy = place.read(entry)
        what = str(copy.source) if copy is not None else f"{entry.name}, which was not ready"
        done.append(f"{what}: its copy of {size(place.remove(entry))} is removed")
    if not mount.below(folder):
        shutil.rmtree(folder, ignore_errors=True)  # of nothing but what sbcast has brought
    return done


def _described(entry: Path) -> dict[str, Any]:
    copy = place.read(entry)
    if copy is None:
        path, taken = str(entry), place.used(entry)
        return {"source": entry.name, "path": path, "state": "not ready", "size": taken}
    try:
        state = "out of date" if stamp.changed(copy.seen, copy.source) else "ready"
    except OSError:
        state = "ready, and its source cannot be seen"
    return {
        "source": str(copy.source),
        "path": str(copy.root),
        "state": state,
        "size": copy.size,
    }

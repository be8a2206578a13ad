"""A copy is made once on a node: begun, filled, compared, published; and goes with its job.

For all nodes of a step a source can be read once: Slurm's `sbcast` hands it from node to node.
Each node makes its folders, and says so by a file where all nodes see it. Then the first one sends
the files of the source, and says by another file how that ended. Every node compares what has come
with the hashes, as in any copy; where it was not sent, each reads the source itself. Of a node that
fails `srun --kill-on-bad-exit` ends the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base import progress
from ...base.amounts import size
from ...base.errors import RunFailed, UserError
from ...base.files import no_space
from ...base.progress import Progress
from ...base.text import say
from .. import indexes, stamp
from . import copying, memory, mount, place
from .copying import Plan
from .memory import Reserve, Room
from .place import Alive, Copy

Say = Callable[[str], None]
# Gets the bytes of all files of a copy, which are there and empty.
Fill = Callable[[Plan, Path, progress.Progress], None]
_POLL = 0.1
_SENT, _NOT_SENT = "sent", "not-sent"


def stage(
    path: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    reserve: int | None = None,
    job: str | None = None,
    alive: Alive = place.unknown,
    say: Say = say,
    fill: Fill = copying.fill,
    quiet: bool = False,
    prefix: str = "--",
) -> Copy:
    """Copy a container into the memory of this node, where `rankup.data.open` finds it by itself.

    A single file may be anything: of one that is no pack its bytes are copied, and `Tokens` finds
    such a copy, too, as `Tokens` and recipes do that of a folder of `rankup tokenize`.

    May be called by many processes of a job at once: the first one copies, the others wait and
    share. A copy counts once its marker is there, and that is written when every sample in it has
    been compared with its hash. It stays until `release`. What jobs that are over have left is
    removed first.

    The bytes of data without hashes are believed, as whoever reads the source believes them; its
    files' sizes and times are compared before and after.

    Args:
        path: what `rankup.data.open` opens, or any file; not a folder of single files.
        to: a folder for the copy, which `$RANKUP_STAGE_DIR` has to name where it is opened; by
            default `$RANKUP_STAGE_DIR`, else the first of `/dev/shm` and `$TMPDIR` that it fits
            into and that is on this node.
        reserve: bytes of memory that are kept for the processes of the job; by default what
            `memory.reserve` says.
        job: a name of `place`, whose copy it is; by default of the job of Slurm, else of the shell.
        alive: tells whether a job of Slurm lives.
        say: gets lines for people.
        fill: gets the bytes of a copy.
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
            for line in clean(alive, to=base):
                say(line)
            plan = copying.planned(source)
            base = _base(bases, plan, kept, prefix)
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
        job: by default the job of Slurm and the run in it, else the shell: of another run of the
            job, or what was staged by hand in it, nothing is touched.
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
            done += _removed(root, root / job, "")
            continue
        for path in paths:
            entry = root / job / place.keyed(path)
            if entry.exists():
                done.append(f"{path}: its copy of {size(place.remove(entry, root))} is removed")
    return done


def clean(alive: Alive = place.unknown, *, to: Path | None = None) -> list[str]:
    """Remove the copies of jobs and processes that are over, and unmount what they have mounted.

    Args:
        alive: tells whether a job of Slurm lives.
        to: a place that was once given for copies, and is looked through too.

    Returns:
        What was done, line by line.

    Raises:
        OSError: a copy could not be removed.
    """
    done = []
    for root in place.roots(os.environ, to):
        place.sweep(root)
        for job in place.jobs(root):
            if place.over(job, os.environ, alive):
                done += _removed(root, root / job, f", left by {place.shown(job)}")
    return done


def listed(alive: Alive = place.unknown, *, to: Path | None = None) -> list[dict[str, Any]]:
    """Return all copies of this user on this node, by the names of their JSON form.

    These are source, path, state, size, job, and whether that is over.
    """
    found = []
    for root in place.roots(os.environ, to):
        for job in place.jobs(root):
            over = place.over(job, os.environ, alive)
            for entry in place.keys(root / job):
                about = _described(entry)
                found.append({**about, "job": place.shown(job), "over": over})
    return found


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
        place.remove(entry, one)
    return None


def _base(bases: Sequence[Path], plan: Plan, reserve: Reserve, prefix: str) -> Path:
    """Return the first place that a copy fits into.

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
        if rooms[-1].fits >= plan.needed:
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
        place.remove(entry, entry.parents[1])
        raise
    finally:
        with suppress(OSError):  # nothing else of this job is there
            entry.parent.rmdir()
    return replace(copy, seconds=time.monotonic() - start)


def _removed(root: Path, folder: Path, whose: str) -> list[str]:
    """Remove a job's folder with all that is in it or mounted there; lines about it."""
    done = [f"{line}{whose}" for line in mount.unmount_all(folder)]
    for entry in place.keys(folder):
        copy = place.read(entry)
        what = str(copy.source) if copy is not None else f"{entry.name}, which was not ready"
        taken = size(place.remove(entry, root))
        done.append(f"{what}: its copy of {taken} is removed{whose}")
    if not mount.below(folder):
        place.remove(folder, root)
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


@contextmanager
def together(
    source: str | os.PathLike[str], environment: Mapping[str, str], say: Say
) -> Iterator[Fill]:
    """Yield what fills this node's copy of a source: `stage(fill=...)`.

    Where this node is alone, it reads the source itself, and that is said.

    Args:
        environment: of a step of Slurm that has one task on each node.

    Raises:
        UserError: there are several tasks on a node, or no folder to meet in.
    """
    try:
        me, nodes = int(environment["SLURM_NODEID"]), int(environment["SLURM_STEP_NUM_NODES"])
        tasks = int(environment["SLURM_STEP_NUM_TASKS"])
        step = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    except (KeyError, ValueError):
        nodes = 1
    if nodes < 2:
        say("--broadcast: there are no other nodes here, so this one reads the file itself")
        yield copying.fill
        return
    if tasks != nodes:
        raise UserError(
            f"--broadcast: this step has {tasks} tasks on {nodes} nodes, and one on each is what "
            f"it takes: srun --ntasks-per-node=1 --kill-on-bad-exit=1 rankup stage --broadcast FILE"
        )
    folder = _meeting(environment, step, place.keyed(source))

    def fill(plan: Plan, root: Path, watch: Progress) -> None:
        (folder / f"begun-{me}").touch()
        if me == 0:
            _wait(*([folder / f"begun-{node}"] for node in range(nodes)))
            sent = _sent(plan, root, step, say)
            (folder / (_SENT if sent else _NOT_SENT)).touch()
        _wait([folder / _SENT, folder / _NOT_SENT])
        sizes = [path.stat().st_size for path in plan.files(root)]
        # Where the nodes' folders have other names, nothing has come here.
        if not (folder / _SENT).exists() or sizes != plan.index.sizes.tolist():
            copying.begin(plan, root)
            copying.fill(plan, root, watch)

    try:
        yield fill
    finally:
        # Nobody waits for a node that has had its copy already, or has failed.
        with suppress(OSError):
            (folder / f"begun-{me}").touch()
            if me == 0 and not (folder / _SENT).exists():
                (folder / _NOT_SENT).touch()
            (folder / f"left-{me}").touch()
        if all((folder / f"left-{node}").exists() for node in range(nodes)):
            shutil.rmtree(folder, ignore_errors=True)


def _meeting(environment: Mapping[str, str], step: str, key: str) -> Path:
    """Make the folder in which the nodes of a step meet: in the run directory, or in this one.

    Raises:
        UserError: it cannot be made, or is not ours alone.
    """
    base = Path(environment.get("RANKUP_RUN_DIR") or Path.cwd())
    # A job that was put back into the queue has the same numbers in its next attempt.
    attempt = environment.get("SLURM_JOB_START_TIME", "0")
    folder = base / f".rankup-{place.current(environment)}-{step}-{attempt}-{key}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        why = place.trusted(folder)
    except OSError as error:
        why = f"it cannot be made ({error.strerror})"
    if why:
        raise UserError(
            f"--broadcast: the nodes meet in {folder}, which is not a folder of yours alone: "
            f"{why}; start it in a folder of yours that all nodes see"
        )
    return folder


def _sent(plan: Plan, root: Path, step: str, say: Say) -> bool:
    """Send the files of a source to all nodes of the step."""
    for file, to in zip(plan.files(plan.source), plan.files(root), strict=True):
        words = ["sbcast", "--force", f"--jobid={step}", str(file), str(to)]
        try:
            subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            why = str(error) if isinstance(error, OSError) else error.stderr.partition("\n")[0]
            say(f"sbcast cannot send {file} ({why}): each node reads it itself")
            return False
    return True


def _wait(*any_of: list[Path]) -> None:
    """Wait until of each list one file is there."""
    while not all(any(path.exists() for path in paths) for paths in any_of):
        time.sleep(_POLL)

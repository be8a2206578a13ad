"""A source is read once for all nodes of a step: Slurm's `sbcast` hands it from node to node.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from . import copying, place
from .copying import Watch
from .plan import Plan
from .staging import Fill, Say

_POLL = 0.1
_SENT, _NOT_SENT = "sent", "not-sent"


@dataclass(frozen=True)
class Step:
    """The nodes of a step of Slurm.

    Attributes:
        me, nodes: number of this node, and how many there are.
        slurm: job and step, as `sbcast` takes them.
        folder: seen by all nodes.
    """

    me: int
    nodes: int
    slurm: str
    folder: Path


def step(environment: Mapping[str, str]) -> Step | None:
    """Return the nodes of this step of Slurm; None where there is only this one.

    They meet in the run directory, in a plain step in the working directory.

    Raises:
        UserError: there are several tasks on a node.
    """
    try:
        me, nodes = int(environment["SLURM_NODEID"]), int(environment["SLURM_STEP_NUM_NODES"])
        tasks = int(environment["SLURM_STEP_NUM_TASKS"])
        slurm = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    except (KeyError, ValueError):
        return None
    if nodes < 2:
        return None
    if tasks != nodes:
        raise UserError(
            f"--broadcast: this step has {tasks} tasks on {nodes} nodes, and one on each is what "
            f"it takes: srun --ntasks-per-node=1 --kill-on-bad-exit=1 rankup stage --broadcast FILE"
        )
    base = Path(environment.get("RANKUP_RUN_DIR") or Path.cwd())
    # A job that was put back into the queue has the same numbers in its next attempt.
    attempt = environment.get("SLURM_JOB_START_TIME", "0")
    name = f".rankup-{place.current(environment)}-{slurm}-{attempt}"
    return Step(me, nodes, slurm, base / name)


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
    of = step(environment)
    if of is None:
        say("--broadcast: there are no other nodes here, so this one reads the file itself")
        yield copying.fill
        return
    folder = _meeting(of, place.keyed(source))

    def fill(plan: Plan, root: Path, watch: Watch) -> None:
        _note(folder, f"begun-{of.me}")
        if of.me == 0:
            _wait(lambda: all((folder / f"begun-{node}").exists() for node in range(of.nodes)))
            sent = _sent(plan, root, of, say)
            _note(folder, _SENT if sent else _NOT_SENT)
        _wait(lambda: any((folder / name).exists() for name in (_SENT, _NOT_SENT)))
        sizes = [path.stat().st_size for path in plan.files(root)]
        # Where the nodes' folders have other names, nothing has come here.
        if not (folder / _SENT).exists() or sizes != plan.index.sizes.tolist():
            copying.begin(plan, root)
            copying.fill(plan, root, watch)

    try:
        yield fill
    finally:
        # Nobody waits for a node that has had its copy already, or has failed.
        _note(folder, f"begun-{of.me}")
        if of.me == 0 and not (folder / _SENT).exists():
            _note(folder, _NOT_SENT)
        _note(folder, f"left-{of.me}")
        if all((folder / f"left-{node}").exists() for node in range(of.nodes)):
            shutil.rmtree(folder, ignore_errors=True)


def _sent(plan: Plan, root: Path, of: Step, say: Say) -> bool:
    """Send the files of a source to all nodes of the step."""
    for file, to in zip(plan.files(plan.source), plan.files(root), strict=True):
        words = ["sbcast", "--force", f"--jobid={of.slurm}", str(file), str(to)]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            why = "" if done.returncode == 0 else done.stderr.strip().partition("\n")[0]
            failed = done.returncode != 0
        except OSError as error:
            failed, why = True, str(error.strerror)
        if failed:
            say(f"sbcast cannot send {file} ({why}): each node reads it itself")
            return False
    return True


def _meeting(of: Step, key: str) -> Path:
    """Return the folder for a source, ours alone.

    Raises:
        UserError: it is not, or cannot be made.
    """
    folder = of.folder.with_name(f"{of.folder.name}-{key}")
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        why = place.trusted(folder)
    except OSError as error:
        raise UserError(
            f"--broadcast: the nodes meet in {folder}, which cannot be made ({error.strerror}); "
            f"start it in a folder that all nodes see and you may write to"
        ) from None
    if why:
        raise UserError(f"--broadcast: {folder} is not a folder of yours alone: {why}; remove it")
    return folder


def _note(folder: Path, name: str) -> None:
    with suppress(OSError):
        (folder / name).touch(0o600)


def _wait(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(_POLL)

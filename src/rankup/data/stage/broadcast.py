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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ...base.errors import UserError
from ...base.progress import Progress
from . import copying, place
from .copying import Plan
from .staging import Fill, Say

_POLL = 0.1
_SENT, _NOT_SENT = "sent", "not-sent"


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

"""A source is read once by all nodes of a step together: each reads 1/n, the rest comes from peers.

Each node writes into a folder that all of them see where it listens, with a random token that only
this user can read (`meeting`). Then each reads its own pieces (every n-th) from the source, serves
them to the others, and asks each of these for theirs (`peers`, over the protocol of `wire`). What a
peer cannot give, because it is gone, silent, or sends what is not right, is read from the source,
and that is said: a peer can make staging slower, and nothing else. Every piece is compared with its
samples' hashes, as in any copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ...base.errors import UserError
from . import copying, place
from .copying import Fill, Watch
from .meeting import LINGER, MEET, Step
from .part import Part
from .peers import Filling
from .waiting import Say

_TRIES = 100  # to make the folder to meet in, while others remove an earlier one


def step(environment: Mapping[str, str]) -> Step | None:
    """The nodes of this step of Slurm; None where there is only this one.

    They meet in the run directory, in a plain step in the working directory.

    Raises:
        UserError: there are several tasks on a node.
    """
    try:
        me, nodes = int(environment["SLURM_NODEID"]), int(environment["SLURM_STEP_NUM_NODES"])
        tasks = int(environment["SLURM_STEP_NUM_TASKS"])
        # A job that was put back into the queue has the same numbers in its next life.
        life = environment.get("SLURM_RESTART_COUNT", "0")
        number = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}.{life}"
    except (KeyError, ValueError):
        return None
    if nodes < 2:
        return None
    if tasks != nodes:
        raise UserError(
            f"--broadcast: this step has {tasks} tasks on {nodes} nodes, and one on each is what "
            f"it takes: srun --ntasks-per-node=1 rankup stage --broadcast FILE"
        )
    base = Path(environment.get("RANKUP_RUN_DIR") or Path.cwd())
    name = environment.get("SLURMD_NODENAME") or os.uname().nodename
    return Step(me, nodes, name, base / f".rankup-stage-{number}")


@contextmanager
def together(
    source: str | os.PathLike[str],
    environment: Mapping[str, str],
    say: Say,
    *,
    meet: float = MEET,
    linger: float = LINGER,
) -> Iterator[Fill]:
    """What fills this node's copy of a source, with the help of the others: `stage(fill=...)`.

    At the end the others know that this node is through, whether it has copied, found a copy that
    was there, or failed. Where this node is alone, it reads all itself, and that is said.

    Args:
        environment: of a step of Slurm that has one task on each node.
        meet, linger: seconds, see `MEET` and `LINGER`.

    Raises:
        UserError: there are several tasks on a node, or no folder to meet in.
    """
    of = step(environment)
    if of is None:
        say("--broadcast: there are no other nodes here, so this one reads all itself")
        yield copying.fill
        return
    of = replace(of, meet=meet, linger=linger)
    folder = _meeting(of, source)

    def fill(part: Part, watch: Watch) -> None:
        Filling(of, folder, part, watch, lambda line: say(f"node {of.name}: {line}")).run()

    try:
        yield fill
    finally:
        with suppress(OSError):
            (folder / f"left-{of.me}").touch(0o600)
        if all((folder / f"left-{node}").exists() for node in range(of.nodes)):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # others have more to stage
                of.folder.rmdir()


def _meeting(of: Step, source: str | os.PathLike[str]) -> Path:
    """The folder for a source, ours alone: the tokens lie in it.

    Raises:
        UserError: it is not ours, or cannot be made.
    """
    folder = of.folder / place.keyed(source)
    for tries in reversed(range(_TRIES)):
        try:
            for one in (of.folder, folder):
                with suppress(FileExistsError):
                    one.mkdir(0o700)
                why = place.trusted(one)
                if why:
                    raise UserError(
                        f"--broadcast: {one} is not a folder of yours alone: {why}; remove it"
                    )
            break
        except OSError as error:
            # Of several sources the last who leaves the one before removes the outer folder.
            if isinstance(error, FileNotFoundError) and tries and of.folder.parent.is_dir():
                continue
            raise UserError(
                f"--broadcast: the nodes meet in {folder}, which cannot be made "
                f"({error.strerror}); start it in a folder that all nodes see and you may write to"
            ) from None
    return folder

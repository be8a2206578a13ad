"""The context that all parts of a pack share: the request, the Slurm task, when to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ...base.text import clean
from ..index import Index
from ..pool import cores
from .journal import Work
from .layout import Shape
from .progress import Progress
from .report import sample_bytes
from .request import Request, Target, bytes_of


@dataclass(frozen=True)
class Step:
    """The tasks that `srun -n N rankup pack` has started together, which share the units.

    They meet by `begun.json`: the first one scans and writes it, the others wait for one that
    names their step. That one which has failed ends all is for srun (`--kill-on-bad-exit`).

    Attributes:
        task, tasks: this one's number, and how many there are.
        name: of the step; another one where a job starts again.
    """

    task: int = 0
    tasks: int = 1
    name: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Step:
        """Return the step of this process; one of a single task where there is none.

        Only srun sets these variables, for each of its steps; in a batch script they are those of
        no step.
        """
        try:
            task, tasks = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
            name = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
        except (KeyError, ValueError):
            return cls()
        if tasks < 2 or not 0 <= task < tasks:
            return cls()
        # A job that starts again has the same numbers, and not everywhere counts its starts.
        again = [environ.get(f"SLURM_{one}", "") for one in ("RESTART_COUNT", "JOB_START_TIME")]
        return cls(task, tasks, ".".join([name, *again]))


@dataclass(frozen=True)
class Pack:
    """The context of a pack.

    Attributes:
        watch: called often; raises once there is a reason to stop.
        quota: gives lines about the user's quota at a path.
    """

    request: Request
    goal: Target
    step: Step
    watch: Callable[[], None]
    quota: Callable[[Path], list[str]]

    @property
    def work(self) -> Work:
        return Work(self.goal)

    @property
    def workers(self) -> int:
        return self.request.workers or cores()

    @property
    def looks(self) -> bool:
        """True where images are looked at on their way; else it was done before."""
        return self.request.bad == "keep" and self.request.resize is None

    def say(self, line: str) -> None:
        """Print a line of the command's output."""
        if not self.request.as_json:
            print(clean(line), flush=True)

    def progress(self, what: str, index: Index, before: int = 0) -> closing[Progress]:
        """Return what shows how far a part of the pack is, until it is closed."""
        quiet = self.request.as_json or self.step.task > 0
        total = sample_bytes(index)
        return closing(Progress(what, total, len(index), before=before, quiet=quiet))


def shape(request: Request) -> Shape:
    """Return what a request says of the form of its container."""
    return Shape(shard=bytes_of(request.shard_size, "--shard-size"))

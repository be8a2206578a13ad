"""`srun -n N rankup pack …`: the tasks of a step share the units of one container.

Task 0 scans, begins the files and puts the container together at last; the others wait for it and
copy their units. They meet in a hidden folder beside OUT, by files alone: a task that has failed
leaves a file that all others see, and each counts in a file of its own while it is alive.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.files import write_json
from .request import Target
from .trees import clear
from .workers import Lost, Watch

BEAT = 5.0  # seconds between two signs of life
SILENT = 120.0  # after which a task without one is given up
_LOOK = 1.0  # seconds between two looks at the others
_LEAVE = 10.0  # that task 0 waits for those who are about to end
_WAIT = 0.1


@dataclass(frozen=True)
class Team:
    """This task, and the folder where it meets the others."""

    task: int
    tasks: int
    folder: Path

    @property
    def ready(self) -> Path:
        return self.folder / "ready.json"

    @property
    def copied(self) -> Path:
        """There once all units are: nobody is needed any more."""
        return self.folder / "copied"

    def beat(self, task: int) -> Path:
        return self.folder / f"beat-{task}"

    def failed(self, task: int) -> Path:
        return self.folder / f"failed-{task}.json"

    def left(self, task: int) -> Path:
        return self.folder / f"left-{task}"


def team(environ: Mapping[str, str], target: Target) -> Team | None:
    """The tasks that were started together; None where there is only this process.

    Only srun sets these, for each of its steps; in a batch script they are those of no step.
    """
    try:
        task, tasks = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
        # A job that was put back into the queue has the same numbers in its next life.
        life = environ.get("SLURM_RESTART_COUNT", "0")
        step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}.{life}"
    except (KeyError, ValueError):
        return None
    if tasks < 2 or not 0 <= task < tasks:
        return None
    return Team(task, tasks, target.out.with_name(f"{_prefix(target)}{step}"))


def tidy(target: Target, keep: Team | None) -> None:
    """Remove what steps that have failed left behind; called with the lock of OUT."""
    prefix = _prefix(target)
    for path in target.out.parent.iterdir() if target.out.parent.is_dir() else ():
        if path.name.startswith(prefix) and (keep is None or path != keep.folder):
            with suppress(OSError):
                clear(path)


def _prefix(target: Target) -> str:
    return f".{target.out.name}.step-"


@contextmanager
def alive(of: Team) -> Iterator[None]:
    """Count in a file while the body runs; at its end say that this task has left.

    The last one to leave removes the folder where they have met.
    """
    of.folder.mkdir(parents=True, exist_ok=True)
    done = threading.Event()

    def count() -> None:
        number = 0
        while True:
            with suppress(OSError):
                of.beat(of.task).write_text(f"{number}\n", encoding="ascii")
            number += 1
            if done.wait(BEAT):
                return

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with suppress(OSError):  # the folder may be gone
            of.left(of.task).touch()
        if all(of.left(task).exists() for task in range(of.tasks)):
            with suppress(OSError):
                clear(of.folder)


def fail(of: Team, message: str, code: int) -> None:
    """Let the other tasks know that this one has failed."""
    with suppress(OSError):
        told = {"message": message, "code": code, "host": socket.gethostname()}
        write_json(of.failed(of.task), told)


class Failed(Lost):
    """Another task has failed.

    Attributes:
        task, code: its number, and what it ends with.
    """

    def __init__(self, task: int, told: Mapping[str, Any]) -> None:
        super().__init__(f"task {task} on {told.get('host')}: {told.get('message')}")
        self.task, self.code = task, int(told.get("code") or 1)


@dataclass
class Others:
    """Looks at the other tasks: at all of them from task 0, from the others at task 0."""

    of: Team
    silent: float = SILENT
    _seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    _looked: float = 0.0

    def check(self) -> None:
        """Go on only while the others do. Cheap enough to be called often.

        Raises:
            Failed: one has failed.
            Lost: one gives no sign of life.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        for task in range(self.of.tasks):
            if task == self.of.task:
                continue
            told = _read(self.of.failed(task))
            if told is not None:
                raise Failed(task, told)
            if (task == 0 or self.of.task == 0) and not self.of.left(task).exists():
                self._listen(task, now)

    def gone(self) -> bool:
        """Whether all others have left."""
        tasks = range(self.of.tasks)
        return all(self.of.left(task).exists() for task in tasks if task != self.of.task)

    def _listen(self, task: int, now: float) -> None:
        try:
            said = self.of.beat(task).read_text(encoding="ascii")
        except (OSError, ValueError):
            said = ""
        before, since = self._seen.get(task, (None, now))
        if said != before:
            self._seen[task] = (said, now)
        elif now - since > self.silent:
            raise Lost(
                f"task {task} of {self.of.tasks} has given no sign of life for {self.silent:g} s; "
                "see the job's log for how it ended, and run the same command with --resume"
            )


def wait_ready(of: Team, watch: Watch) -> dict[str, Any]:
    """What task 0 has prepared, once it has; `{"alone": True}`: it needs nobody.

    Raises:
        Failed, Lost: task 0 has failed, or is gone.
    """
    while True:
        gone = of.left(0).exists()  # asked first: a failure is written before
        watch()
        told = _read(of.ready)
        if told is not None and not of.copied.exists():
            return told
        if gone or told is not None:
            return {"alone": True}
        time.sleep(_WAIT)


def dismiss(of: Team) -> None:
    """Wait until all have left the folder, and it is gone.

    Called when this task has left it, too: its sign of life would come in between. Who comes later
    finds there that it is too late, and removes it.
    """
    deadline = time.monotonic() + _LEAVE
    while of.folder.exists() and not all(of.left(task).exists() for task in range(of.tasks)):
        if time.monotonic() > deadline:
            return
        time.sleep(_WAIT)
    with suppress(OSError):
        clear(of.folder)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):  # the file system is away for a moment
        return None
    return found

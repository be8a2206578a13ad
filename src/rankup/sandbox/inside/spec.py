"""The request of the parent: `spec.json` in the state folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

STATE = "RANKUP_SANDBOX"  # variable: the state folder
MAIN = "RANKUP_SANDBOX_MAIN"  # variable: process id of the script itself
SPEC = "spec.json"
EVENTS = "events.jsonl"
STACK = "stack.txt"
TRACEBACK = "traceback.txt"
LOCK = "links.lock"


@dataclass(frozen=True)
class Spec:
    """The fields of `spec.json`.

    Attributes:
        folder: the state folder, absolute.
        script: absolute path, in the copy.
        args: the script's arguments.
        shadow: the folder that stands for `/` in the copy; empty: the script runs in place, and
            writes only new files.
        free: folders in which anything may be written, and where a library's files are its own.
        block: refuse connections that leave this process tree.
        pretend: `torch.cuda.is_available()` is true, and torchrun's and srun's variables are those
            of a world of one; else the script is told the truth.
        threads: of torch and its like, and at most so many DataLoader workers.
        data_limit: bytes of memory that a process may allocate (RLIMIT_DATA).
        temporary: the script's TMPDIR, of which nothing is told.
        deadline: unix time shortly before the script is ended for its time.
    """

    folder: str
    script: str
    args: tuple[str, ...] = ()
    shadow: str = ""
    free: tuple[str, ...] = field(default=())
    block: bool = False
    pretend: bool = False
    threads: int = 4
    data_limit: int | None = None
    temporary: str = ""
    deadline: float | None = None

    @property
    def events(self) -> str:
        """The file that events are appended to."""
        return os.path.join(self.folder, EVENTS)

    @property
    def traceback(self) -> str:
        """The file that the traceback of an error which ends the script goes into.

        The parent shows it, unless it has another start in mind.
        """
        return os.path.join(self.folder, TRACEBACK)

    @property
    def stack(self) -> str:
        """The file that the stacks of all threads are written to when its time is nearly over."""
        return os.path.join(self.folder, STACK)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The files and folders of ours, of which nothing is told."""
        lock = os.path.join(self.folder, LOCK)
        return (self.events, self.traceback, self.stack, lock, self.temporary)


def load() -> Spec:
    """Return the spec in the folder that the environment names.

    Raises:
        KeyError, OSError, ValueError, TypeError: the parent did not write what it should.
    """
    folder = os.path.realpath(os.environ[STATE])
    with open(os.path.join(folder, SPEC), encoding="utf-8") as file:
        values: dict[str, Any] = json.load(file)
    known = {name: values[name] for name in Spec.__dataclass_fields__ if name in values}
    for name in ("args", "free"):
        known[name] = tuple(known.get(name, ()))
    return Spec(**{**known, "folder": folder})

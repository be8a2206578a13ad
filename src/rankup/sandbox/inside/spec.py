"""The request of the parent: `spec.json` in the state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

STATE = "RANKUP_SANDBOX"  # variable: the state folder
MAIN = "RANKUP_SANDBOX_MAIN"  # variable: process id of the script itself
SPEC = "spec.json"
EVENTS = "events.jsonl"
STACK = "stack.txt"  # of all threads, when the script's time is nearly over
TRACEBACK = "traceback.txt"  # of the error that ends it; shown unless there is another start
LOCK = "links.lock"
OURS = (EVENTS, STACK, TRACEBACK, LOCK)  # of which nothing is told


@dataclass(frozen=True)
class Spec:
    """The fields of `spec.json`.

    Attributes:
        folder: the state folder, absolute.
        script: absolute path, in the copy.
        args: the script's arguments.
        shadow: the folder that stands for `/` in the copy; empty: the script runs in place, and
            writes only new files.
        earlier: journals of starts before this one: what those made, this one may change.
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
    args: Sequence[str] = ()
    shadow: str = ""
    earlier: Sequence[str] = ()
    free: Sequence[str] = ()
    block: bool = False
    pretend: bool = False
    threads: int = 4
    data_limit: int | None = None
    temporary: str = ""
    deadline: float | None = None

    def file(self, name: str) -> str:
        """The path of one of our files."""
        return os.path.join(self.folder, name)


def load() -> Spec:
    """Return the spec in the folder that the environment names.

    Raises:
        KeyError, OSError, ValueError, TypeError: the parent did not write what it should.
    """
    folder = os.path.realpath(os.environ[STATE])
    with open(os.path.join(folder, SPEC), encoding="utf-8") as file:
        return Spec(**{**json.load(file), "folder": folder})

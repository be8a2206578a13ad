"""What the parent wants of this run: `spec.json` in the state folder."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Literal

STATE = "RANKUP_FETCH"  # variable: the state folder
MAIN = "RANKUP_FETCH_MAIN"  # variable: process id of the script itself
SPEC = "spec.json"
EVENTS = "events.jsonl"
STACK = "stack.txt"
TRACEBACK = "traceback.txt"


@dataclass(frozen=True)
class Spec:
    """The fields of `spec.json`.

    Attributes:
        folder: the state folder, absolute.
        script: absolute path.
        args: the script's arguments.
        mode: `fetch` brings what is missing, `proof` shows that nothing is.
        block: refuse connections that leave this process tree.
        pretend_gpu: `torch.cuda.is_available()` is true; else it tells the truth.
        threads: of torch and its like, and at most so many DataLoader workers.
        data_limit: bytes of memory that a process may allocate (RLIMIT_DATA).
        token: part of the name of each file that is set aside.
        temporary: the script's TMPDIR, where nothing needs to be kept or told.
        walk: draw all samples also where none was downloaded while drawing, and also in a proof.
        world: set torchrun's and srun's variables, for a world of one, before the script starts.
        hold: the traceback of an error that ends the script goes into a file; the parent shows it,
            unless it has another start in mind.
    """

    folder: str
    script: str
    args: tuple[str, ...] = ()
    mode: Literal["fetch", "proof"] = "fetch"
    block: bool = False
    pretend_gpu: bool = False
    threads: int = 4
    data_limit: int | None = None
    token: str = ""
    temporary: str = ""
    walk: bool = False
    world: bool = False
    hold: bool = False

    @property
    def events(self) -> str:
        """The file that events are appended to."""
        return os.path.join(self.folder, EVENTS)

    @property
    def traceback(self) -> str:
        """The file that a traceback is held back in."""
        return os.path.join(self.folder, TRACEBACK)

    @property
    def lazy(self) -> str:
        """A file that is there once a DataLoader worker has used the network."""
        return os.path.join(self.folder, "lazy")

    @property
    def stack(self) -> str:
        """The file that SIGUSR2 writes the stacks of all threads to."""
        return os.path.join(self.folder, STACK)


def load() -> Spec:
    """The spec in the folder that the environment names.

    Raises:
        KeyError, OSError, ValueError, TypeError: the parent did not write what it should.
    """
    folder = os.path.realpath(os.environ[STATE])
    with open(os.path.join(folder, SPEC), encoding="utf-8") as file:
        values: dict[str, Any] = json.load(file)
    known = {name: values[name] for name in Spec.__dataclass_fields__ if name in values}
    known["args"] = tuple(known.get("args", ()))
    known["token"] = known.get("token") or hashlib.sha256(folder.encode()).hexdigest()[:8]
    return Spec(**{**known, "folder": folder})

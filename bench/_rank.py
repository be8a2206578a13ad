"""One rank of a `common.Team`: runs a slice of the contestant that is named on its input.

Each contestant lives in a thread of its own, stopped at the beginning of one of its steps. One
thread at a time runs, so that contestants share a process and its luck without meeting.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

from _loops import LOOPS, Job
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import World, setup

UNCOUNTED = 2  # steps of a slice before the clock starts: caches and the peer rank are warm then


class Turns:
    """A training loop that stands still except in its turn.

    `boundary` is what the loop calls as each of its steps begins; a slice is timed from boundary
    to boundary.
    """

    def __init__(self, run: Callable[[Callable[[], None]], None]) -> None:
        self._run = run
        self._go, self._done = threading.Event(), threading.Event()
        self._seen = self._until = 0
        self._started = self._seconds = 0.0
        threading.Thread(target=self._live, daemon=True).start()

    def slice(self, steps: int) -> float:
        """Seconds per step over `steps` steps."""
        self._seen, self._until = 0, UNCOUNTED + steps
        self._go.set()
        self._done.wait()
        self._done.clear()
        return self._seconds / steps

    def boundary(self) -> None:
        self._seen += 1
        if self._seen == UNCOUNTED:
            self._started = time.perf_counter()
        if self._seen == self._until:
            self._seconds = time.perf_counter() - self._started
            self._done.set()
            self._wait()

    def _wait(self) -> None:
        self._go.wait()
        self._go.clear()

    def _live(self) -> None:
        self._wait()
        try:
            self._run(self.boundary)
            raise RuntimeError("the loop came to its end before its last slice")
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


@dataclass(frozen=True)
class Rank:
    """What a rank is asked to compare.

    Attributes:
        contestants: their names.
        answers: where the bench reads what came out.
    """

    contestants: list[str]
    answers: TextIO
    world: World
    directory: Path
    options: LanguageModelOptions
    task: LanguageModel

    @classmethod
    def begin(cls) -> Rank:
        """Read the command line, and meet the other ranks."""
        spec = json.loads(sys.argv[1])
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what contestants print goes to the log
        torch.set_num_threads(1)
        world = setup()
        directory = Path(spec["directory"])
        options = LanguageModelOptions(**spec["options"])
        task = LanguageModel(options, directory / TOKENS)
        return cls(spec["contestants"], answers, world, directory, options, task)

    def job(self, name: str, boundary: Callable[[], None]) -> Job:
        """What a contestant gets; with a folder of its own."""
        own = self.directory / f"{name}-{os.getpid()}"
        own.mkdir()
        return Job(self.task, self.options, self.world, own, boundary)

    def turns(self, name: str, loop: Callable[[Job], None]) -> Turns:
        """A contestant's loop, which waits for its first turn."""
        return Turns(lambda boundary: loop(self.job(name, boundary)))


def main() -> None:
    rank = Rank.begin()
    turns = {name: rank.turns(name, LOOPS[name]) for name in rank.contestants}
    for line in sys.stdin:
        name, steps = line.rsplit(maxsplit=1)
        print(turns[name].slice(int(steps)), file=rank.answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""One contestant of `gpu.py` in a process of its own: runs a slice for each number on its input.

Answers with a JSON line. Between slices it gives the memory of its activations back, so that
several contestants fit on one GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

import torch

from _gpu_loop import LOOPS
from _loops import Job
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import setup

UNCOUNTED = 2  # steps of a slice before the clock starts


class Clock:
    """What a loop calls as each of its steps begins; stands still between slices."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._seen = self._until = 0
        self._started = 0.0

    def wait(self) -> None:
        """Begin the next slice when it is asked for; the end of the input ends the process."""
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self._seen, self._until = 0, UNCOUNTED + int(line)

    def boundary(self) -> None:
        self._seen += 1
        if self._seen == UNCOUNTED:
            _settle()
            self._started = time.perf_counter()
        elif self._seen == self._until:
            _settle()
            seconds = (time.perf_counter() - self._started) / (self._until - UNCOUNTED)
            memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
            answer = {"seconds": seconds, "memory": memory}
            print(json.dumps(answer), file=self._answers, flush=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.wait()


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it does not outlive the bench, however that ends
    spec = json.loads(sys.argv[1])
    clock = Clock(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what the contestant prints goes to the log
    clock.wait()
    world = setup()
    directory, name = Path(spec["directory"]), spec["contestant"]
    options = LanguageModelOptions(**spec["options"])
    own = directory / name
    own.mkdir()
    task = LanguageModel(options, directory / TOKENS)
    LOOPS[name](Job(task, options, world, own, clock.boundary))


if __name__ == "__main__":
    main()

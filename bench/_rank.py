"""One rank of a `_ranks.Team`: runs a slice of the contestant that is named on its input.

Each contestant lives in a thread of its own, which stands still between its turns: in a hook behind
`optimizer.step()`, which every training loop calls once per step on every rank. One thread at a
time runs, so that contestants share a process and its luck without meeting. The hook counts steps
only to know when the turn is over; what is measured is read from `metrics.jsonl`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from _loops import LOOPS, Job
from rankup.launch.worker import keep_memory
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import World, setup

_BYTES_ACKED = 120  # its offset in struct tcp_info, linux/tcp.h; there since Linux 4.1


class Turns:
    """A training loop that stands still except in its turn."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._go, self._done = threading.Event(), threading.Event()
        self._left = 0
        threading.Thread(target=self._live, daemon=True).start()

    def take(self, steps: int) -> None:
        """Let the loop run until its optimizer has taken `steps` more steps."""
        self._left = steps
        self._go.set()
        self._done.wait()
        self._done.clear()

    def stepped(self, *_: Any) -> None:
        """Note that the optimizer has taken a step; the end of a turn waits here for the next."""
        self._left -= 1
        if self._left:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # several contestants share a GPU
        self._done.set()
        self._wait()

    def _wait(self) -> None:
        self._go.wait()
        self._go.clear()

    def _live(self) -> None:
        self._wait()
        try:
            self._run()
            raise RuntimeError("the loop came to its end before its last slice")
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


@dataclass(frozen=True)
class Held:
    """Bytes of one rank's parts of the model."""

    weights: int
    gradients: int
    optimizer: int


class PausedTask(LanguageModel):
    """The recipe's task, whose optimizer pauses the loop between its turns."""

    def __init__(
        self, options: LanguageModelOptions, directory: Path, stepped: Callable[..., None]
    ) -> None:
        super().__init__(options, directory)
        self._stepped = stepped
        self._built: tuple[nn.Module, torch.optim.Optimizer] | None = None

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model)
        optimizer.register_step_post_hook(self._stepped)
        self._built = model, optimizer
        return optimizer

    def held(self) -> Held:
        """Return what lies on this rank once a step has been taken."""
        assert self._built is not None
        model, optimizer = self._built
        parameters = list(model.parameters())
        state = [value for values in optimizer.state.values() for value in values.values()]
        return Held(
            sum(_bytes(p) for p in parameters),
            sum(_bytes(p) for p in parameters if p.requires_grad),
            sum(_bytes(value) for value in state if isinstance(value, torch.Tensor)),
        )


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


class Contestant:
    """A loop, its task, and its turns on this rank."""

    def __init__(
        self, name: str, options: LanguageModelOptions, world: World, directory: Path, runs: Path
    ) -> None:
        self._name, self._options, self._world, self._runs = name, options, world, runs
        self._turns = Turns(self._run)
        self._task = PausedTask(options, directory / TOKENS, self._turns.stepped)

    def slice(self, steps: int) -> dict[str, Any]:
        """Run a slice; return bytes sent, seconds of the processor and page faults per step, and
        bytes held."""
        before, clock, faults = sent(), time.process_time(), page_faults()
        self._turns.take(steps)
        spent = {"sent": sent() - before, "cpu": time.process_time() - clock}
        spent["faults"] = page_faults() - faults
        return {n: value / steps for n, value in spent.items()} | asdict(self._task.held())

    def _run(self) -> None:
        own = self._runs / self._name
        own.mkdir(exist_ok=True)
        LOOPS[self._name](Job(self._task, self._options, self._world, own))


def sent() -> int:
    """Return the bytes that this process's TCP connections have delivered so far, gloo's too."""
    total = 0
    for place in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own, closed meanwhile
            if not place.is_socket():
                continue
            with socket.socket(fileno=os.dup(int(place.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("=Q", info, _BYTES_ACKED)[0]
    return total


def page_faults() -> int:
    """Return how often the kernel has given this process a page of memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def die_with_parent() -> None:
    """Ask Linux to kill this process when the bench ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    die_with_parent()
    spec = json.loads(sys.argv[-1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what contestants print goes to the log
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    if spec["keep"]:
        keep_memory()
    world = setup()
    options = LanguageModelOptions(**spec["options"])
    places = Path(spec["directory"]), Path(spec["runs"])
    contestants = {name: Contestant(name, options, world, *places) for name in spec["contestants"]}
    for line in sys.stdin:
        name, steps = line.split("\t")
        print(json.dumps(contestants[name].slice(int(steps))), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

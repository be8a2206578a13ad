"""One rank of `lowcomm.py`: a run of the language model, with sleeps for what is slow.

The spec on its command line names the options, the folder, and what is slow. It leaves what every
run leaves, and `stamps-RANK.json`: when each micro-batch was done, and what had been sent by then.

Computing: each micro-batch of a training step sleeps before its forward. Network: each rank has one
line, on which its messages go one after the other in bytes / bandwidth seconds, beside whatever the
rank computes meanwhile. A sum counts with what a ring sends of it. All of it is put over
torch.distributed from outside: the strategies run as they are.
"""

# No postponed annotations here: DDP checks those of its communication hook as objects.
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from _rank import die_with_parent, sent
from rankup.parallel.build import Built
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import setup
from rankup.train import loop
from rankup.train.task import Batch


class SlowTask(LanguageModel):
    """The recipe's task on a slow computer.

    Args:
        seconds: that each micro-batch of a training step sleeps.
        done: called with each loss that is trained on.
    """

    def __init__(
        self,
        options: LanguageModelOptions,
        directory: Any,
        seconds: float,
        done: Callable[[], None],
    ) -> None:
        super().__init__(options, directory)
        self._seconds, self._done = seconds, done

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled() and self._seconds:
            time.sleep(self._seconds)
        loss = super().loss(model, batch)
        if torch.is_grad_enabled():
            self._done()
        return loss


class Line:
    """A line of `bandwidth` bytes/s, on which messages wait for those before them."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._free = 0.0
        self._lock = threading.Lock()

    def until(self, size: float) -> float:
        """Return when a message handed over now has passed, by `time.monotonic`."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._bandwidth
            return self._free


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


class _Work:
    """A collective under way that is done when the line has carried it as well."""

    def __init__(self, work: dist.Work, until: float) -> None:
        self._work, self._until = work, until

    def wait(self) -> None:
        self._work.wait()
        sleep_until(self._until)


def slow_network(bandwidth: float, world_size: int) -> None:
    """Delay what the strategies call in torch.distributed in this process."""
    out = Line(bandwidth)
    ring = (world_size - 1) / world_size

    def slowed(name: str, share: float, of: int) -> None:
        """Argument number `of` is what each rank has; `share` of its bytes go to others."""
        collective = getattr(dist, name)

        def call(*args: Any, async_op: bool = False, **named: Any) -> _Work | None:
            until = out.until(share * args[of].nbytes)
            work = _Work(collective(*args, async_op=True, **named), until)
            if async_op:
                return work
            work.wait()
            return None

        setattr(dist, name, call)

    slowed("all_reduce", 2 * ring, 0)
    _slow_buckets()


def _slow_buckets() -> None:
    """Let DDP, which sums its buckets in C++, sum them by a hook beside the backward."""
    start = loop.start

    def started(*args: Any) -> Built:
        built = start(*args)
        replica = built.replica
        if isinstance(replica, DistributedDataParallel) and not replica._comm_hooks:
            replica.register_comm_hook([], _sum_bucket)
        return built

    loop.start = started  # type: ignore[assignment]


def _sum_bucket(
    under_way: list[Any], bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over ranks; `under_way` has the buckets of this backward."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    future = torch.futures.Future[torch.Tensor]()
    under_way.append((dist.all_reduce(buffer, async_op=True), buffer, future))
    if bucket.is_last():
        for work, values, done in under_way:
            work.wait()
            done.set_result(values)
        under_way.clear()
    return future


def main() -> None:
    die_with_parent()
    spec: dict[str, Any] = json.loads(sys.argv[-1])
    if os.getppid() != spec["parent"]:  # it has ended while torch was imported
        return
    torch.set_num_threads(1)
    world = setup()
    stamps: list[tuple[float, int]] = []

    def done() -> None:
        stamps.append((time.time(), sent() if spec["count_bytes"] else 0))

    options = LanguageModelOptions(**spec["options"])
    seconds = spec["seconds"][world.rank]
    task = SlowTask(options, Path(spec["text"]) / TOKENS, seconds, done)
    if spec["bandwidth"]:
        slow_network(spec["bandwidth"], world.world_size)
    directory = Path(spec["directory"])
    loop.train(task, options, world, directory)
    (directory / f"stamps-{world.rank}.json").write_text(json.dumps(stamps))
    sys.stdout.flush()
    os._exit(0)  # threads of a process group may still hold connections


if __name__ == "__main__":
    main()

"""What a step of the training loop sends: each collective with its bytes, and those on the wire."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankup.runtime.world import World
from rankup.train.loop import Stop
from rankup.train.options import TrainOptions
from rankup.train.plan import Place, Plan
from rankup.train.start import start
from rankup.train.step import Trainer

from .tasks import SmallLM

LAYERS, DIM = 2, 64
# Torch's names for the same thing, in its two sets of operators.
KINDS = {
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
}
# They hand on what another one has sent, or wait for it.
_QUIET = ("wait_tensor", "_wrap_tensor_autograd", "recv_")
_BYTES_ACKED = 120  # its offset in struct tcp_info, linux/tcp.h; there since Linux 4.1


@dataclass(frozen=True)
class Sent:
    """A collective that a rank took part in, or a message to one other rank.

    Attributes:
        whole: bytes of the largest tensor in it: what an all-gather returns, what a reduce-scatter
            or an all-reduce takes, what is sent.
        ranks: how many take part.
    """

    kind: str
    whole: int
    ranks: int

    @property
    def bytes(self) -> float:
        """What each rank has to send, in a ring (Patarasuk and Yuan, 2009)."""
        if self.kind == "send":
            return self.whole
        once = self.whole * (self.ranks - 1) / self.ranks
        return 2 * once if self.kind == "all_reduce" else once


@dataclass(frozen=True)
class Traffic:
    """What one rank has sent in a step.

    Attributes:
        sent: in order.
        wire: bytes that its connections have delivered.
        parameters: numbers of each of the parameters, before they were cut.
    """

    sent: list[Sent]
    wire: int
    parameters: dict[str, int]

    @property
    def counts(self) -> Counter[str]:
        return Counter(sent.kind for sent in self.sent)

    def bytes(self, *kinds: str) -> float:
        return sum(sent.bytes for sent in self.sent if sent.kind in kinds or not kinds)


@dataclass
class Recorded(TorchDispatchMode):
    """Notes what is sent, as torch hands it to the backend; an unknown operator is an error."""

    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # first it becomes what it does with its parts
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self._note(str(func), args, result)
        return result

    def _note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if any(quiet in name for quiet in _QUIET):
            return
        if name.startswith("_c10d_functional"):  # tensors, …, name of the group
            ranks = dist.distributed_c10d._resolve_process_group(args[-1]).size()
            tensors = [args[0], result]
        else:  # tensors or lists of them, and somewhere the group
            boxed = [dist.ProcessGroup.unbox(arg) for arg in args if _is_group(arg)]
            ranks = boxed[0].size()
            tensors = [t for arg in args[:2] for t in (arg if isinstance(arg, list) else [arg])]
        kind = "send" if "send" in name else next(k for part, k in KINDS.items() if part in name)
        sizes = [tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor)]
        self.sent.append(Sent(kind, max(sizes), ranks))


def _is_group(arg: Any) -> bool:
    return isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type())


def take(world: World, options: TrainOptions) -> Traffic:
    """A step of a run; in the first two pipelines ask for shapes, and DDP arranges its buckets."""
    task = SmallLM(options, LAYERS)
    task.shape = replace(task.shape, dim=DIM)
    built = start(task, options, world)
    parameters = {name: p.numel() for name, p in built.whole.named_parameters()}
    optimizer = task.build_optimizer(built.model)
    trainer = Trainer(task, options, built, optimizer, 4)
    plan = Plan(len(task.train), options.global_batch, options.micro_batch, options.seed)
    first, second, third, fourth = plan.steps(Place(), 4)
    trainer.take(first, Stop())
    trainer.take(second, Stop())
    with Recorded() as recorded:
        trainer.take(third, Stop())
    before = delivered()
    trainer.take(fourth, Stop())  # by itself: what is recorded is slower, and need not be the same
    return Traffic(recorded.sent, delivered() - before, parameters)


def delivered() -> int:
    """Bytes that this process's TCP connections have delivered so far, gloo's among them."""
    dist.barrier()
    before, now = -1, _acknowledged()
    while before != now:  # the kernel may acknowledge a little later
        time.sleep(0.1)
        before, now = now, _acknowledged()
    return now


def _acknowledged() -> int:
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

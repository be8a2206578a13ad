"""The loops that `strategies.py` compares: rankup under each strategy, DDP and FSDP2 by hand.

What they do alike is said in `_loops.py`, whose DDP loops by hand serve here too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from _loops import LAST, Job, Lines, _Counted, by_hand, by_hand_overlapped
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.models.transformer import Transformer
from rankup.recipes.options import LanguageModelOptions
from rankup.train.loop import train


@dataclass(frozen=True)
class Held:
    """Bytes of one rank's parts of the model."""

    weights: int
    gradients: int
    optimizer: int


class Watched(LanguageModel):
    """The recipe's task, which tells the clock of each step and remembers what was built."""

    def __init__(
        self, options: LanguageModelOptions, directory: Path, boundary: Callable[[], None]
    ) -> None:
        super().__init__(options, directory)
        self.train = _Counted(self.train, boundary)
        self._built: tuple[nn.Module, torch.optim.Optimizer] | None = None

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model)
        self._built = model, optimizer
        return optimizer

    def held(self) -> Held:
        """What lies on this rank once a step has been taken."""
        assert self._built is not None
        model, optimizer = self._built
        parameters = list(model.parameters())
        state = [v for values in optimizer.state.values() for v in values.values()]
        return Held(
            sum(_bytes(p) for p in parameters),
            sum(_bytes(p) for p in parameters if p.requires_grad),
            sum(_bytes(value) for value in state if isinstance(value, torch.Tensor)),
        )


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def watched(job: Job) -> Watched:
    """The job's task for `rankup_loop`."""
    return Watched(job.options, Path(job.options.train or "").parent / "tokens", job.boundary)


def rankup_loop(job: Job, task: Watched) -> None:
    """`rankup.train.loop.train` as the recipe calls it, with the job's strategy."""
    options = replace(job.options, steps=LAST, valid_every=LAST, checkpoint_every=LAST)
    train(task, options, job.world, job.directory)


def _rankup(strategy: str) -> Callable[[Job], None]:
    def run(job: Job) -> None:
        job = replace(job, options=replace(job.options, strategy=strategy))
        rankup_loop(job, watched(job))

    return run


def fsdp_by_hand(job: Job) -> None:
    """FSDP2 as its tutorial has it: each block and the root sharded, gradients exchanged in every
    micro-batch; the loss is all-reduced where it is written."""
    _fsdp_by_hand(job, overlapped=False, once=False)


def fsdp_by_hand_overlapped(job: Job) -> None:
    """The same by someone who measured: the loss is all-reduced beside the last backward."""
    _fsdp_by_hand(job, overlapped=True, once=False)


def fsdp_by_hand_once(job: Job) -> None:
    """Gradients stay whole on each rank until the last micro-batch: fewer bytes, more memory."""
    _fsdp_by_hand(job, overlapped=True, once=True)


def _fsdp_by_hand(job: Job, overlapped: bool, once: bool) -> None:
    task, options, (_, rank, _, world_size) = job.task, job.options, job.world
    model = job.model()
    assert isinstance(model, Transformer)
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    parameters = list(model.parameters())
    optimizer = task.build_optimizer(model)
    lines = Lines(job)
    step = 0
    for epoch in itertools.count():
        order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(epoch))
        for samples in order.split(options.global_batch):
            job.boundary()
            step += 1
            lr = job.set_lr(optimizer, step)
            total, waited = torch.zeros(()), 0.0
            parts = samples.split(options.micro_batch)[rank::world_size]
            work = None
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                started = time.perf_counter()
                batch = task.train.batch(part)
                waited += time.perf_counter() - started
                model.set_is_last_backward(last)
                if once:
                    model.set_requires_gradient_sync(last)
                loss = task.loss(model, batch) / (job.tokens * job.per_rank)
                total += loss.detach()
                if last and overlapped:
                    work = dist.all_reduce(total, async_op=True)
                loss.backward()
            norm = clip_grad_norm_(parameters, options.clip)
            optimizer.step()
            optimizer.zero_grad()
            if work is not None:
                work.wait()
            else:
                dist.all_reduce(total)
            whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
            lines.write(step, epoch, total.item() / world_size, lr, whole.item(), waited)


LOOPS: dict[str, Callable[[Job], None]] = {
    "rankup, ddp": _rankup("ddp"),
    "DDP by hand": by_hand,
    "DDP by hand, overlapped": by_hand_overlapped,
    "rankup, fsdp": _rankup("fsdp"),
    "FSDP2 by hand": fsdp_by_hand,
    "FSDP2 by hand, overlapped": fsdp_by_hand_overlapped,
    "FSDP2 by hand, one exchange": fsdp_by_hand_once,
}

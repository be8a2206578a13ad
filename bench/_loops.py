"""The same training loop by rankup, by hand and by accelerate, and the same script with and without
rankup.

All train the model of the `language-model` recipe with its optimizer and read its micro-batches in
a shuffled order without replacement; set the learning rate of a warm-up and half a cosine, clip the
gradient, average the loss over the ranks and write one JSON line per step, flushed, with the keys
that rankup writes and one step late, as rankup does. accelerate and the script read through a
DataLoader without workers that fetches a micro-batch at once; the loop by hand indexes the text
directly. None validates or checkpoints in between.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import rankup
from rankup.recipes.language_model import LanguageModel, Windows
from rankup.recipes.models.transformer import Transformer
from rankup.recipes.options import LanguageModelOptions
from rankup.runtime.world import World
from rankup.train.loop import train
from rankup.train.metrics import peak_memory

LAST = 10_000_000  # a run so long that no slice meets its end


@dataclass(frozen=True)
class Job:
    """What a contestant works on. Its optimizer comes from `task.build_optimizer`, which pauses it
    between its turns; its records go to `directory`.
    """

    task: LanguageModel
    options: LanguageModelOptions
    world: World
    directory: Path

    @property
    def per_rank(self) -> int:
        """Micro-batches of a step on each rank."""
        return self.options.global_batch // self.options.micro_batch // self.world.world_size

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.options.micro_batch * self.options.seq_len

    def model(self) -> nn.Module:
        torch.manual_seed(self.options.seed)
        return self.task.build_model().to(self.world.device)

    def precision(self) -> torch.autocast:
        half = self.options.precision == "bf16"
        return torch.autocast(self.world.device.type, torch.bfloat16, enabled=half)

    def set_lr(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        peak, warmup = self.options.lr, self.options.warmup
        if step <= warmup:
            lr = peak * step / warmup
        else:
            progress = (step - warmup) / (LAST - warmup)
            lr = peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = lr
        return lr


class Lines:
    """Rank 0's `metrics.jsonl`, written as a careful script writes it.

    A step's numbers are read from their tensors when the next step has been taken, so that a GPU is
    never waited for; `time` is when the step itself ended, as in rankup's records.
    """

    def __init__(self, job: Job) -> None:
        self._file = (job.directory / "metrics.jsonl").open("a") if job.world.is_root else None
        self._device = job.world.device
        self._tokens = job.options.global_batch * job.options.seq_len
        self._before = time.perf_counter()
        self._unread: tuple[dict[str, Any], torch.Tensor, torch.Tensor] | None = None

    def step(
        self,
        step: int,
        epoch: int,
        loss: torch.Tensor,
        lr: float,
        norm: torch.Tensor,
        waited: float,
    ) -> None:
        """Note a step that has just ended, and write the one before it."""
        now = time.perf_counter()
        seconds, self._before = now - self._before, now
        if self._file is None:
            return
        if self._unread is not None:
            record, its_loss, its_norm = self._unread
            record |= {"loss": its_loss.item(), "grad_norm": its_norm.item()}
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        record = {
            "step": step,
            "epoch": epoch,
            "lr": lr,
            "tokens_per_s": round(self._tokens / seconds, 1),
            "seconds": round(seconds, 6),
            "data_wait": round(waited / seconds, 4),
            "peak_memory": peak_memory(self._device),
            "mfu": None,
            "time": round(time.time(), 3),
        }
        self._unread = record, loss, norm


def by_rankup(job: Job, strategy: str | None = None) -> None:
    """Run `rankup.train.loop.train` as the recipe calls it."""
    options = replace(job.options, steps=LAST, valid_every=LAST, checkpoint_every=LAST)
    if strategy is not None:
        options = replace(options, strategy=strategy)  # type: ignore[arg-type]
    train(job.task, options, job.world, job.directory)


class _Theirs(nn.Module):
    """transformers' model of the same sizes, as a module that returns logits."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.model = LlamaForCausalLM(LlamaConfig(**config, use_cache=False))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens).logits
        return logits


def by_hand(job: Job, sharded: bool = False, theirs: bool = False) -> None:
    """Train in plain PyTorch, as someone writes it who has measured.

    On several ranks by DDP, or with `sharded` by FSDP2 as its tutorial has it: each block and the
    root sharded, gradients exchanged in every micro-batch. The loss is all-reduced beside the last
    backward. On a GPU the next micro-batch is copied while it computes. With `theirs` the model is
    transformers' Llama.
    """
    options, (_, rank, device, world_size) = job.options, job.world
    several = world_size > 1
    model = job.model() if not theirs else _Theirs(job.options.llama.config())
    replica = _distributed(model, world_size, sharded)
    forward: Any = torch.compile(replica) if options.compile else replica
    parameters = list(model.parameters())
    optimizer = job.task.build_optimizer(model)
    lines = Lines(job)
    parts = _micro_batches(job.task.train, options, rank, world_size)
    batch = _on_device(next(parts), device)
    for step in itertools.count(1):
        lr = job.set_lr(optimizer, step)
        total, waited = torch.zeros((), device=device), 0.0
        work = None
        for index in range(job.per_rank):
            last = index == job.per_rank - 1
            with _exchange_at(replica, last):
                with job.precision():
                    loss = job.task.loss(forward, batch[1:]) / (job.tokens * job.per_rank)
                total += loss.detach()
                if several and last:
                    work = dist.all_reduce(total, async_op=True)
                epoch = batch[0]
                if device.type == "cuda":  # on its way while the GPU computes
                    batch = _on_device(next(parts), device)
                loss.backward()
            if device.type == "cpu":
                started = time.perf_counter()
                batch = _on_device(next(parts), device)
                waited += time.perf_counter() - started
        norm = clip_grad_norm_(parameters, options.clip)
        optimizer.step()
        optimizer.zero_grad()
        if work is not None:
            work.wait()
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        lines.step(step, epoch, total / world_size, lr, whole, waited)


def _distributed(model: nn.Module, world_size: int, sharded: bool) -> nn.Module:
    if world_size == 1:
        return model
    if not sharded:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    assert isinstance(model, Transformer)
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _exchange_at(replica: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Let DDP exchange gradients with the last micro-batch alone."""
    if isinstance(replica, FSDPModule):
        replica.set_is_last_backward(last)
    elif isinstance(replica, DistributedDataParallel) and not last:
        return replica.no_sync()
    return contextlib.nullcontext()


def _micro_batches(
    split: Windows, options: LanguageModelOptions, rank: int, world_size: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the epoch and the tensors of each micro-batch of this rank, without end."""
    for epoch in itertools.count():
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(epoch))
        for samples in order.split(options.global_batch):
            for part in samples.split(options.micro_batch)[rank::world_size]:
                yield (epoch, *split.batch(part))


def _on_device(batch: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    if device.type == "cpu":
        return batch
    epoch, *tensors = batch
    return epoch, *(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)


class _Rows(Dataset[Any]):
    """A split as a map-style data set whose batches are fetched at once."""

    def __init__(self, split: Windows) -> None:
        self._split = split

    def __len__(self) -> int:
        return len(self._split)

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        return self._split.batch(torch.tensor(indices))


def _as_it_is(batch: Any) -> Any:
    return batch


def _timed(loader: Any) -> Iterator[tuple[int, Any, float]]:
    """Yield epoch, batch and the seconds it was waited for, epoch after epoch."""
    for epoch in itertools.count():
        place = loader if hasattr(loader, "set_epoch") else getattr(loader, "sampler", None)
        if place is not None and hasattr(place, "set_epoch"):
            place.set_epoch(epoch)
        started = time.perf_counter()
        for batch in loader:
            yield epoch, batch, time.perf_counter() - started
            started = time.perf_counter()


def by_accelerate(job: Job) -> None:
    """Train by Hugging Face accelerate with its gradient accumulation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.per_rank)
    model = job.model()
    rows = DataLoader(
        _Rows(job.task.train), job.options.micro_batch, shuffle=True, collate_fn=_as_it_is
    )
    model, optimizer, loader = accelerator.prepare(model, job.task.build_optimizer(model), rows)
    lines = Lines(job)
    batches = _timed(loader)
    for step in itertools.count(1):
        lr = job.set_lr(optimizer, step)
        total, waits = torch.zeros(()), 0.0
        for _ in range(job.per_rank):
            epoch, batch, waited = next(batches)
            waits += waited
            with accelerator.accumulate(model):
                loss = job.task.loss(model, tuple(batch)) / job.tokens
                total += loss.detach()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), job.options.clip)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(total, "mean") / job.per_rank
        lines.step(step, epoch, mean, lr, norm, waits)


def script(job: Job, by_hand: bool) -> None:
    """Train as a user's script does: a DataLoader, a wrapped model, one batch per step.

    With rankup the script shards its loader, wraps its model, and has the loss of the whole batch
    from its backward; by hand it takes a DistributedSampler and DistributedDataParallel as their
    documentation has it, and logs the loss of rank 0's part.
    """
    rows, size = _Rows(job.task.train), job.options.global_batch
    model: nn.Module = job.model()
    loader: Any
    if by_hand:
        sampler: DistributedSampler[Any] = DistributedSampler(rows)
        part = size // job.world.world_size
        loader = DataLoader(rows, part, sampler=sampler, collate_fn=_as_it_is)
        model = DistributedDataParallel(model)
    else:
        whole = DataLoader(rows, size, shuffle=True, collate_fn=_as_it_is)
        loader = rankup.shard(whole)
        model = rankup.wrap(model)
    optimizer = job.task.build_optimizer(model)
    lines = Lines(job)
    for step, (epoch, batch, waited) in enumerate(_timed(loader), 1):
        lr = job.set_lr(optimizer, step)
        with torch.profiler.record_function("script: backward"):
            loss = job.task.loss(model, batch) / batch[1].numel()
            if by_hand:
                loss.backward()
            else:
                rankup.backward(loss)
        norm = clip_grad_norm_(model.parameters(), job.options.clip)
        optimizer.step()
        optimizer.zero_grad()
        lines.step(step, epoch, loss.detach(), lr, norm, waited)


LOOPS: dict[str, Callable[[Job], None]] = {
    "rankup": by_rankup,
    "by hand": by_hand,
    "transformers by hand": partial(by_hand, theirs=True),
    "transformers by hand, memory kept": partial(by_hand, theirs=True),
    "accelerate": by_accelerate,
    "rankup, fsdp": partial(by_rankup, strategy="fsdp"),
    "FSDP2 by hand": partial(by_hand, sharded=True),
    "shard and wrap": partial(script, by_hand=False),
    "DistributedDataParallel": partial(script, by_hand=True),
}

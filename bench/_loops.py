"""The same training loop by rankup, by hand, and by the peers.

All train the model of the `language-model` recipe with its optimizer and read its micro-batches in
a shuffled order without replacement; set the learning rate of a warm-up and half a cosine, clip the
gradient, average the loss over the ranks and write one JSON line per step, flushed, with the keys
that rankup writes. The peers read through a DataLoader without workers that fetches a micro-batch
at once; the loops by hand index the text directly. None validates or checkpoints in between.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

from rankup.recipes.language_model import LanguageModel, Windows
from rankup.recipes.options import LanguageModelOptions
from rankup.runtime.world import World
from rankup.train.loop import train

LAST = 10_000_000  # a run so long that no slice meets its end


@dataclass(frozen=True)
class Job:
    """What a contestant works on. It calls `boundary()` as each of its steps begins."""

    task: LanguageModel
    options: LanguageModelOptions
    world: World
    directory: Path
    boundary: Callable[[], None]

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
        return self.task.build_model()

    def loader(self) -> DataLoader[Any]:
        return DataLoader(
            _Rows(self.task.train), self.options.micro_batch, shuffle=True, collate_fn=_as_it_is
        )

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
    """Rank 0's `metrics.jsonl`, written as a careful script writes it."""

    def __init__(self, job: Job) -> None:
        self._file = (job.directory / "metrics.jsonl").open("a") if job.world.is_root else None
        self._tokens = job.options.global_batch * job.options.seq_len
        self._before = time.perf_counter()

    def write(
        self, step: int, epoch: int, loss: float, lr: float, norm: float, waited: float
    ) -> None:
        now = time.perf_counter()
        seconds, self._before = now - self._before, now
        if self._file is None:
            return
        record = {
            "step": step,
            "epoch": epoch,
            "loss": loss,
            "lr": lr,
            "tokens_per_s": round(self._tokens / seconds, 1),
            "data_wait": round(waited / seconds, 4),
            "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "mfu": None,
            "time": round(time.time(), 3),
            "grad_norm": norm,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


class _Counted(Windows):
    """The training text, telling the clock of each step: the loop asks once for its targets."""

    def __init__(self, split: Windows, boundary: Callable[[], None]) -> None:
        super().__init__(split.tokens, split.seq_len)
        self._boundary = boundary

    def count(self, samples: torch.Tensor) -> int:
        self._boundary()
        return super().count(samples)


def rankup(job: Job) -> None:
    """`rankup.train.loop.train` as the recipe calls it."""
    task = LanguageModel(job.options, Path(job.options.train).parent / "tokens")
    task.train = _Counted(task.train, job.boundary)
    options = replace(job.options, steps=LAST, valid_every=LAST, checkpoint_every=LAST)
    train(task, options, job.world, job.directory)


def by_hand(job: Job) -> None:
    """Plain PyTorch, DDP on several ranks; the loss is all-reduced where it is written."""
    _by_hand(job, overlapped=False)


def by_hand_overlapped(job: Job) -> None:
    """The same by someone who measured: the loss is all-reduced beside the last backward."""
    _by_hand(job, overlapped=True)


def _by_hand(job: Job, overlapped: bool) -> None:
    task, options, (_, rank, _, world_size) = job.task, job.options, job.world
    model = job.model()
    several = world_size > 1
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True) if several else model
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
            total = torch.zeros(())
            waited = 0.0
            parts = samples.split(options.micro_batch)[rank::world_size]
            work = None
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                started = time.perf_counter()
                batch = task.train.batch(part)
                waited += time.perf_counter() - started
                with replica.no_sync() if several and not last else contextlib.nullcontext():
                    loss = task.loss(replica, batch) / (job.tokens * job.per_rank)
                    total += loss.detach()
                    if several and last and overlapped:
                        work = dist.all_reduce(total, async_op=True)
                    loss.backward()
            norm = clip_grad_norm_(parameters, options.clip)
            optimizer.step()
            optimizer.zero_grad()
            if work is not None:
                work.wait()
            elif several:
                dist.all_reduce(total)
            lines.write(step, epoch, total.item() / world_size, lr, norm.item(), waited)


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


def _timed(loader: Any) -> Iterator[tuple[Any, float]]:
    """Batches of one epoch after another, each with the seconds it was waited for."""
    for epoch in itertools.count():
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        elif hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(epoch)
        started = time.perf_counter()
        for batch in loader:
            yield (epoch, *batch), time.perf_counter() - started
            started = time.perf_counter()


def accelerate(job: Job) -> None:
    """Hugging Face accelerate with its gradient accumulation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.per_rank)
    model = job.model()
    model, optimizer, loader = accelerator.prepare(
        model, job.task.build_optimizer(model), job.loader()
    )
    lines = Lines(job)
    batches = _timed(loader)
    for step in itertools.count(1):
        job.boundary()
        lr = job.set_lr(optimizer, step)
        total, waits = torch.zeros(()), 0.0
        for _ in range(job.per_rank):
            (epoch, *batch), waited = next(batches)
            waits += waited
            with accelerator.accumulate(model):
                loss = job.task.loss(model, tuple(batch)) / job.tokens
                total += loss.detach()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), job.options.clip)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(total, "mean").item() / job.per_rank
        lines.write(step, epoch, mean, lr, norm.item(), waits)


def fabric(job: Job) -> None:
    """Lightning Fabric; gradients are exchanged with the last micro-batch."""
    from lightning.fabric import Fabric

    world_size = job.world.world_size
    strategy = "ddp" if world_size > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=world_size, strategy=strategy)
    fabric.launch()
    model = job.model()
    model, optimizer = fabric.setup(model, job.task.build_optimizer(model))
    lines = Lines(job)
    batches = _timed(fabric.setup_dataloaders(job.loader()))
    for step in itertools.count(1):
        job.boundary()
        lr = job.set_lr(optimizer, step)
        total, waits = torch.zeros(()), 0.0
        for index in range(job.per_rank):
            (epoch, *batch), waited = next(batches)
            waits += waited
            with fabric.no_backward_sync(model, enabled=index < job.per_rank - 1):
                loss = job.task.loss(model, tuple(batch)) / (job.tokens * job.per_rank)
                total += loss.detach()
                fabric.backward(loss)
        norm = fabric.clip_gradients(model, optimizer, max_norm=job.options.clip)
        optimizer.step()
        optimizer.zero_grad()
        mean = fabric.all_reduce(total, reduce_op="mean").item()
        lines.write(step, epoch, mean, lr, norm.item(), waits)


def lightning(job: Job) -> None:
    """Lightning Trainer with automatic optimization, its own bars, loggers and checkpoints off."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = job.model()
            self.lines = Lines(job)
            self.total, self.norm, self.lr = torch.zeros(()), torch.zeros(()), 0.0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return job.task.build_optimizer(self.model)

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            if index % job.per_rank == 0:
                job.boundary()
                self.total = torch.zeros(())
                self.lr = job.set_lr(self.optimizers().optimizer, self.global_step + 1)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = job.task.loss(self.model, tuple(batch)) / job.tokens
            self.total += loss.detach()
            return loss

        def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
            self.norm = clip_grad_norm_(self.model.parameters(), job.options.clip)

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            if (index + 1) % job.per_rank == 0:
                mean = self.trainer.strategy.reduce(self.total, reduce_op="mean").item()
                mean /= job.per_rank
                self.lines.write(
                    self.global_step, self.current_epoch, mean, self.lr, self.norm.item(), 0.0
                )

    several = job.world.world_size > 1
    trainer = Trainer(
        accelerator="cpu",
        devices=job.world.world_size,
        strategy="ddp" if several else "auto",
        max_epochs=-1,
        max_steps=LAST,
        accumulate_grad_batches=job.per_rank,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.directory,
    )
    trainer.fit(Module(), job.loader())


LOOPS: dict[str, Callable[[Job], None]] = {
    "rankup": rankup,
    "by hand": by_hand,
    "by hand, overlapped": by_hand_overlapped,
    "accelerate": accelerate,
    "Fabric": fabric,
    "Lightning Trainer": lightning,
}

"""The loops that `gpu.py` compares: rankup, and a training loop in the manner of nanoGPT.

The plain loop does what rankup's does: clipping, a cosine schedule, a JSON line per step whose
numbers are read one step late. Its model has the shape of the recipe's, written as one would for
one GPU: query, key and value from one product, the loss inside the compiled part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from _loops import LAST, Job, Lines, _Counted
from rankup.recipes.language_model import LanguageModel
from rankup.recipes.models.transformer import Shape
from rankup.train.loop import train

Batch = tuple[torch.Tensor, torch.Tensor]


class _Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, dim))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class PlainModel(nn.Module):
    """Tokens and targets -> the summed loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.dim)
        self.positions = nn.Embedding(shape.seq_len, shape.dim)
        self.blocks = nn.ModuleList(_Block(shape.dim, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def rankup(job: Job) -> None:
    """`rankup.train.loop.train` as the recipe calls it."""
    task = LanguageModel(job.options, Path(job.options.train or "").parent / "tokens")
    task.train = _Counted(task.train, job.boundary)
    options = replace(job.options, steps=LAST, valid_every=LAST, checkpoint_every=LAST)
    train(task, options, job.world, job.directory)


def plain(job: Job) -> None:
    """The plain loop and model."""
    torch.manual_seed(job.options.seed)
    with job.world.device:
        model = PlainModel(job.task.shape)
    forward = torch.compile(model) if job.options.compile else model
    _loop(job, model, lambda batch: forward(*batch))


def plain_with_our_model(job: Job) -> None:
    """The plain loop over the recipe's model and loss, to see where a difference comes from."""
    model = job.model().to(job.world.device)
    forward: Any = torch.compile(model) if job.options.compile else model
    _loop(job, model, lambda batch: job.task.loss(forward, batch))


def _loop(job: Job, model: nn.Module, loss_of: Callable[[Batch], torch.Tensor]) -> None:
    options, device = job.options, job.world.device
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=fused)
    batches, lines = _batches(job), Lines(job)
    batch = next(batches)
    before: tuple[int, float, torch.Tensor, torch.Tensor] | None = None
    for step in range(1, LAST):
        job.boundary()
        lr = job.set_lr(optimizer, step)
        total = torch.zeros((), device=device)
        for _ in range(job.per_rank):
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(batch) / (job.tokens * job.per_rank)
            batch = next(batches)  # on its way while the GPU computes
            total += loss.detach()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if before is not None:
            number, rate, its_loss, its_norm = before
            lines.write(number, 0, its_loss.item(), rate, its_norm.item(), 0.0)
        before = step, lr, total, norm


def _batches(job: Job) -> Iterator[Batch]:
    """Windows of the text that begin anywhere, copied to the GPU without waiting."""
    tokens, length, device = job.task.train.tokens, job.options.seq_len, job.world.device
    draw = np.random.default_rng(job.options.seed)
    steps = np.arange(length + 1)
    while True:
        starts = draw.integers(len(tokens) - length - 1, size=job.options.micro_batch)
        window = torch.from_numpy(tokens[starts[:, None] + steps].astype(np.int64))
        if device.type == "cuda":
            window = window.pin_memory().to(device, non_blocking=True)
        yield window[:, :-1], window[:, 1:]


LOOPS: dict[str, Callable[[Job], None]] = {
    "rankup": rankup,
    "plain loop": plain,
    "plain loop, our model": plain_with_our_model,
}

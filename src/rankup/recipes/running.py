"""A run on a rank with its last lines, and the loss of tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from ..runtime.world import World
from ..train.loop import train
from ..train.options import TrainOptions
from ..train.task import Task

IGNORED = -100  # a target that is not there: cross_entropy's own default
_WIDTH = 200
_AT_ONCE = 1 << 25  # logits that are in float32 at a time


def run(
    task: Task,
    options: TrainOptions,
    world: World,
    directory: Path,
    resume: bool,
    also: Callable[[float], str] = lambda loss: "",
) -> None:
    """Train on every rank, and print what the run came to.

    Args:
        also: what is said beside a loss.
    """
    outcome = train(task, options, world, directory, resume=resume)
    if world.is_root and outcome.finished:
        for name, loss in (("valid", outcome.valid_loss), ("test", outcome.test_loss)):
            if loss is None:
                continue
            found = {
                measure.removeprefix(f"{name}_"): value
                for measure, value in outcome.measures.items()
                if measure.startswith(f"{name}_")
            }
            measures = "".join(f", {measure} {value:.3f}" for measure, value in found.items())
            say(f"{name} loss {loss:.4f}{also(loss)}{measures}")


def say(*lines: str) -> None:
    """Print, each line cut to a width."""
    with contextlib.suppress(OSError):  # a reader that is gone does not fail the run
        for line in lines:
            print(line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…", flush=True)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Summed loss of logits (batch, length, vocabulary), of any precision, in float32.

    Of a large vocabulary it goes through some rows at a time, and again in the backward: beside the
    logits and their gradient there are never all of them, nor in float32.
    """
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    rows = max(1, _AT_ONCE // flat.shape[1])
    if len(flat) <= rows or isinstance(logits, DTensor):
        return _summed(flat, wanted)
    parts = [
        checkpoint(_summed, some, theirs, use_reentrant=False, preserve_rng_state=False)
        for some, theirs in zip(flat.split(rows), wanted.split(rows), strict=True)
    ]
    return torch.stack(parts).sum()


def _summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")


def compiled_cross_entropy() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the same in one kernel, which never has all logits in float32."""
    compiled = torch.compile(_summed)

    def summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        kernel = _summed if isinstance(logits, DTensor) else compiled
        return kernel(logits.flatten(0, 1), targets.flatten())

    return summed

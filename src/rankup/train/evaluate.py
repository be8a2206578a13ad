"""Exact evaluation: every sample once, at any number of samples and ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
import torch.distributed as dist

from ..parallel.build import Built
from ..runtime.collectives import all_reduce
from ..runtime.deadline import Deadline
from .ema import Average
from .plan import Feed, micro_batches, to_device
from .task import Batch, Named, Split


class Stopped(Exception):  # noqa: N818 - no error: somebody wished it
    """An evaluation was left because a rank was asked to stop; holds the sum of the wishes."""

    def __init__(self, wishes: float) -> None:
        super().__init__(wishes)
        self.wishes = wishes


Loss = Callable[[Any, Batch], torch.Tensor]
_ASK = 10  # micro-batches after which ranks that go through them together ask each other


def losses(
    name: str,
    split: Split | Named,
    loss: Loss,
    built: Built,
    micro_batch: int,
    stop: Deadline | None = None,
    average: Average | None = None,
) -> dict[str, float]:
    """Return the mean losses of a split as a line of the metrics has them: `valid_loss`.

    Those of its named parts end with their names (`valid_loss_web`), and those of the averaged
    weights with `_ema`. What has no samples has no loss.

    Raises:
        Stopped: on all ranks, when any was asked to stop before it was through.
    """
    parts = split.parts if isinstance(split, Named) else {"": split}

    def of_weights(end: str) -> dict[str, float]:
        values: dict[str, float] = {}
        total = count = 0.0
        for own, part in parts.items():
            value = evaluate(loss, part, built, micro_batch, stop)
            if value is None:
                continue
            values[f"{name}_loss{'_' * bool(own)}{own}{end}"] = value
            targets = part.count(torch.arange(len(part)))
            total, count = total + value * targets, count + targets
        if isinstance(split, Named):
            values = {f"{name}_loss{end}": total / count, **values}
        return values

    values = of_weights("")
    if average is not None:
        with average.in_place():
            values |= of_weights("_ema")
    return values


@torch.no_grad()
def evaluate(
    loss: Loss, split: Split, built: Built, micro_batch: int, stop: Deadline | None = None
) -> float | None:
    """Mean `loss` per valid target of `split`; None for an empty one.

    The samples are cut by position into micro-batches, and data rank r takes every data_size-th of
    them through the model without DDP. Sums and counts are reduced together once at the end. Where
    each rank holds the whole model no collective runs inside the loop, so ranks may have unequal
    numbers of micro-batches; where a forward is a collective, ranks that run out join with weight
    zero.

    Args:
        loss: the summed loss of a batch.

    Raises:
        Stopped: on all ranks, when any was asked to stop before it was through.
    """
    mesh = built.mesh
    device = mesh.world.device
    modes = [(module, module.training) for module in built.model.modules()]
    built.model.eval()
    total = torch.zeros(3, dtype=torch.float64, device=device)  # of losses, targets, wishes to stop
    groups = _groups(micro_batches(len(split), micro_batch), built)
    with closing(Feed(split)) as feed:
        feed.begin(_samples(positions) for group in groups for positions, _ in group)
        for number, group in enumerate(groups):
            wish = 0.0
            if stop is not None and (number % _ASK == 0 or not mesh.together):
                # Where a forward is a collective no rank may leave the others in it.
                wish = all_reduce(stop.wish, "max") if mesh.together else stop.wish
            if wish:
                total[2] = wish
                break
            samples = [_samples(positions) for positions, _ in group]
            batches = [to_device(feed.batch(part), device) for part in samples]
            values = built.losses(loss, batches)
            if built.counts:
                for value, part, (_, weight) in zip(values, samples, group, strict=True):
                    if weight:
                        total[0] += value.double()
                        total[1] += split.count(part) if built.counts_samples else 0
    for module, training in modes:  # a frozen part stays in its mode
        module.training = training
    if mesh.world.world_size > 1:
        dist.all_reduce(total)
    loss_sum, count, stopped = total.tolist()
    if stopped:
        raise Stopped(stopped)
    return loss_sum / count if count else None


def _samples(positions: range) -> torch.Tensor:
    return torch.arange(positions.start, positions.stop)


def _groups(parts: list[range], built: Built) -> list[list[tuple[range, bool]]]:
    """What this rank evaluates at a time, each part with whether it counts.

    A pipeline takes two micro-batches per stage at a time, so that its stages have work; what is
    short goes by itself.
    """
    mesh = built.mesh
    mine = parts[mesh.data_rank :: mesh.data_size]
    if not mesh.together:
        return [[(part, True)] for part in mine]
    if not parts:
        return []
    whole = [part for part in parts if len(part) == len(parts[0])]
    rounds = -(-len(whole) // mesh.data_size)
    own = [(part, True) for part in whole[mesh.data_rank :: mesh.data_size]]
    own += [(parts[0], False)] * (rounds - len(own))
    at_once = 2 * mesh.layout.pp if built.pipeline is not None else 1
    groups = [own[start : start + at_once] for start in range(0, len(own), at_once)]
    if len(whole) < len(parts):
        groups.append([(parts[-1], mesh.data_rank == 0)])
    return groups

"""What a script's source does not show and its run does: said once, on rank 0."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import default_collate, default_convert, get_worker_info

from .log import print_once


def say_batch_norm(models: Iterable[nn.Module], smallest: int, whole: int) -> None:
    """Say that batch norm sees parts of a batch, where models train that have it.

    Args:
        smallest: samples in the smallest part of a batch that a rank trains on.
        whole: samples of a batch.
    """
    layers = sum(
        isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm) and layer.training
        for model in models
        for layer in model.modules()
    )
    if layers:
        print_once(
            f"wrap: batch norm ({layers} layer{'s' * (layers > 1)}) takes its statistics "
            f"from each rank's part of a batch, the smallest of {smallest} "
            f"sample{'s' * (smallest > 1)}, where one GPU takes them from {whole}. For those of "
            "all ranks: `rankup port --sync-bn`, or on GPUs "
            "`torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` before wrap"
        )


def say_last_batch(last: int, parts: int) -> None:
    """Say that an epoch's last batch, of `last` samples, gives some of the ranks one sample."""
    print_once(
        f"shard: the last batch of an epoch has {last} samples for {parts} ranks, and "
        "leaves some of them one: batch norm refuses one value per channel, and `squeeze()` takes "
        "the dimension of the samples, too. Give the DataLoader drop_last=True or another batch "
        "size if the script does either"
    )


class CheckedCollate:
    """A loader's collate function, which says of its first batch whether it draws random numbers.

    Args:
        collate: the function.
        rank: of this process, of which rank 0 speaks; also in its workers.
    """

    def __init__(self, collate: Callable[[Any], Any], rank: int) -> None:
        self._collate, self._rank = collate, rank
        self._checked = bool(rank)

    def __call__(self, samples: Any) -> Any:
        if self._checked:
            return self._collate(samples)
        self._checked = True
        before = _drawn_from()
        batch = self._collate(samples)
        after = _drawn_from()
        worker = get_worker_info()
        drawn = [name for name, state in before.items() if after[name] != state]
        if drawn and (worker is None or worker.id == 0):
            # A worker that was started anew is in no process group, and would not know its rank.
            print_once(
                f"shard: the collate function draws random numbers ({', '.join(drawn)}), "
                "each rank its own. That is right for what belongs to a sample, such as a mask; "
                "what is drawn once for the whole batch, such as a size, differs between the parts "
                "of one batch: draw that in the loop, by rankup.broadcast(...)"
            )
        return batch


def checked(collate: Callable[[Any], Any], rank: int) -> Callable[[Any], Any]:
    """Return the function with a check; torch's own ones as they are, which draw nothing."""
    if collate in (default_collate, default_convert):
        return collate
    return CheckedCollate(collate, rank)


def _drawn_from() -> dict[str, Any]:
    """What tells whether a generator was drawn from meanwhile."""
    states = {"random": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    if (numpy := sys.modules.get("numpy")) is not None:
        _, key, position, *_ = numpy.random.get_state()
        states["numpy.random"] = (key.tobytes(), position)
    return states

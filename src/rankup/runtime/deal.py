"""What `shard` dealt this rank, for `wrap` to weigh its gradient with.

The script hands neither to the other, so the two meet here: like the process group, the ledger
belongs to the process.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from torch import nn


@dataclass
class Ledger:
    """This rank's share of the batch that the next backward belongs to.

    Attributes:
        samples: samples dealt to this rank and to all ranks together; None before the first batch.
        units: what `count` was given since the last backward; None when it was not called.
        models: the wrapped models alive, whose train/eval mode says what a batch is for.
    """

    samples: tuple[int, int] | None = None
    units: float | None = None
    models: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)


LEDGER = Ledger()


def count(units: float) -> None:
    """Say how many units the next backward's loss was averaged over, where they are not samples.

    For a loss that is a mean over valid tokens, `rankup.count(n_tokens)` before `loss.backward()`
    on every rank makes the gradient the exact mean over the tokens of all ranks. Calls before one
    backward add up.

    Raises:
        ValueError: a negative or non-finite number.
    """
    units = float(units)
    if not 0 <= units < float("inf"):
        raise ValueError(f"count needs a finite number of units >= 0, got {units}")
    LEDGER.units = (LEDGER.units or 0.0) + units

"""What `shard` dealt this rank, for `wrap` and `parallelize` to weigh its gradient with.

The script hands neither to the other, so they meet here: like the process group, the ledger
belongs to the process.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Place:
    """Which part of each batch this rank computes.

    Attributes:
        rank, size: this one among the parts that a batch is dealt in.
        together: a forward is a collective, so no rank may have a batch less than another.
    """

    rank: int
    size: int
    together: bool = False


@dataclass
class Ledger:
    """This rank's share of the batch that the next backward belongs to.

    Attributes:
        samples: samples dealt to this rank and to all ranks together; None before the first batch.
        units: what `count` was given since the last backward; None when it was not called.
        counted: what `count` was given for the present batch, also after the backward took it.
        dealt: samples dealt of the last batch of any loop, an evaluation's too.
        log: number and samples of each batch that this rank had in the last loop over a loader.
        shared: the backward that took units, as torch numbers them, and what it took.
        models: the wrapped models alive, whose train/eval mode says what a batch is for.
        taken: the place that `parallelize` has given this rank, and the process group it is for.
    """

    samples: tuple[int, int] | None = None
    units: float | None = None
    counted: float | None = None
    dealt: tuple[int, int] | None = None
    log: list[tuple[int, int]] = field(default_factory=list)
    shared: tuple[int, float | None] = (-1, None)
    models: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)
    taken: tuple[weakref.ref[Any], Place] | None = None

    def place(self) -> Place:
        """The part of a batch that is this rank's: by its rank in the world, or as given."""
        given = self._given()
        if given is not None:
            return given
        return Place(dist.get_rank(), dist.get_world_size())

    def take(self, place: Place) -> None:
        """From now on, deal this rank that part.

        Raises:
            ValueError: a model that is still there is split over the ranks in another way.
        """
        before = self._given()
        if before is not None:
            if (before.rank, before.size) != (place.rank, place.size):
                gc.collect()  # a model that is gone may only look as if it were there
                if self.models:
                    raise ValueError(
                        f"two models of one script must share the data alike: one was dealt in "
                        f"{before.size} parts, this one would be in {place.size}; give both the "
                        f"same tp and pp"
                    )
            elif before.together and self.models:
                place = before
        self.taken = (weakref.ref(dist.group.WORLD), place)

    def current(self) -> tuple[int, int] | None:
        """Samples of the batch at hand: the one trained on, or in an evaluation that one's."""
        return (self.samples or self.dealt) if torch.is_grad_enabled() else self.dealt

    def weight(self) -> float:
        """How much this rank's mean over its part of the batch counts among the ranks'."""
        current = self.current()
        if current is not None and current[0] == 0:
            return 0.0
        if self.counted is not None and torch.is_grad_enabled():
            return self.counted
        return float(current[0]) if current is not None else 1.0

    def device(self) -> torch.device:
        """Where this rank computes."""
        return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    def take_units(self, backward: int) -> float | None:
        """The units of a backward: used up by it, the same for every model that it reaches."""
        if backward == -1 or self.shared[0] != backward:  # -1: torch has no number for it
            self.shared, self.units = (backward, self.units), None
        return self.shared[1]

    def idle(self, backward: int) -> bool:
        """Whether this rank's part of a backward counts for nothing."""
        units = self.shared[1] if self.shared[0] == backward else self.units
        return units == 0 or (self.samples is not None and self.samples[0] == 0)

    def _given(self) -> Place | None:
        """What was taken, unless it was in a process group that is gone."""
        if self.taken is None or self.taken[0]() is not dist.group.WORLD:
            return None
        return self.taken[1]


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
    LEDGER.units = LEDGER.counted = (LEDGER.units or 0.0) + units

"""The search over layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .estimate import Estimate
from .layout import Precision
from .machine import Machine
from .shape import Shape

STOPS_PAYING = 1.10  # cost per token, over that of the cheapest number of GPUs


@dataclass(frozen=True)
class Found:
    """The layouts of one number of GPUs.

    Attributes:
        fitting: the ones that fit, fastest first.
        closest: of the others the one that needs least memory; None where all fit.
    """

    gpus: int
    fitting: tuple[Estimate, ...]
    closest: Estimate | None

    @property
    def best(self) -> Estimate | None:
        return self.fitting[0] if self.fitting else None


def layouts(
    shape: Shape,
    machine: Machine,
    gpus: int,
    global_batch: int,
    *,
    precision: Precision = "bf16",
    micro_batch: int | None = None,
) -> Found:
    """Return every layout of `gpus` GPUs that rankup can run, fastest first.

    Args:
        global_batch: sequences per optimizer step.
        micro_batch: only this one; None tries the powers of two.
    """
    raise NotImplementedError


def fewest_gpus(
    shape: Shape, machine: Machine, global_batch: int, *, precision: Precision = "bf16"
) -> Found | None:
    """Return the smallest number of GPUs (1, parts of a node, whole nodes) on which a layout fits;
    None where none up to `global_batch` data-parallel ranks does."""
    raise NotImplementedError


def where_it_stops_paying(found: Sequence[Found]) -> Found | None:
    """Return the first number of GPUs whose cost per token is 10 % above the cheapest; None where
    adding GPUs still pays."""
    priced = [(one.best.cost_per_token, one) for one in found if one.best is not None]
    if not priced:
        return None
    least = min(cost for cost, _ in priced)
    cheapest = next(one.gpus for cost, one in priced if cost == least)
    dear = [one for cost, one in priced if one.gpus > cheapest and cost > STOPS_PAYING * least]
    return min(dear, key=lambda one: one.gpus, default=None)

"""The prediction: terms of a step, memory of the most loaded rank, what limits, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout
from .machine import GIB, Machine
from .shape import Shape

RISKY = 0.08  # of the memory: below this head room a layout may run out of it


@dataclass(frozen=True)
class Term:
    """One part of a step's time.

    Attributes:
        name: what takes the time: "matmul", "attention", "bubble", ...
        seconds: of it in a step, only what is exposed.
        formula: how it is computed, for `--explain`.
        source: where the formula and its constants come from.
        detail: the numbers that went in.
    """

    name: str
    seconds: float
    formula: str = ""
    source: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Estimate:
    """The prediction for one layout.

    Attributes:
        seconds: of an optimizer step.
        mfu: model FLOPs (full attention, no recomputation) over the peak, 0 to 1.
        memory: name and bytes of each part, on the most loaded rank; `memory_total` is their sum.
        band: relative error of `seconds` that four of five measured set-ups of this class stayed
            within, as measured on sources left out of the fit: 0.12 is ± 12 %.
        memory_band: the same for `memory_total`.
        limit: the word for what takes most of the time that computing does not.
        advice: the one change that would help, a sentence.
    """

    shape: Shape
    layout: Layout
    machine: Machine
    seconds: float
    terms: tuple[Term, ...]
    tokens_per_second_per_gpu: float
    mfu: float
    memory: tuple[tuple[str, float], ...]
    memory_total: float
    band: float
    memory_band: float
    limit: str
    advice: str

    @property
    def capacity(self) -> float:
        """Bytes of one GPU."""
        return self.machine.memory_gib * GIB

    @property
    def head_room(self) -> float:
        """Share of the memory that stays free; negative where it does not fit."""
        return 1 - self.memory_total / self.capacity

    @property
    def fits(self) -> bool:
        return self.head_room >= 0

    @property
    def risky(self) -> bool:
        return 0 <= self.head_room < RISKY

    @property
    def cost_per_token(self) -> float:
        """In `machine.unit` per token."""
        per_hour = 3600 * self.tokens_per_second_per_gpu
        return self.machine.core_hours_per_gpu_hour / per_hour


def estimate(shape: Shape, layout: Layout, machine: Machine) -> Estimate:
    """Predict time and memory of a step."""
    raise NotImplementedError

"""The search over layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from typing import get_args

from ..parallel.choices import VIRTUAL, stages_per_rank
from .estimate import Estimate, estimate
from .framework import FRAMEWORKS
from .layout import Layout, Precision, Recompute
from .machine import GIB, Machine
from .memory import memory
from .shape import Shape

RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
STOPS_PAYING = 1.10  # cost per token, over that of the cheapest number of GPUs


@dataclass(frozen=True)
class Layouts:
    """The layouts of one number of GPUs.

    Attributes:
        fitting: the ones that fit, fastest first, those with little head room last.
        closest: of the others the one that needs least memory; None where all fit.
        ruled_out: options of a recipe that no layout goes with, where that leaves none.
    """

    gpus: int
    fitting: tuple[Estimate, ...]
    closest: Estimate | None
    ruled_out: str = ""

    @property
    def best(self) -> Estimate | None:
        return self.fitting[0] if self.fitting else None


@dataclass(frozen=True)
class Search:
    """What is searched for a model, and what of its layout is given.

    Attributes:
        global_batch: sequences per optimizer step.
        micro_batch: only this one; None tries the powers of two.
        schedule: of pipelines, only this one; None tries 1f1b and interleaved.
        cp: ranks that share each sequence.
        shard: a number of shards to try beside the usual ones.
        pipelines: whether the model may be cut into stages, as that of the recipe.
        once: whether gradients may be added up once per step (ZeRO-1), as the recipe's loop does.
        framework: whose habits to predict; see `framework.FRAMEWORKS`.
    """

    shape: Shape
    global_batch: int
    precision: Precision = "bf16"
    micro_batch: int | None = None
    schedule: str | None = None
    cp: int = 1
    shard: int | None = None
    pipelines: bool = True
    once: bool = True
    framework: str = "rankup"

    def layouts(self, machine: Machine, gpus: int) -> Layouts:
        """Return every layout of `gpus` GPUs that rankup can run."""
        capacity, habits = machine.memory_gib * GIB, FRAMEWORKS[self.framework]
        fitting: list[Estimate] = []
        least, closest = math.inf, None
        for growing in self._meshes(machine, gpus):
            for variants in growing:
                needs = [
                    sum(part for _, part in memory(self.shape, layout, habits))
                    for layout in variants
                ]
                fitting += [
                    estimate(self.shape, layout, machine)
                    for layout, need in zip(variants, needs, strict=True)
                    if need <= capacity
                ]
                if min(needs) > capacity:  # larger micro-batches take more
                    if min(needs) < least:
                        least, closest = min(needs), variants[needs.index(min(needs))]
                    break
        fitting.sort(key=lambda fit: (fit.risky, fit.seconds))
        nearest = None if closest is None else estimate(self.shape, closest, machine)
        return Layouts(gpus, tuple(fitting), nearest)

    def candidates(self, machine: Machine, gpus: int) -> Iterator[Layout]:
        """Yield the layouts that `rankup run` accepts: tensor parallel within a node and by whole
        heads, stages of whole layers, whole micro-batches."""
        for growing in self._meshes(machine, gpus):
            for variants in growing:
                yield from variants

    def fewest_gpus(self, machine: Machine) -> int | None:
        """Return the smallest number of GPUs (powers of two, then of nodes) on which a layout fits;
        None where none of up to 64 per sequence of the batch does."""
        for gpus in islice(numbers_of_gpus(machine), 17):
            if gpus > 64 * self.cp * self.global_batch:
                return None
            if self.layouts(machine, gpus).fitting:
                return gpus
        return None

    def _meshes(self, machine: Machine, gpus: int) -> Iterator[Iterator[list[Layout]]]:
        """Yield for each mesh its micro-batches, growing, with all that they leave open."""
        shape, cp, node = self.shape, self.cp, machine.gpus_per_node
        for tp in _divisors(min(gpus, node)):
            if node % tp or gpus % (tp * cp) or shape.heads % tp or shape.kv_heads % tp:
                continue
            if cp > 1 and shape.seq % (2 * cp * tp):
                continue
            for pp in _divisors(gpus // (tp * cp)) if cp == 1 and self.pipelines else [1]:
                data = gpus // (tp * cp * pp)
                if pp > shape.layers or self.global_batch % data:
                    continue
                near = math.gcd(data, max(1, node // (tp * cp)))
                asked = self.shard if self.shard and data % self.shard == 0 else data
                for shard in sorted({1, near, asked, data}):
                    mesh = Layout(
                        gpus=gpus,
                        strategy=strategy_of(tp, pp, shard * cp, data * cp),
                        dp_replicate=data // shard,
                        dp_shard=shard,
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        global_batch=self.global_batch,
                        precision=self.precision,
                        sequence_parallel=tp > 1,
                        zero=0 if shard * cp == 1 else 3,
                        framework=self.framework,
                    )
                    yield self._variants(mesh)

    def _variants(self, mesh: Layout) -> Iterator[list[Layout]]:
        each = mesh.global_batch // mesh.data
        given = self.micro_batch
        for micro in [given] if given else [2**k for k in range(each.bit_length())]:
            if each % micro:
                continue
            zeros: tuple[int, ...] = (mesh.zero,)
            if mesh.zero == 3 and mesh.pp == 1:
                # To add gradients up once a step says nothing where there is one micro-batch.
                zeros = (3, 2, 1) if self.once and micro < each else (3, 2)
            variants = [
                replace(mesh, micro_batch=micro, recompute=how, zero=zero)
                for zero in zeros
                for how in RECOMPUTE
            ]
            if mesh.pp > 1 and self.schedule is not None:
                parts, schedule = stages_per_rank(self.schedule), self.schedule
                variants = [replace(v, schedule=schedule, interleave=parts) for v in variants]
            elif mesh.pp * VIRTUAL <= self.shape.layers and each // micro >= mesh.pp > 1:
                variants += [
                    replace(layout, schedule="interleaved", interleave=VIRTUAL)
                    for layout in variants
                ]
            yield variants


def strategy_of(tp: int, pp: int, shard: int, data: int) -> str:
    """Return rankup's word for the sizes."""
    if tp > 1 and pp > 1:
        return "3d"
    if pp > 1:
        return "pp"
    if tp > 1:
        return "tp"
    if shard == 1:
        return "ddp"
    return "fsdp" if shard == data else "hsdp"


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def numbers_of_gpus(machine: Machine) -> Iterator[int]:
    """Yield powers of two within a node, then those of nodes."""
    node = machine.gpus_per_node
    yield from takewhile(lambda gpus: gpus < node, (2**k for k in count()))
    yield from (node * 2**k for k in count())


def where_it_stops_paying(
    found: Sequence[Layouts], token_cost: Callable[[Estimate], float]
) -> Layouts | None:
    """Return the first number of GPUs whose cost per token is 10 % above the cheapest; None where
    adding GPUs still pays."""
    priced = [(token_cost(layouts.best), layouts) for layouts in found if layouts.best is not None]
    if not priced:
        return None
    least = min(cost for cost, _ in priced)
    cheapest = next(layouts.gpus for cost, layouts in priced if cost == least)
    dear = [
        layouts
        for cost, layouts in priced
        if layouts.gpus > cheapest and cost > STOPS_PAYING * least
    ]
    return min(dear, key=lambda layouts: layouts.gpus, default=None)

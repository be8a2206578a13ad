"""The search over layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile

from ..parallel.choices import VIRTUAL, stages_per_rank
from .estimate import Estimate, estimate
from .framework import FRAMEWORKS
from .layout import Layout, Precision, Recompute
from .machine import GIB, Machine
from .memory import memory
from .shape import Shape

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
STOPS_PAYING = 1.10  # cost per token, over that of the cheapest number of GPUs


@dataclass(frozen=True)
class Found:
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


def layouts(
    shape: Shape,
    machine: Machine,
    gpus: int,
    global_batch: int,
    *,
    precision: Precision = "bf16",
    micro_batch: int | None = None,
    schedule: str | None = None,
    cp: int = 1,
    pipelines: bool = True,
    framework: str = "rankup",
) -> Found:
    """Return every layout of `gpus` GPUs that rankup can run, fastest first; risky ones last.

    Args:
        global_batch: sequences per optimizer step.
        micro_batch: only this one; None tries the powers of two.
        schedule: of pipelines, only this one; None tries 1f1b and interleaved.
        cp: ranks that share each sequence.
        pipelines: whether the model may be cut into stages, as that of the recipe.
        framework: whose habits to predict; see `framework.FRAMEWORKS`.
    """
    capacity = machine.memory_gib * GIB

    def size(layout: Layout) -> float:
        return sum(part for _, part in memory(shape, layout, FRAMEWORKS[framework]))

    def estimated(layout: Layout) -> Estimate:
        return estimate(shape, replace(layout, framework=framework), machine)

    fitting: list[Estimate] = []
    least, closest = math.inf, None
    asked = micro_batch, schedule, cp, pipelines
    for group in _groups(shape, machine, gpus, global_batch, precision, *asked):
        for variants in group:
            sizes = [size(layout) for layout in variants]
            fitting += [
                estimated(layout)
                for layout, held in zip(variants, sizes, strict=True)
                if held <= capacity
            ]
            if min(sizes) > capacity:  # larger micro-batches take more
                if min(sizes) < least:
                    least, closest = min(sizes), variants[sizes.index(min(sizes))]
                break
    fitting.sort(key=lambda one: (one.risky, one.seconds))
    return Found(gpus, tuple(fitting), None if closest is None else estimated(closest))


def candidates(
    shape: Shape,
    machine: Machine,
    gpus: int,
    global_batch: int,
    precision: Precision = "bf16",
    micro_batch: int | None = None,
    schedule: str | None = None,
    cp: int = 1,
) -> Iterator[Layout]:
    """Yield the layouts that `rankup run` accepts: tensor parallel within a node and by whole
    heads, stages of whole layers, whole micro-batches."""
    for group in _groups(shape, machine, gpus, global_batch, precision, micro_batch, schedule, cp):
        for variants in group:
            yield from variants


def _groups(
    shape: Shape,
    machine: Machine,
    gpus: int,
    global_batch: int,
    precision: Precision,
    micro_batch: int | None,
    schedule: str | None,
    cp: int,
    pipelines: bool = True,
) -> Iterator[Iterator[list[Layout]]]:
    """Yield for each mesh its micro-batches, growing, with what may be recomputed and scheduled."""
    node = machine.gpus_per_node
    for tp in _divisors(min(gpus, node)):
        if node % tp or gpus % (tp * cp) or shape.heads % tp or shape.kv_heads % tp:
            continue
        if cp > 1 and shape.seq % (2 * cp * tp):
            continue
        for pp in _divisors(gpus // (tp * cp)) if cp == 1 and pipelines else [1]:
            data = gpus // (tp * cp * pp)
            if pp > shape.layers or global_batch % data:
                continue
            for shard in sorted({1, math.gcd(data, max(1, node // (tp * cp))), data}):
                mesh = Layout(
                    gpus=gpus,
                    strategy=strategy_of(tp, pp, shard * cp, data * cp),
                    dp_replicate=data // shard,
                    dp_shard=shard,
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    global_batch=global_batch,
                    precision=precision,
                    sequence_parallel=tp > 1,
                    zero=0 if shard * cp == 1 else 3,
                )
                yield _variants(mesh, shape, micro_batch, schedule)


def _variants(
    mesh: Layout, shape: Shape, micro_batch: int | None, schedule: str | None
) -> Iterator[list[Layout]]:
    each = mesh.global_batch // mesh.data
    for micro in [micro_batch] if micro_batch else [2**k for k in range(each.bit_length())]:
        if each % micro:
            continue
        found = [replace(mesh, micro_batch=micro, recompute=one) for one in RECOMPUTE]
        if mesh.pp > 1 and schedule is not None:
            parts = stages_per_rank(schedule)
            found = [replace(one, schedule=schedule, interleave=parts) for one in found]
        elif mesh.pp > 1 and mesh.pp * VIRTUAL <= shape.layers and each // micro >= mesh.pp:
            found += [replace(one, schedule="interleaved", interleave=VIRTUAL) for one in found]
        yield found


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
    return [one for one in range(1, number + 1) if number % one == 0]


def numbers_of_gpus(machine: Machine) -> Iterator[int]:
    """Yield powers of two within a node, then those of nodes."""
    node = machine.gpus_per_node
    yield from takewhile(lambda gpus: gpus < node, (2**k for k in count()))
    yield from (node * 2**k for k in count())


def fewest_gpus(
    shape: Shape,
    machine: Machine,
    global_batch: int,
    *,
    precision: Precision = "bf16",
    cp: int = 1,
    pipelines: bool = True,
    framework: str = "rankup",
) -> Found | None:
    """Return the smallest number of GPUs (powers of two, then of nodes) on which a layout fits;
    None where none of up to 64 per sequence of the batch does."""
    for gpus in islice(numbers_of_gpus(machine), 17):
        if gpus > 64 * cp * global_batch:
            return None
        found = layouts(
            shape,
            machine,
            gpus,
            global_batch,
            precision=precision,
            cp=cp,
            pipelines=pipelines,
            framework=framework,
        )
        if found.best is not None:
            return found
    return None


def where_it_stops_paying(
    found: Sequence[Found], token_cost: Callable[[Estimate], float]
) -> Found | None:
    """Return the first number of GPUs whose cost per token is 10 % above the cheapest; None where
    adding GPUs still pays."""
    priced = [(token_cost(one.best), one) for one in found if one.best is not None]
    if not priced:
        return None
    least = min(cost for cost, _ in priced)
    cheapest = next(one.gpus for cost, one in priced if cost == least)
    dear = [one for cost, one in priced if one.gpus > cheapest and cost > STOPS_PAYING * least]
    return min(dear, key=lambda one: one.gpus, default=None)

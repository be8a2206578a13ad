"""The search over layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .estimate import Estimate, estimate
from .layout import Layout, Precision, Recompute
from .machine import Machine
from .shape import Shape

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
VIRTUAL = 2  # stages per rank of an interleaved pipeline, as in `parallel.choices`
STOPS_PAYING = 1.10  # cost per token, over that of the cheapest number of GPUs


@dataclass(frozen=True)
class Found:
    """The layouts of one number of GPUs.

    Attributes:
        fitting: the ones that fit, fastest first, those with little head room last.
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
    """Return every layout of `gpus` GPUs that rankup can run, fastest first; risky ones last.

    Args:
        global_batch: sequences per optimizer step.
        micro_batch: only this one; None tries the powers of two.
    """
    made = [
        estimate(shape, layout, machine)
        for layout in candidates(shape, machine, gpus, global_batch, precision, micro_batch)
    ]
    fitting = sorted((one for one in made if one.fits), key=lambda one: (one.risky, one.seconds))
    others = [one for one in made if not one.fits]
    return Found(gpus, tuple(fitting), min(others, key=lambda one: one.memory_total, default=None))


def candidates(
    shape: Shape,
    machine: Machine,
    gpus: int,
    global_batch: int,
    precision: Precision = "bf16",
    micro_batch: int | None = None,
) -> Iterator[Layout]:
    """Yield the layouts that `rankup run` accepts: tensor parallel within a node and by whole
    heads, stages of whole layers, whole micro-batches."""
    node = machine.gpus_per_node
    for tp in _divisors(min(gpus, node)):
        if node % tp or gpus % tp or shape.heads % tp or shape.kv_heads % tp:
            continue
        for pp in _divisors(gpus // tp):
            if pp > shape.layers:
                break
            data = gpus // (tp * pp)
            if global_batch % data:
                continue
            each = global_batch // data
            sizes = [micro_batch] if micro_batch else [2**k for k in range(each.bit_length())]
            for micro in sizes:
                if each % micro:
                    continue
                for shard in sorted({1, math.gcd(data, max(1, node // tp)), data}):
                    base = Layout(
                        gpus=gpus,
                        strategy=_strategy(tp, pp, shard, data),
                        dp_replicate=data // shard,
                        dp_shard=shard,
                        tp=tp,
                        pp=pp,
                        micro_batch=micro,
                        global_batch=global_batch,
                        precision=precision,
                        sequence_parallel=tp > 1,
                        zero=0 if shard == 1 else 3,
                    )
                    for recompute in RECOMPUTE:
                        yield replace(base, recompute=recompute)
                        if pp > 1 and pp * VIRTUAL <= shape.layers and each // micro >= pp:
                            yield replace(
                                base,
                                recompute=recompute,
                                schedule="interleaved",
                                interleave=VIRTUAL,
                            )


def _strategy(tp: int, pp: int, shard: int, data: int) -> str:
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


def fewest_gpus(
    shape: Shape, machine: Machine, global_batch: int, *, precision: Precision = "bf16"
) -> Found | None:
    """Return the smallest number of GPUs (powers of two, then of nodes) on which a layout fits;
    None where none of up to 64 per sequence of the batch does."""
    node = machine.gpus_per_node
    numbers = [one for one in (1, 2, 4, 8) if one < node]
    numbers += [node * 2**k for k in range(14)]
    for gpus in numbers:
        if gpus > 64 * global_batch:
            return None
        found = layouts(shape, machine, gpus, global_batch, precision=precision)
        if found.best is not None:
            return found
    return None


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

"""The exchange of ranks in a step, and how much of it computing hides."""

from __future__ import annotations

from dataclasses import dataclass

from .compute import Work
from .framework import Framework
from .layout import Layout
from .machine import Machine
from .network import group
from .shape import Shape


def hidden(exchange: float, computing: float, machine: Machine) -> float:
    """Return what is exposed of an exchange beside `computing` seconds: what outlasts it, and the
    machine's `contention` of the rest."""
    return max(0.0, exchange - computing) + machine.contention * min(exchange, computing)


@dataclass(frozen=True)
class Data:
    """Exposed seconds of the data-parallel exchange.

    Attributes:
        per_micro_batch: of parameters and gradients of sharded layers, in each micro-batch.
        per_step: of gradients and parameters once per step.
    """

    per_micro_batch: float
    per_step: float


def data_parallel(
    shape: Shape,
    layout: Layout,
    machine: Machine,
    framework: Framework,
    work: Work,
    layers: int,
    parameters: float,
    trained: float,
    again: float,
) -> Data:
    """Return the exposed exchange of a rank with `layers` layers and `parameters` parameters.

    Of those that are `trained` gradients are exchanged.

    DDP and ZeRO-1 once per step: all-reduce of the gradients, or reduce-scatter and the gathering
    of the updated weights, beside the last micro-batch's backward. FSDP in every micro-batch: each
    layer's weights gathered in the precision of the forward and, where they were freed (ZeRO-3),
    in the backward, gradients scattered; all beside the layer's own work [FSDP paper, 3.2; ZeRO].
    Where FSDP keeps what it gathers, it does so once per step, and under ZeRO-1 scatters once, too.
    HSDP adds an all-reduce of each rank's shard across the copies, in the last micro-batch alone.
    """
    if layout.data * layout.cp == 1:
        return Data(0.0, 0.0)
    stride = layout.tp
    backward = layers * (work.backward + again)
    kept = 3 > layout.zero >= framework.shards_weights
    if layout.zero < 2 and not kept:
        ranks = group(machine, layout.data * layout.cp, stride)
        size = framework.gradient_bytes * trained
        count = framework.messages_per_layer * layers or max(1.0, size / framework.bucket)
        if layout.strategy in ("local-sgd", "diloco"):
            return Data(0.0, ranks.reduce(4 * trained) / layout.inner_steps)
        if layout.zero == 0:
            exchange, after = ranks.reduce(size, count), 0.0
        else:
            exchange = ranks.gather(size, count)
            after = ranks.gather(2 * trained, count)
        if framework.overlap:
            exchange = hidden(exchange, backward, machine)
        if framework.overlap_gather:
            after = hidden(after, layers * work.forward, machine)
        return Data(0.0, exchange + after)
    shard = layout.shards
    ranks = group(machine, shard, stride)
    layer, own = (count / max(1, layers) for count in (parameters, trained))
    if layout.pp > 1:  # once per step, the reduction beside the last backward
        scatter = ranks.gather(framework.gradient_bytes * trained, layers)
        gather = ranks.gather(layout.value_bytes * parameters, layers)
        return Data(0.0, gather + hidden(scatter, backward, machine))
    gather = ranks.gather(layout.value_bytes * layer)
    scatter = ranks.gather(framework.gradient_bytes * own)
    forward = hidden(gather, work.forward, machine)
    scatter += gather if layout.zero == 3 else 0.0
    back = 0.0 if layout.zero == 1 else hidden(scatter, work.backward + again, machine)
    copies = group(machine, layout.dp_replicate, stride * shard)
    reduced = scatter + copies.reduce(framework.gradient_bytes * own / shard)
    last = hidden(reduced, work.backward + again, machine) - back
    gathers = layers * forward + gather
    if kept:
        return Data(layers * back, gathers + layers * last)
    return Data(gathers + layers * back, layers * last)

"""Pipelines: the bubble of a schedule, the micro-batches that a stage keeps, its messages."""

from __future__ import annotations

import math

from .framework import Framework
from .layout import Layout
from .machine import Machine
from .network import group
from .shape import Shape


def stage_layers(layout: Layout, layers: int) -> int:
    """Return the layers of the longest stage of a rank: those of all its interleaved parts."""
    return math.ceil(layers / layout.stages) * layout.interleave


def bubble(layout: Layout) -> float:
    """Return the time that stages stand still, in units of a micro-batch's forward and backward.

    GPipe and 1F1B p-1; interleaved (p-1)/v [Narayanan 2021, 2.2].
    """
    return (layout.pp - 1) / layout.interleave


def kept(layout: Layout, stage: int) -> float:
    """Return how many micro-batches of its layers a stage keeps at most.

    1F1B: p - stage; interleaved times 1 + (p-1)/(pv) [Korthikanti 2022, 4.2.3]; GPipe all m.
    """
    p, m = layout.pp, layout.micro_batches
    if layout.schedule.lower() == "gpipe":
        return m
    if layout.interleave > 1:
        return min(m, p - stage + (p - 1) / layout.interleave)
    return min(m, p - stage)


def pipeline_send(shape: Shape, layout: Layout, machine: Machine) -> float:
    """Return the seconds that a micro-batch's sends between stages take, both directions.

    b s h values per direction and stage, over t ranks where they scatter and gather [Narayanan
    2021, 4.1], v times where interleaved.
    """
    if layout.pp == 1:
        return 0.0
    size = (
        layout.value_bytes * layout.micro_batch * shape.seq / layout.cp * shape.hidden / layout.tp
    )
    ranks = group(machine, layout.pp, layout.tp * layout.cp * layout.data)
    return 2 * layout.interleave * ranks.send(size)


def tied_embedding(shape: Shape, layout: Layout, machine: Machine, framework: Framework) -> float:
    """Return the seconds in which the first and last stage add up the gradient of a tied
    embedding, once per step [Narayanan 2021]."""
    if layout.pp == 1 or not shape.tied:
        return 0.0
    stride = layout.tp * layout.cp * layout.data * (layout.pp - 1)
    ends = group(machine, 2, stride)
    return ends.reduce(framework.gradient_bytes * shape.vocab * shape.hidden / layout.tp)

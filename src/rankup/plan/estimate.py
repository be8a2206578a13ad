"""The prediction: terms of a step, memory of the most loaded rank, what limits, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from . import compute
from .exchange import data_parallel, pipeline_send, tensor_parallel
from .framework import FRAMEWORKS
from .layout import Layout
from .machine import GIB, Machine
from .memory import memory, stage_parameters
from .pipeline import bubble, stage_layers
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
    """Predict time and memory of a step.

    The slowest stage sets the pace: step = (m + bubble) x (its micro-batch) + what is exposed of
    the data-parallel exchange + optimizer [Narayanan 2021, eq. 1].
    """
    framework = FRAMEWORKS[layout.framework]
    m, layers = layout.micro_batches, stage_layers(layout, shape.layers)
    work, last = (
        compute.layer(shape, layout, machine, framework),
        compute.head(shape, layout, machine),
    )
    again = compute.recomputed(work, layout, framework)
    one_layer = work.forward + work.backward + again
    head = last.forward + last.backward
    if framework.balanced and layout.pp > 1:
        # Layers are whole: the longest stage has at least one, or the head.
        even = (shape.layers * one_layer + head) / layout.pp
        head = max(0.0, max(even, head, one_layer) - layers * one_layer)
    parameters = stage_parameters(shape, layout, layout.pp - 1, framework)
    exchanges = 2.0 + (1.0 if layout.recompute == "full" else 0.0)
    tensor = layers * exchanges * tensor_parallel(shape, layout, machine)
    send = pipeline_send(shape, layout, machine)
    data = data_parallel(shape, layout, machine, framework, work, layers, parameters, again)
    busy = layers * one_layer + head + tensor + send + data.per_micro_batch
    shard = layout.data * layout.cp if layout.zero else 1
    adam = compute.optimizer(parameters / shard, machine)
    idle = bubble(layout) * busy
    parts = [
        ("matmul", m * layers * 3 * work.matmul),
        ("attention", m * layers * (1 + work.attention_back) * work.attention),
        ("elementwise", m * layers * 3 * work.elementwise),
        ("launch", m * layers * (work.forward + work.backward - work.busy)),
        ("head", m * head),
        ("recomputation", m * layers * again),
        ("tensor parallel", m * tensor),
        ("pipeline sends", m * send),
        ("bubble", idle),
        ("parameters", m * data.per_micro_batch),
        ("gradients", data.per_step),
        ("optimizer", adam),
    ]
    terms = tuple(Term(name, seconds) for name, seconds in parts if seconds)
    seconds = sum(term.seconds for term in terms)
    tokens = layout.global_batch * shape.seq
    rate = tokens / seconds / layout.gpus
    parts_of_memory = memory(shape, layout, framework)
    return Estimate(
        shape=shape,
        layout=layout,
        machine=machine,
        seconds=seconds,
        terms=terms,
        tokens_per_second_per_gpu=rate,
        mfu=rate * shape.train_flops() / machine.peak_flops,
        memory=parts_of_memory,
        memory_total=sum(size for _, size in parts_of_memory),
        band=0.2,
        memory_band=0.15,
        limit="",
        advice="",
    )

"""The prediction: terms of a step, memory of the most loaded rank, what limits, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from . import compute
from .exchange import data_parallel
from .framework import FRAMEWORKS
from .layout import Layout
from .machine import GIB, MEASURED, Machine
from .memory import memory, stage_parameters
from .network import group
from .pipeline import bubble, pipeline_send, stage_layers, tied_embedding
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


def estimate(shape: Shape, layout: Layout, machine: Machine) -> Estimate:
    """Predict time and memory of a step.

    The slowest stage sets the pace: step = (m + bubble) x (its micro-batch) + what is exposed of
    the data-parallel exchange + optimizer [Narayanan 2021, eq. 1].
    """
    framework, machine = FRAMEWORKS[layout.framework], machine.computing(layout.precision)
    m, layers = layout.micro_batches, stage_layers(layout, shape.layers)
    work = compute.layer(shape, layout, machine, framework)
    last = compute.head(shape, layout, machine, framework)
    again = compute.recomputed(work, layout, framework)
    one_layer = work.forward + work.backward + again
    head = last.forward + last.backward
    if framework.balanced and layout.pp > 1:
        # Layers are whole: the longest stage has at least one, or the head.
        even = (shape.layers * one_layer + head) / layout.pp
        head = max(0.0, max(even, head, one_layer) - layers * one_layer)
    parameters, trained = stage_parameters(shape, layout, layout.pp - 1)
    exchanged = (parameters, trained, again)
    data = data_parallel(shape, layout, machine, framework, work, layers, *exchanged)
    shard = layout.shards
    own = trained / shard if layout.zero >= 2 and layout.pp == 1 else trained
    added = compute.accumulation(own, machine, framework) if m > 1 else 0.0
    send = pipeline_send(shape, layout, machine)
    busy = layers * one_layer + head + added + send + data.per_micro_batch
    seconds = {
        "matmul": m * layers * (1 + work.reached * work.products_back) * work.matmul,
        "attention": m * layers * (1 + work.reached * work.attention_back) * work.attention,
        "element-wise": m * layers * (work.elementwise + work.reached * work.elementwise_back),
        "head": m * head,
        "recomputation": m * layers * again,
        "launches": m * layers * (work.forward + work.backward - work.busy),
        "accumulation": m * added,
        "tensor parallel": m * layers * (1 + work.reached) * work.tensor,
        "context parallel": m * layers * (1 + work.reached) * work.context,
        "pipeline sends": m * send,
        "bubble": bubble(layout) * busy,
        "sharded weights": m * data.per_micro_batch,
        "gradients": data.per_step + tied_embedding(shape, layout, machine, framework),
        "optimizer": compute.optimizer(trained / (shard if layout.zero else 1), machine),
    }
    if shape.averaged:
        held = trained / (shard if layout.zero >= 3 else 1)
        seconds["average of the weights"] = compute.average(held, machine)
    numbers = _numbers(layout, machine, layers, parameters)
    pace = machine.pace or 1.0
    terms = tuple(
        Term(name, pace * spent, *EXPLAINED[name], numbers.get(name, ""))
        for name, spent in seconds.items()
        if spent > 1e-9
    )
    total = sum(term.seconds for term in terms)
    rate = layout.global_batch * shape.seq / total / layout.gpus
    parts = memory(shape, layout, framework)
    limit, advice = what_limits(terms, layout, machine)
    return Estimate(
        shape=shape,
        layout=layout,
        machine=machine,
        seconds=total,
        terms=terms,
        tokens_per_second_per_gpu=rate,
        mfu=rate * shape.train_flops() / machine.peak_flops,
        memory=parts,
        memory_total=sum(size for _, size in parts),
        band=band(layout, machine),
        memory_band=MEMORY_BAND,
        limit=limit,
        advice=advice,
    )


def _numbers(layout: Layout, machine: Machine, layers: int, parameters: float) -> dict[str, str]:
    """Return what goes into the terms, in words."""
    micro = f"{layout.micro_batches} micro-batches of {layout.micro_batch}"
    peak = machine.peak_flops * machine.matmul_efficiency * machine.power
    tensor = group(machine, layout.tp, 1)
    sharded = layout.zero >= 2
    ranks = layout.shards if sharded else layout.data * layout.cp
    data = group(machine, ranks, layout.tp)
    exchange = f"{data}; {parameters / 1e9:.3g} G parameters on this rank"
    return {
        "matmul": f"{layers} layers, {micro}; e_max {peak / 1e12:.0f} TFLOP/s, half of it at "
        f"{machine.matmul_half / 1e9:.3g} GFLOP",
        "attention": f"{machine.attention_efficiency * machine.peak_flops / 1e12:.0f} TFLOP/s",
        "element-wise": f"{machine.hbm * machine.hbm_efficiency / 1e12:.2f} TB/s",
        "launches": f"{machine.launch * 1e6:.1f} us each",
        "tensor parallel": str(tensor),
        "context parallel": str(group(machine, layout.cp, layout.tp)),
        "bubble": f"{bubble(layout):.3g} beside {layout.micro_batches} micro-batches",
        "sharded weights": exchange,
        "gradients": exchange,
    }


# Name -> formula, and where it comes from; docs/plan/how-it-computes.md says more.
EXPLAINED = {
    "matmul": (
        "3 x products of every layer, each 2mnk / (peak e), e = e_max x/(x + x_half)",
        "Narayanan 2021, appendix; efficiency fitted per GPU generation",
    ),
    "attention": (
        "causal 2bs²h/t forward, 2.5 times that backward; unfused all of it, and the softmax",
        "Dao 2023 (FlashAttention-2); Korthikanti 2022, 4.1",
    ),
    "element-wise": (
        "bytes of norms, residuals, positions, activation, both ways / memory bandwidth",
        "counted by kernel; share of the bandwidth fitted",
    ),
    "head": (
        "3 x 2bshV/t FLOPs, and the bytes of the cross-entropy both ways, on the last stage",
        "Narayanan 2021, eq. 3",
    ),
    "recomputation": ("the forward again (full), or part of it (selective)", "Korthikanti 2022"),
    "launches": (
        "operations of a layer x seconds per launch, where the GPU would be faster",
        "fitted on small micro-batches of published runs",
    ),
    "accumulation": (
        "bytes of adding a micro-batch's gradients / memory bandwidth",
        "counted by kernel",
    ),
    "tensor parallel": (
        "per layer 4 all-reduces of 2bsh bytes; n ranks: 2(n-1)/n S/B + 2(n-1) latencies",
        "Narayanan 2021, 3.2; nccl-tests PERFORMANCE.md",
    ),
    "context parallel": (
        "per layer a gather of 4bs kv/t bytes, and as much scattered backward",
        "Grattafiori 2024 (Llama 3), 3.3.2",
    ),
    "pipeline sends": ("2 messages of 2bsh/t bytes per micro-batch", "Narayanan 2021, 4.1"),
    "bubble": ("(p-1)/v micro-batches of the slowest stage", "Narayanan 2021, 2.2"),
    "sharded weights": (
        "per layer max(0, gather - forward) + max(0, gather + scatter - backward) + contention",
        "Zhao 2023 (FSDP), 3.2",
    ),
    "gradients": (
        "all-reduce or reduce-scatter and gather per step, less what the last backward hides",
        "Li 2020 (DDP); Rajbhandari 2020 (ZeRO)",
    ),
    "average of the weights": ("12 bytes per trained parameter / memory bandwidth", "counted"),
    "optimizer": ("32 bytes per parameter of this rank / memory bandwidth", "Adam, counted"),
}


# Term -> what to change, where it costs a tenth of the step or more.
_ADVICE = {
    "bubble": "more micro-batches per step, an interleaved schedule, or fewer stages",
    "tensor parallel": "a smaller --tp, or larger micro-batches",
    "context parallel": "a smaller --cp",
    "sharded weights": "larger micro-batches, or --strategy hsdp to gather within a node",
    "gradients": "a larger global batch, fewer GPUs, or --strategy diloco",
    "recomputation": "less activation checkpointing: more GPUs or smaller micro-batches pay for it",
    "launches": "larger micro-batches, or --compile",
    "element-wise": "--compile, which fuses element-wise kernels",
    "accumulation": "larger micro-batches, so that there are fewer of them",
    "pipeline sends": "fewer stages",
    "head": "fewer stages, so that the last one has less beside the head",
    "optimizer": "--strategy fsdp, which shares it",
}
_LIMITS = {
    "tensor parallel": "tensor-parallel exchange",
    "context parallel": "exchange of keys and values",
    "sharded weights": "exchange of sharded weights",
    "gradients": "gradient exchange",
    "element-wise": "memory bandwidth",
    "accumulation": "memory bandwidth",
    "optimizer": "memory bandwidth",
}


def what_limits(terms: tuple[Term, ...], layout: Layout, machine: Machine) -> tuple[str, str]:
    """Return the word for what takes most of the time beside products, and what would help."""
    total = sum(term.seconds for term in terms)
    others = [term for term in terms if term.name in _ADVICE]
    worst = max(others, key=lambda term: term.seconds, default=None)
    if worst is None or worst.seconds < 0.1 * total:
        return "compute", "nothing cheap: most of the time is matrix products"
    word = _LIMITS.get(worst.name, worst.name)
    compiled = FRAMEWORKS[layout.framework].compiled
    advice = f"{_ADVICE[worst.name]} ({worst.name} is {worst.seconds / total:.0%} of a step)"
    if worst.name == "tensor parallel" and layout.tp > machine.gpus_per_node:
        advice = f"--tp {machine.gpus_per_node}, which stays within a node"
    if worst.name == "head" and layout.pp == 1:
        recipe = FRAMEWORKS[layout.framework].recipe
        advice = (
            "--compile, whose loss reads the logits once each way"
            if recipe
            else "torch.compile around the loss, so that it reads the logits once each way"
        )
    if compiled and "--compile" in advice:
        share = f"({worst.name} is {worst.seconds / total:.0%} of a step)"
        cheap = "larger micro-batches" if worst.name == "launches" else "nothing cheap"
        advice = f"{cheap} {share}"
    return word, advice


# Errors of time that four of five measurements of a class stayed within, with constants fitted
# without their paper or repository (`bench/plan.py --leave-out`), and of memory.
_BANDS = {
    "whole": 0.13,
    "tensor": 0.13,
    "pipeline": 0.13,
    "copies": 0.28,
    "across": 0.9,
    "fp8": 0.17,
    "unmeasured": 0.3,
    "measured": 0.2,  # `bench/plan.py --leave-out`, plan.measured
}
MANY_COPIES = 64  # data-parallel ranks, unsharded, from which latencies decide
MEMORY_BAND = 0.14


def band(layout: Layout, machine: Machine) -> float:
    """Return the error that four of five left-out measurements of this class stayed within."""
    if machine.pace is not None:
        classes = ["measured"]
    else:
        classes = ["tensor" if layout.tp > 1 else "whole"]
        if not machine.gpu.startswith(MEASURED):
            classes.append("unmeasured")
        if layout.pp > 1:
            classes.append("pipeline")
    if layout.cp > 1:
        classes.append("unmeasured")
    if layout.zero < 2 and layout.data >= MANY_COPIES:
        classes.append("copies")
    if layout.tp > machine.gpus_per_node:
        classes.append("across")
    if layout.precision == "fp8":
        classes.append("fp8")
    return max(_BANDS[name] for name in classes)

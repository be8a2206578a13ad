"""Time of what one GPU computes: matrix products, attention, element-wise kernels, optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from . import counted
from .framework import Framework
from .layout import Layout
from .machine import Machine
from .network import group
from .shape import Shape

# Bytes that unfused element-wise kernels of a layer move per token in a forward, per unit of
# `hidden` (two norms, two residuals with dropout, rotary embedding) and of `ffn` (activation). So
# published runs were fitted; a backward takes twice as long.
_RESIDUAL_BYTES = 29.0
_ROTARY_BYTES = 10.0
_GELU_BYTES = 7.0
_GATE_BYTES = 12.0  # silu, then its product with the other half
# Unfused attention: bytes per element of the s x s matrix, softmax and dropout, a forward.
_SOFTMAX_BYTES = 10.0
_LOGITS_BYTES = 14.0  # of cross-entropy in float32, per logit, a forward
_OPTIMIZER_BYTES = 32.0  # read weight, gradient, two moments; write weight, moments, half copy
# Operations of a layer's forward that the processor launches one by one, and what tensor
# parallelism adds.
_LAUNCHES = 40
_TENSOR_LAUNCHES = 80
_MASKED = 0.5  # speed of the kernel that takes a mask, over FlashAttention's; not measured by us
_AVERAGE_BYTES = 12.0  # read average and weight, write the average


@dataclass(frozen=True)
class Work:
    """Seconds of one layer, or of the head, on one rank and micro-batch, in a forward.

    Attributes:
        tensor: exchange between tensor-parallel ranks; a backward does as much.
        context: the same between ranks that share a sequence.
        attention_back: a backward's attention over a forward's.
        products_back: a backward's products over a forward's: 2, of which a frozen weight saves
            one.
        elementwise_back: element-wise work of a backward.
        reached: share of the layers that a backward goes through.
        floor: what the processor needs to launch the forward's kernels.
    """

    matmul: float
    attention: float
    elementwise: float
    elementwise_back: float
    tensor: float = 0.0
    context: float = 0.0
    attention_back: float = 2.5
    products_back: float = 2.0
    reached: float = 1.0
    floor: float = 0.0

    @property
    def exchange(self) -> float:
        return self.tensor + self.context

    @property
    def busy(self) -> float:
        """Forward and backward, without what the processor's launches add."""
        return self._forward + self.reached * self._backward

    @property
    def _forward(self) -> float:
        return self.matmul + self.attention + self.elementwise + self.exchange

    @property
    def _backward(self) -> float:
        """A backward through a layer that it reaches."""
        back = self.products_back * self.matmul + self.attention_back * self.attention
        return back + self.elementwise_back + self.exchange

    @property
    def forward(self) -> float:
        return max(self._forward, self.floor)

    @property
    def backward(self) -> float:
        return self.reached * max(self._backward, 2 * self.floor)


def matmul(machine: Machine, m: float, n: float, k: float, fp8: bool = False) -> float:
    """Return the seconds of a product of m x k and k x n.

    2mnk / (peak x e), e = e_max x / (x + x_half) in x = 2mnk FLOPs: small products fill the GPU
    only in part and start slowly. Never faster than its operands pass the memory (roofline).
    """
    flops = 2.0 * m * n * k
    peak = machine.peak_flops * machine.matmul_efficiency * machine.power
    if fp8 and machine.fp8_speedup:
        flops /= machine.fp8_speedup
    seconds = (flops + machine.matmul_half) / peak
    moved = 2.0 * (m * k + k * n + m * n) / (machine.hbm * machine.hbm_efficiency)
    return max(seconds, moved)


def layer(shape: Shape, layout: Layout, machine: Machine, framework: Framework) -> Work:
    """Return the work of one layer."""
    tokens = layout.micro_batch * shape.seq / layout.cp
    t, h = layout.tp, shape.hidden
    fp8 = layout.precision == "fp8"
    products = (
        (h + 2 * shape.kv_width) / t * h,
        h * h / t,
        (2 if shape.gated else 1) * shape.ffn / t * h,
        h * shape.ffn / t,
    )
    widths = (h, h / t, h, shape.ffn / t)
    seconds = sum(
        matmul(machine, tokens, weights / inner, inner, fp8)
        for weights, inner in zip(products, widths, strict=True)
    )
    seconds += sum(
        matmul(machine, tokens, outputs / t, inputs, fp8) for inputs, outputs in shape.adapters
    )
    hbm = machine.hbm * machine.hbm_efficiency
    forward, backward = _moved(shape, layout, framework)
    values = tokens * layout.value_bytes / 2 / hbm
    pairs = tokens * shape.seq
    flops = 4.0 * pairs * h / t
    if framework.fused_attention:
        speed = framework.attention if machine.fp8_speedup else 1.0  # Hopper and later have fp8
        core = flops / 2 / (machine.peak_flops * machine.attention_efficiency * speed)
        if (
            shape.masked and layout.needs_masks
        ):  # another kernel, which computes what the mask leaves out
            core = flops / (machine.peak_flops * machine.attention_efficiency * _MASKED)
        back = 2.5
    else:
        softmax = _SOFTMAX_BYTES * pairs * shape.heads / t / hbm
        core = flops / (machine.peak_flops * machine.matmul_efficiency * 0.7) + softmax
        back = 2.0
    # Layers that no backward goes through are frozen whole.
    frozen = (shape.frozen_layer - shape.still) / (1 - shape.still) if shape.still < 1 else 1.0
    launches = _LAUNCHES + (_TENSOR_LAUNCHES if t > 1 else 0) + 2 * len(shape.adapters)
    return Work(
        matmul=seconds,
        attention=core,
        elementwise=forward * values,
        elementwise_back=backward * values,
        tensor=tensor_parallel(shape, layout, machine, framework),
        context=context_parallel(shape, layout, machine, framework),
        attention_back=back,
        products_back=2.0 - frozen,
        reached=1 - shape.still,
        floor=launches * framework.launches * machine.launch,
    )


def _moved(shape: Shape, layout: Layout, framework: Framework) -> tuple[float, float]:
    """Return the bytes per token that a layer's element-wise kernels move, forward and backward."""
    if framework.recipe and shape.gated and not framework.compiled:
        return counted.elementwise(shape, layout)
    h, t = shape.hidden, layout.tp
    split = t if layout.sequence_parallel else 1
    gate = _GATE_BYTES if shape.gated else _GELU_BYTES
    moved = _RESIDUAL_BYTES * h / split + (_ROTARY_BYTES * h + gate * shape.ffn) / t
    return moved * framework.traffic, 2 * moved * framework.traffic


def tensor_parallel(shape: Shape, layout: Layout, machine: Machine, framework: Framework) -> float:
    """Return the seconds of one layer's tensor-parallel exchanges in a forward.

    Two all-reduces of b s h values, with sequence parallelism two all-gathers and two
    reduce-scatters of the same bytes; a backward does as many [Narayanan 2021, 3.2; Korthikanti
    2022, 4.2].
    """
    if layout.tp == 1:
        return 0.0
    size = layout.value_bytes * layout.micro_batch * shape.seq / layout.cp * shape.hidden
    ranks = group(machine, layout.tp, 1)
    seconds = 4 * ranks.gather(size) if layout.sequence_parallel else 2 * ranks.reduce(size)
    if layout.pp > 1 and layout.tp >= machine.gpus_per_node:
        seconds += 4 * framework.stall * (layout.tp - 1)
    return seconds * (1 - framework.overlap_tensor)


def context_parallel(shape: Shape, layout: Layout, machine: Machine, framework: Framework) -> float:
    """Return the seconds in which one layer's keys and values are gathered in a forward; the
    backward scatters as many gradients [Grattafiori 2024, 3.3.2]."""
    if layout.cp == 1 or not framework.gathers_context:
        return 0.0
    size = layout.value_bytes * layout.micro_batch * shape.seq * 2 * shape.kv_width / layout.tp
    return group(machine, layout.cp, layout.tp).gather(size)


def head(shape: Shape, layout: Layout, machine: Machine, framework: Framework) -> Work:
    """Return the work of the output layer and the loss; embeddings cost next to nothing."""
    tokens = layout.micro_batch * shape.seq / layout.cp
    product = matmul(machine, tokens, shape.vocab / layout.tp, shape.hidden)
    logits = tokens * shape.vocab / layout.tp
    forward, backward = _LOGITS_BYTES, 2 * _LOGITS_BYTES
    if framework.recipe:
        loss = counted.loss(logits, layout, framework.compiled)
        forward, backward = loss.forward, loss.backward
    seconds = logits / (machine.hbm * machine.hbm_efficiency)
    return Work(
        product,
        0.0,
        forward * seconds,
        backward * seconds,
        products_back=1.0 if shape.frozen_head else 2.0,
    )


def recomputed(work: Work, layout: Layout, framework: Framework) -> float:
    """Return the seconds of forwards done again in a backward: all of a layer's, or attention's."""
    if layout.recompute == "full":
        return work.forward
    if layout.recompute == "selective:2":  # every second layer, all of it
        return work.forward / 2
    if layout.recompute == "selective":
        if framework.selective is None:
            return 0.0 if framework.fused_attention else work.attention
        products = (1 - framework.selective) * work.matmul
        return work.elementwise + products + work.context
    return 0.0


def accumulation(parameters: float, machine: Machine, framework: Framework) -> float:
    """Return the seconds in which one micro-batch's gradients are added to float32 sums."""
    return framework.accumulation * parameters / (machine.hbm * machine.hbm_efficiency)


def optimizer(parameters: float, machine: Machine) -> float:
    """Return the seconds of Adam over `parameters` of this rank: bytes moved / memory bandwidth."""
    return _OPTIMIZER_BYTES * parameters / (machine.hbm * machine.hbm_efficiency)


def average(parameters: float, machine: Machine) -> float:
    """Return the seconds in which a moving average takes in `parameters` of this rank."""
    return _AVERAGE_BYTES * parameters / (machine.hbm * machine.hbm_efficiency)

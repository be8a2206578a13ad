"""Time of what one GPU computes: matrix products, attention, element-wise kernels, optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from .framework import Framework
from .layout import Layout
from .machine import Machine
from .shape import Shape

# Bytes that unfused element-wise kernels of a layer move per token in a forward, per unit of
# `hidden` (two norms, two residuals with dropout, rotary embedding) and of `ffn` (activation).
_RESIDUAL_BYTES = 24.0
_ROTARY_BYTES = 8.0
_ACTIVATION_BYTES = 6.0
# Unfused attention: bytes per element of the s x s matrix, softmax and dropout, a forward.
_SOFTMAX_BYTES = 10.0
_LOGITS_BYTES = 14.0  # of cross-entropy in float32, per logit, a forward
_OPTIMIZER_BYTES = 32.0  # read weight, gradient, two moments; write weight, moments, half copy
_KERNELS = 16  # of a layer's forward


@dataclass(frozen=True)
class Work:
    """Seconds of one layer, or of the head, on one rank and micro-batch.

    `matmul`, `attention` and `elementwise` are of a forward; a backward does each `..._back` times.
    """

    matmul: float
    attention: float
    elementwise: float
    attention_back: float = 2.5
    floor: float = 0.0  # seconds that the processor needs to launch the forward's kernels

    @property
    def busy(self) -> float:
        """Forward and backward, without what the processor's launches add."""
        return 3 * (self.matmul + self.elementwise) + (1 + self.attention_back) * self.attention

    @property
    def forward(self) -> float:
        return max(self.matmul + self.attention + self.elementwise, self.floor)

    @property
    def backward(self) -> float:
        busy = 2 * (self.matmul + self.elementwise) + self.attention_back * self.attention
        return max(busy, 2 * self.floor)


def matmul(machine: Machine, m: float, n: float, k: float, fp8: bool = False) -> float:
    """Return the seconds of a product of m x k and k x n.

    2mnk / (peak x e), e = e_max x / (x + x_half) in x = 2mnk FLOPs: small products fill the GPU
    only in part and start slowly. Never faster than its operands pass the memory (roofline).
    """
    flops = 2.0 * m * n * k
    peak = machine.peak_flops * machine.matmul_efficiency
    seconds = (flops / (machine.fp8_speedup or 1.0 if fp8 else 1.0) + machine.matmul_half) / peak
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
    hbm = machine.hbm * machine.hbm_efficiency
    split = t if layout.sequence_parallel else 1
    moved = _RESIDUAL_BYTES * h / split + (_ROTARY_BYTES * h + _ACTIVATION_BYTES * shape.ffn) / t
    moved *= tokens * framework.traffic
    pairs = tokens * shape.seq
    flops = 4.0 * pairs * h / t
    if framework.fused_attention:
        core = flops / 2 / (machine.peak_flops * machine.attention_efficiency)
        back = 2.5
    else:
        softmax = _SOFTMAX_BYTES * pairs * shape.heads / t / hbm
        core = flops / (machine.peak_flops * machine.matmul_efficiency * 0.7) + softmax
        back = 2.0
    return Work(seconds, core, moved / hbm, back, _KERNELS * machine.launch)


def head(shape: Shape, layout: Layout, machine: Machine) -> Work:
    """Return the work of the output layer and the loss; embeddings cost next to nothing."""
    tokens = layout.micro_batch * shape.seq / layout.cp
    product = matmul(machine, tokens, shape.vocab / layout.tp, shape.hidden)
    moved = _LOGITS_BYTES * tokens * shape.vocab / layout.tp
    return Work(product, 0.0, moved / (machine.hbm * machine.hbm_efficiency))


def recomputed(work: Work, layout: Layout, framework: Framework) -> float:
    """Return the seconds of forwards done again in a backward: all of a layer's, or attention's."""
    if layout.recompute == "full":
        return work.forward
    if layout.recompute == "selective":
        return work.elementwise if framework.fused_attention else work.attention
    return 0.0


def optimizer(parameters: float, machine: Machine) -> float:
    """Return the seconds of Adam over `parameters` of this rank: bytes moved / memory bandwidth."""
    return _OPTIMIZER_BYTES * parameters / (machine.hbm * machine.hbm_efficiency)

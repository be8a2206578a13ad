"""What the layers and the loss of rankup's own recipes move and keep, as counted in torch.

`tests/plan/test_counts.py` holds each number to the recipes' models: bytes that kernels read and
write, and bytes that are alive between forward and backward. Of published runs, whose kernels are
not known, `framework.py` has what was fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..recipes.options import LOGITS_AT_ONCE
from .layout import Layout
from .shape import Shape


@dataclass(frozen=True)
class Loss:
    """Bytes per logit.

    Attributes:
        forward, backward: that the cross-entropy moves.
        peak: that logits, their gradient and what is between take at most.
        chunk: bytes beside the peak, of the rows that are in float32 at a time.
    """

    forward: float
    backward: float
    peak: float
    chunk: float = 0.0


def elementwise(shape: Shape, layout: Layout) -> tuple[float, float]:
    """Return the bytes per token that a layer of the eager Llama moves in a forward and a backward
    beside products and attention, in half precision.

    Forward: two norms read and write the stream (4h each), two sums read two and write one (6h);
    rotary positions multiply halves of queries and keys four times, add and join them (18 of each
    width); SiLU and the gate (4f + 6f). The backward adds what query, key and value, and gate and
    up, give back to their common input.
    """
    h, f, t = shape.hidden, shape.ffn, layout.tp
    turned = h + shape.kv_width
    forward = (20.0 * h + 18.0 * turned + 10.0 * f) / t
    # What the columns of several maps give back is of all tokens on each rank.
    backward = (24.0 * h + 20.0 * turned + 18.0 * f) / t + 18.0 * h
    return forward, backward


def activations(shape: Shape, layout: Layout, compiled: bool) -> float:
    """Return the bytes per token that a layer keeps of a micro-batch, in half precision.

    `none`: the stream before both halves, what the norms make of it, queries, keys, values, the
    attention's output; the insides of the feed-forward layer, of which a compiled one computes the
    gate's SiLU again. Under tensor parallelism each rank has all tokens of what its columns
    multiply. `selective` keeps the input, attention's output and those of products, compiled not of
    the last; of products by rows each rank's part of the sum as well.
    """
    h, t = shape.hidden, layout.tp
    if layout.recompute == "full":
        return 2.0 * h / t
    if layout.recompute == "selective":
        inside = (4 if shape.gated else 2) * shape.ffn
        whole = (8.0 if compiled else 10.0) * h + 4.0 * shape.kv_width + inside
        return whole / t + (4.0 * h if t > 1 else 0.0)
    inside = ((6 if compiled else 8) if shape.gated else 4) * shape.ffn
    masks = 2.0 * h if shape.dropout else 0.0
    return (8.0 * h + 4.0 * shape.kv_width + inside + masks) / t + 4.0 * h


def loss(logits: float, layout: Layout, compiled: bool) -> Loss:
    """Return what the recipes' cross-entropy of so many logits on a rank moves and keeps.

    Eager: to float32, log-softmax; and backward the gradients of both, and of the choice between
    them. Many logits go through it by rows, and again in the backward, so that only some are in
    float32. Compiled it is a kernel that reads them, and one that reads them and writes their
    gradient. Where tensor parallel ranks share the logits it is neither: torch's `loss_parallel`
    takes four kernels each way.
    """
    value = layout.value_bytes
    if compiled and layout.tp == 1:
        return Loss(value, 2 * value, 2 * value)
    cast = 0.0 if layout.precision == "fp32" else value + 4
    if layout.tp > 1:
        return Loss(cast + 32, cast + 32, 16.0)
    forward, backward = cast + 8, cast + 16
    if logits <= LOGITS_AT_ONCE:
        return Loss(forward, backward, 12.0)
    return Loss(forward, backward + forward + 2 * value, 2 * value, 12.0 * LOGITS_AT_ONCE)

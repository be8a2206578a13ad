"""Memory of the most loaded rank."""

from __future__ import annotations

import math
from dataclasses import replace

from . import counted
from .framework import Framework
from .layout import Layout, Recompute
from .pipeline import kept, stage_layers
from .shape import Shape

CONTEXT = 1.5 * 2**30  # CUDA context, NCCL's buffers, libraries' workspaces
# Bytes per parameter of copies that train apart: where they began, and the outer momentum.
OUTER = {"local-sgd": 4.0, "diloco": 8.0}
FRAGMENTATION = 0.05  # of what the caching allocator gives out

Parts = tuple[tuple[str, float], ...]


def activations(shape: Shape, layout: Layout, framework: Framework | None = None) -> float:
    """Return the bytes that one layer keeps of one micro-batch.

    Korthikanti 2022, table 2, in units of s b h: 34 + 5as/h; tensor parallel 10 + 24/t + 5as/(ht);
    with sequence parallelism all of it over t; the last term goes with selective recomputation or
    fused attention; full recomputation keeps the layer's input, 2. What a `framework` keeps
    instead of the 34 is in units of h and of f. Where "selective" keeps the outputs of matrix
    products, these and the attention's. Of a recipe's layer it is counted.
    """
    tokens, t, h = layout.micro_batch * shape.seq / layout.cp, layout.tp, shape.hidden
    split = t if layout.sequence_parallel else 1
    if layout.recompute == "full":
        return layout.value_bytes * tokens * h / split
    if framework is not None and framework.recipe:
        total = tokens * counted.activations(shape, layout, framework.compiled)
        return (total + _attended(shape, layout, framework)) * layout.value_bytes / 2
    if framework is None:
        whole, shared, fused = 10.0 * h, 24.0 * h, False
    else:
        kept_bytes = framework.activation_hidden * h + framework.activation_ffn * shape.ffn
        fused = framework.fused_attention
        if layout.recompute == "selective" and framework.selective is not None:
            kept_bytes = _products(shape, framework.selective)
        whole = min(10.0 * h, 0.3 * kept_bytes)
        shared = kept_bytes - whole
    total = tokens * (whole / split + shared / t)
    if layout.recompute == "none" and not fused:
        total += 5.0 * shape.heads * shape.seq * tokens / t
    total += _attended(shape, layout, framework)
    return total * layout.value_bytes / 2  # the published ones are of half precision


def _of_layers(shape: Shape, layout: Layout, framework: Framework) -> float:
    """Return the bytes that the layers of a rank keep of one micro-batch."""
    layers = stage_layers(layout, shape.layers)
    if layout.recompute != "selective:2":
        return layers * activations(shape, layout, framework)
    # The model's first layer keeps all, the second its input, and so on: of an odd number in a
    # stage the larger half, where the stage begins with one that keeps all.
    whole = math.ceil(layers / layout.interleave / 2) * layout.interleave
    every, inputs = (
        activations(shape, replace(layout, recompute=how), framework) for how in ("none", "full")
    )
    return whole * every + (layers - whole) * inputs


def _attended(shape: Shape, layout: Layout, framework: Framework | None) -> float:
    """Return the bytes that attention keeps beside the tokens of a rank, in half precision."""
    if layout.recompute != "none":
        return 0.0
    tokens, kept_bytes = layout.micro_batch * shape.seq / layout.cp, 0.0
    if framework is not None and framework.gathers_context:  # keys and values of the other ranks
        kept_bytes += 4.0 * shape.kv_width / layout.tp * tokens * (layout.cp - 1)
    if shape.masked and layout.needs_masks:  # each layer keeps a mask of its own, of values
        kept_bytes += 2.0 * shape.seq * tokens
    return kept_bytes


def _products(shape: Shape, share: float) -> float:
    """Return the bytes per token of a layer's input, its attention's output, and `share` of the
    outputs of its products."""
    h = shape.hidden
    outputs = 2 * h + (h + 2 * shape.kv_width) + (2 if shape.gated else 1) * shape.ffn
    return 4.0 * h + 2.0 * share * outputs


def states(
    layout: Layout, framework: Framework, parameters: float, trained: float | None = None
) -> tuple[float, float, float]:
    """Return the bytes of weights, gradients and optimizer states of `parameters` parameters.

    Only those that are `trained`, by default all, have a gradient and states.
    ZeRO [Rajbhandari 2020]: stage 1 shards the optimizer's over the data-parallel ranks, 2
    gradients too, 3 weights too. In a pipeline gradients stay whole until the last micro-batch.
    """
    trained = parameters if trained is None else trained
    each = zip(framework.states, (parameters, trained, trained), strict=True)
    weights, gradients, optimizer = (size * count for size, count in each)
    shard = layout.shards
    optimizer /= shard if layout.zero >= 1 else 1
    gradients /= shard if layout.zero >= 2 and layout.pp == 1 else 1
    weights /= shard if layout.zero >= framework.shards_weights else 1
    return weights, gradients, optimizer


def stage_parameters(shape: Shape, layout: Layout, stage: int) -> tuple[float, float]:
    """Return the parameters of a rank of `stage`, of its layers and of the ends; and the trained.

    Which layers are frozen is not known here: each counts as their mean.
    """
    layers = stage_layers(layout, shape.layers)
    beside = layers * shape.adapter_parameters
    total = float(layers * shape.layer_parameters + beside)
    trained = total * (1 - shape.frozen_layer) + beside * shape.frozen_layer
    ends = []
    if stage == 0:
        ends.append((shape.embedding_parameters, shape.frozen_embedding))
    if stage == layout.pp - 1:
        # A tied head is a second copy where it lies on another rank than the embedding.
        head = shape.vocab * shape.hidden if layout.pp > 1 else shape.head_parameters
        ends.append((head, shape.frozen_head))
    for count, frozen in ends:
        total += count
        trained += 0 if frozen else count
    if stage == layout.pp - 1:
        total, trained = total + shape.last, trained + shape.last
    return total / layout.tp, trained / layout.tp


def memory(shape: Shape, layout: Layout, framework: Framework) -> Parts:
    """Return name and bytes of each part, for the stage that needs most."""
    return max(
        (_stage(shape, layout, framework, stage) for stage in {0, layout.pp - 1}),
        key=lambda parts: sum(size for _, size in parts),
    )


def _stage(shape: Shape, layout: Layout, framework: Framework, stage: int) -> Parts:
    tokens = layout.micro_batch * shape.seq / layout.cp
    parameters, trained = stage_parameters(shape, layout, stage)
    weights, gradients, optimizer = states(layout, framework, parameters, trained)
    kept_bytes = kept(layout, stage) * _of_layers(shape, layout, framework)
    kept_bytes *= 1 - shape.still
    if layout.recompute != "none":  # the layer that is being computed again has all of its own
        whole = activations(shape, replace(layout, recompute="none"), framework)
        how: Recompute = "full" if layout.recompute == "selective:2" else layout.recompute
        kept_bytes += whole - activations(shape, replace(layout, recompute=how), framework)
    logits = 0.0
    if stage == layout.pp - 1:
        logits = tokens * shape.vocab / layout.tp
        if framework.recipe:
            loss = counted.loss(logits, layout, framework.compiled)
            logits = loss.peak * logits + loss.chunk
        else:
            logits *= framework.logits
    gathered = 0.0
    if layout.zero == 3:
        largest = max(shape.layer_parameters, shape.embedding_parameters) / layout.tp
        gathered = layout.value_bytes * (shape.layer_parameters / layout.tp + largest)
        if layout.pp > 1:  # gathered once per step, kept until its last micro-batch
            gathered = layout.value_bytes * parameters
    if 3 > layout.zero >= framework.shards_weights:  # until the end of the step
        gathered = layout.value_bytes * parameters
    copies = 0.0
    if framework.autocast and layout.zero < 1 and layout.precision != "fp32":
        copies = layout.value_bytes * parameters
    average = 0.0
    if shape.averaged:
        average = 4.0 * trained / (layout.shards if layout.zero >= 3 else 1)
    buffers = 2 * 25 * 2**20 if layout.data > 1 and layout.zero < framework.shards_weights else 0.0
    parts = [
        ("weights", weights),
        ("half-precision copies", copies),
        ("gradients", gradients),
        ("optimizer", optimizer),
        ("average of the weights", average),
        ("outer optimizer", OUTER.get(layout.strategy, 0.0) * parameters),
        ("activations", kept_bytes),
        ("logits", logits),
        ("gathered layers", gathered),
        ("communication buffers", buffers),
    ]
    loose = FRAGMENTATION * sum(size for _, size in parts)
    parts += [("fragmentation", loose), ("CUDA context and libraries", CONTEXT)]
    return tuple((name, size) for name, size in parts if size)

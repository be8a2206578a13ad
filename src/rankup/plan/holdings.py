"""Who holds what of a model: which ranks share what, and each one's part of every weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..base.amounts import number, words
from ..base.text import columns
from .estimate import Estimate
from .framework import FRAMEWORKS
from .layout import Layout
from .machine import GIB
from .memory import stage_parameters, states
from .pipeline import stage_layers
from .shape import Shape

# Maps whose outputs are cut over tensor-parallel ranks; of the others it is the inputs.
_BY_INPUTS = ("attention.output", "feed_forward.down")


@dataclass(frozen=True)
class Weight:
    """A parameter, or one of each layer, and how it is cut.

    Attributes:
        name: as in the recipe's model; what layers have without their number.
        shape: of the whole of it.
        tp_dim: the dimension that is cut over tensor-parallel ranks; None: each has all of it.
        stage: 0 where the first pipeline stage has it, -1 the last one; None: that of its layer.
    """

    name: str
    shape: tuple[int, ...]
    tp_dim: int | None = None
    stage: int | None = None

    def part(self, layout: Layout, tp: int = 0, shard: int = 0) -> tuple[int, ...]:
        """Return the shape of what a rank at these places of the axes has, as torch cuts: equal
        parts, the last ones short; over the tensor axis first, then the first dimension."""
        shape = list(self.shape)
        if self.tp_dim is not None:
            shape[self.tp_dim] = _chunk(shape[self.tp_dim], layout.tp, tp)
        shape[0] = _chunk(shape[0], layout.dp_shard * layout.cp, shard)
        return tuple(shape)


def _chunk(size: int, parts: int, place: int) -> int:
    full = -(-size // parts)
    return max(0, min(full, size - place * full))


def weights(shape: Shape) -> Iterator[Weight]:
    """Yield the parameters of a model, those that all layers have once."""
    h = shape.hidden
    yield Weight("tokens", (shape.vocab, h), 0, 0)
    if shape.positions:
        yield Weight("positions", (shape.positions, h), None, 0)
    yield Weight("attention_norm", (h,))
    for name, (inputs, outputs) in shape.maps.items():
        yield Weight(name, (outputs, inputs), 1 if name in _BY_INPUTS else 0)
    yield Weight("feed_forward_norm", (h,))
    if not shape.tied:
        yield Weight("head", (shape.vocab, h), 0, -1)


def lines(estimate: Estimate) -> Iterator[str]:
    """Yield which ranks share what, what a rank of each stage keeps, and how weights are cut."""
    shape, layout = estimate.shape, estimate.layout
    nodes = math.ceil(layout.gpus / estimate.machine.gpus_per_node)
    ranks = words(layout.gpus, "rank", "ranks")
    yield f"who holds what: {ranks} on {words(nodes, 'node', 'nodes')}"
    yield from _groups(layout)
    yield ""
    yield from columns([*_stages(shape, layout)], left=(0, -1))
    yield ""
    yield from columns([*_cuts(shape, layout)], left=(0, -1))


def _groups(layout: Layout) -> Iterator[str]:
    """The ranks that share something with rank 0; the last axis runs fastest."""
    axes = (
        ("pp", layout.pp, "hold the stages of one model, in this order"),
        ("dp", layout.dp_replicate, "hold the same, of different samples"),
        ("shard", layout.dp_shard, "each hold a part of every weight, of different samples"),
        ("cp", layout.cp, "each hold a part of every weight, and of each sequence"),
        ("tp", layout.tp, "share each product"),
    )
    stride = layout.gpus
    for name, size, what in axes:
        stride //= size
        if size > 1:
            ranks = [place * stride for place in range(size)]
            shown = ranks if size <= 4 else [*ranks[:2], "...", ranks[-1]]
            yield f"  {name} {size}: ranks {', '.join(map(str, shown))} {what}"


def _stages(shape: Shape, layout: Layout) -> Iterator[list[str]]:
    """What a rank keeps of its stage; of a pipeline first, middle and last ones."""
    yield ["stage", "parameters", "weights", "gradients", "optimizer", "of"]
    layers, framework = stage_layers(layout, shape.layers), FRAMEWORKS[layout.framework]
    held = f"{layers} of {shape.layers} layers" if layout.pp > 1 else f"{layers} layers"
    middle = ["1" if layout.pp == 3 else f"1-{layout.pp - 2}"] if layout.pp > 2 else []
    names = ["0", *middle, *([str(layout.pp - 1)] if layout.pp > 1 else [])]
    for name, stage in zip(names, sorted({0, min(1, layout.pp - 1), layout.pp - 1}), strict=True):
        parameters, trained = stage_parameters(shape, layout, stage)
        sizes = states(layout, framework, parameters, trained)
        ends = ["embedding"] * (stage == 0) + ["head"] * (stage == layout.pp - 1)
        shared = layout.shards if layout.zero >= framework.shards_weights else 1
        yield [
            name,
            number(parameters / shared),
            *map(_bytes, sizes),
            ", ".join([held, *ends]),
        ]


def _bytes(count: float) -> str:
    return f"{count / GIB:.3g} GiB" if count > GIB / 10 else f"{count / 2**20:.3g} MiB"


def _cuts(shape: Shape, layout: Layout) -> Iterator[list[str]]:
    yield ["weight", "whole", "on a rank", "cut"]
    for weight in weights(shape):
        cut = [f"tp: dim {weight.tp_dim}"] if layout.tp > 1 and weight.tp_dim is not None else []
        cut += ["shard: dim 0"] if layout.dp_shard * layout.cp > 1 else []
        whole, part = (" x ".join(map(str, size)) for size in (weight.shape, weight.part(layout)))
        yield [weight.name, whole, part, ", ".join(cut) or "each has all of it"]

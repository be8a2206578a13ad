"""Names and numbers on the axes of plots."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ....base.amounts import number
from ...recording import Recording
from ..plots import Plot
from .fonts import Font, written

_NAME = Font(5.2)
_WIDTH = 36.0  # points for a name


def thing(plot: Plot) -> str:
    """What has a row in the plot."""
    return {"gpu": "GPU", "host": "node", "rank": "rank"}[plot.channel.of]


def rows_of(axes: Axes, recording: Recording, plot: Plot, tall: float, per_row: int) -> None:
    """Names of a heat map's rows where they find room, else numbers of a few of them.

    Args:
        tall: points; per_row: things in a row of the picture.
    """
    count = len(plot.average)
    axes.tick_params(axis="y", length=0, labelsize=_NAME.size)
    if count * 6.0 <= tall + 3:
        places = (np.arange(count) + 0.5).tolist()
        texts = [_NAME.cut(name, _WIDTH) for name in _names(recording, plot)]
    else:
        ends = sorted({0, count // 2, count - 1})
        places, texts = [(place + 0.5) / per_row for place in ends], [str(place) for place in ends]
    axes.set_yticks(places, texts)
    labels = axes.get_yticklabels()
    for label in labels:
        label.set_parse_math(False)
    if labels and len(labels) < count:  # beside the picture, not above or below it
        labels[0].set_verticalalignment("top")
        labels[-1].set_verticalalignment("bottom")


def plain_numbers(axes: Axes) -> None:
    """The values of a plot in few digits, without a power of ten apart from them."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: _short(value)))


def _short(value: float) -> str:
    return number(value) if abs(value) >= 10_000 else f"{value:.4g}"


def _names(recording: Recording, plot: Plot) -> list[str]:
    """Of a node the last letters, of a GPU its number too."""
    nodes = [written(name) for name in recording.nodes]
    if plot.channel.of == "gpu":
        alone = len(nodes) == 1
        return [
            f"GPU {gpu.index}" if alone else f"{nodes[int(node)][-4:]}:{gpu.index}"
            for node, gpu in zip(recording.gpu_node, recording.gpus, strict=True)
        ]
    if plot.channel.of == "rank":
        return [f"rank {int(rank)}" for rank in recording.ranks]
    return [name[-7:] for name in nodes]

"""Who holds what, drawn: nodes as frames, ranks as boxes with a little map of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...parallel.holdings import Holding
from ...parallel.layout import AXES, FLAG
from .text import Shown, modules, what
from .words import ranges, size

_COLOURS = (
    *("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d"),
)
_INK, _LINE, _FRAME, _EMPTY = "#222222", "#9a9a9a", "#e8e8e8", "#ffffff"
_DOTS = 110  # of an inch
_READABLE = 128  # ranks; with more there is room for their numbers alone
_LEGEND = 24  # stages that are told by name
_WIDE = 27  # letters in a box


@dataclass(frozen=True)
class _Sizes:
    """In inches: a rank's box, the gap between boxes, a node's title."""

    width: float
    height: float
    gap: float
    title: float
    font: float


def draw(shown: Shown, path: Path) -> None:
    """Write the picture of a split model as a PNG."""
    from matplotlib.figure import Figure

    layout, per_node = shown.layout, shown.per_node
    few = layout.world_size <= _READABLE
    sizes = _Sizes(1.5, 1.1, 0.08, 0.24, 7.5) if few else _Sizes(0.5, 0.3, 0.05, 0.2, 7)
    nodes = -(-layout.world_size // per_node)
    across = min(per_node, 4)
    down = -(-per_node // across)
    frame = (
        across * (sizes.width + sizes.gap) + sizes.gap,
        down * (sizes.height + sizes.gap) + sizes.gap + sizes.title,
    )
    columns = _columns(nodes, frame)
    legend = _legend(shown)
    top, bottom = 0.75, sum(0.3 if colour else 0.2 for colour, _ in legend) + 0.2
    width = max(columns * (frame[0] + 0.2) + 0.2, 7.0)
    height = -(-nodes // columns) * (frame[1] + 0.2) + top + bottom
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    held = {rank: one for one in shown.held for rank in one.ranks}
    _head(axes, shown, nodes)
    for node in range(nodes):
        row, column = divmod(node, columns)
        x, y = 0.2 + column * (frame[0] + 0.2), top + row * (frame[1] + 0.2)
        _box(axes, x, y, *frame, _FRAME)
        _say(axes, x + 0.08, y + sizes.title / 2 + 0.03, f"node {node}", sizes.font + 0.5)
        ranks = range(node * per_node, min((node + 1) * per_node, layout.world_size))
        for rank in ranks:
            local_row, local_column = divmod(rank - ranks[0], across)
            left = x + sizes.gap + local_column * (sizes.width + sizes.gap)
            upper = y + sizes.title + sizes.gap + local_row * (sizes.height + sizes.gap)
            _rank(axes, left, upper, sizes, shown, rank, held[rank], few)
    _foot(axes, legend, height - bottom + 0.2)
    figure.savefig(path, dpi=_DOTS)


def _columns(nodes: int, frame: tuple[float, float]) -> int:
    """Nodes side by side, so that the picture is about one and a half times as wide as high."""

    def shape(columns: int) -> float:
        rows = -(-nodes // columns)
        empty = columns * rows - nodes
        return abs(columns * frame[0] / (rows * frame[1]) - 1.5) + 0.2 * empty

    return min(range(1, nodes + 1), key=shape)


def _head(axes: Any, shown: Shown, nodes: int) -> None:
    layout = shown.layout
    ranks = f"{layout.world_size} rank{'s' if layout.world_size > 1 else ''}"
    where = f"{nodes} node{'s' if nodes > 1 else ''} of {shown.per_node}"
    _say(axes, 0.2, 0.25, f"{shown.name}: {layout}", 11, bold=True)
    _say(
        axes,
        0.2,
        0.52,
        f"{ranks} on {where}; {shown.parameters:,} parameters, {size(shown.weights)}; a rank's "
        f"bytes: weights, gradients, {shown.optimizer}",
        8,
    )


def _rank(
    axes: Any,
    x: float,
    y: float,
    sizes: _Sizes,
    shown: Shown,
    rank: int,
    one: Holding,
    few: bool,
) -> None:
    colour = _colour(one.part.pp)
    _box(axes, x, y, sizes.width, sizes.height, _pale(colour), colour, 1.2)
    place = shown.layout.coordinates(rank)
    if not few:
        _say(axes, x + sizes.width / 2, y + sizes.height / 2, str(rank), sizes.font, at="center")
        return
    _in_words(axes, x, y, sizes, shown, rank, one)
    lines = -(-sum(of > 1 for of in shown.layout.sizes) // 2)
    above = 0.38 + 0.14 * lines
    area = (x + 0.07, y + above, sizes.width - 0.14, sizes.height - above - 0.07)
    _map(axes, area, shown, place, one)


def _in_words(
    axes: Any, x: float, y: float, sizes: _Sizes, shown: Shown, rank: int, one: Holding
) -> None:
    """A rank's number, bytes, coordinates and modules."""
    _say(axes, x + 0.07, y + 0.14, f"rank {rank}", sizes.font + 0.5, bold=True)
    _say(axes, x + sizes.width - 0.07, y + 0.14, size(one.bytes), sizes.font, at="right")
    named = [
        f"{FLAG[axis][2:]} {here}"
        for axis, here, of in zip(
            AXES, shown.layout.coordinates(rank), shown.layout.sizes, strict=True
        )
        if of > 1
    ]
    lines = ["  ".join(named[i : i + 2]) for i in range(0, len(named), 2)]
    for number, words in enumerate([*lines, _short(modules(one))]):
        _say(axes, x + 0.07, y + 0.3 + 0.14 * number, words, sizes.font - 0.5)


def _short(words: list[str]) -> str:
    """As many of the words as a box is wide: the first and the last ones."""
    text = ", ".join(words)
    if len(text) > _WIDE and len(words) > 2:
        text = f"{words[0]} … {words[-1]}"
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 1]}…"


def _map(
    axes: Any,
    area: tuple[float, float, float, float],
    shown: Shown,
    place: tuple[int, ...],
    one: Holding,
) -> None:
    """The model: stages from left to right, parts of their parameters from top to bottom."""
    x, y, width, height = area
    layout = shown.layout
    stages = sum(len(part.stages) for part in {h.part.pp: h.part for h in shown.held}.values())
    parts = layout.dp_shard * layout.tp
    _, _, shard, tp = place
    # The tensor axis cuts first, and each of its parts is cut over the sharded one.
    mine = tp * layout.dp_shard + shard
    _box(axes, x, y, width, height, _EMPTY, "none")
    for stage in one.part.stages:
        left, upper = x + width * stage / stages, y + height * mine / parts
        thin = max(height / parts, 0.02)
        _box(axes, left, upper, width / stages, thin, _colour(one.part.pp), "none")
    for i in range(1, stages):
        _line(axes, (x + width * i / stages,) * 2, (y, y + height))
    for i in range(1, parts if parts <= 16 else 0):
        _line(axes, (x, x + width), (y + height * i / parts,) * 2)


def _legend(shown: Shown) -> list[tuple[str, str]]:
    """A line per place of the pp axis: its colour, and what its ranks hold."""
    lines = []
    for pp in dict.fromkeys(one.part.pp for one in shown.held):
        alike = [one for one in shown.held if one.part.pp == pp]
        ranks = ranges(rank for one in alike for rank in one.ranks)
        sums = [one.bytes for one in alike]
        weigh = " to ".join(dict.fromkeys((size(min(sums)), size(max(sums)))))
        told = f"ranks {ranks}   {what(shown, alike[0])}   ({weigh} each)"
        lines.append((_colour(pp), told))
    if len(lines) > _LEGEND:
        lines[_LEGEND:] = [(_EMPTY, f"and {len(lines) - _LEGEND} more")]
    if shown.layout.world_size > _READABLE:
        return lines
    return [
        *lines,
        ("", "In a box: the model from its first layers on the left to its last on the right, and "
         "from top to bottom"),
        ("", "the parts that its parameters are cut into; the coloured one is the rank's own."),
    ]  # fmt: skip


def _foot(axes: Any, legend: list[tuple[str, str]], y: float) -> None:
    for colour, words in legend:
        if colour:
            _box(axes, 0.2, y - 0.09, 0.3, 0.18, colour)
        _say(axes, 0.62 if colour else 0.2, y, words, 8)
        y += 0.3 if colour else 0.2  # as `draw` has left room for


def _colour(pp: int) -> str:
    return _COLOURS[pp % len(_COLOURS)]


def _pale(colour: str) -> str:
    """A colour as on thin paper."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{255 - (255 - part) // 4:02x}" for part in parts)


def _box(
    axes: Any,
    x: float,
    y: float,
    width: float,
    height: float,
    colour: str,
    edge: str = _LINE,
    line: float = 0.8,
) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=colour, edgecolor=edge, linewidth=line)
    )


def _line(axes: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.plot(x, y, color=_FRAME, linewidth=0.7)


def _say(
    axes: Any, x: float, y: float, text: str, font: float, at: str = "left", bold: bool = False
) -> None:
    axes.text(
        x, y, text, ha=at, va="center", fontsize=font, color=_INK,
        weight="bold" if bold else "normal", parse_math=False,
    )  # fmt: skip

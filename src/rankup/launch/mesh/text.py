"""Who holds what, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...parallel.holdings import Holding, Piece, rows
from ...parallel.layout import AXES, FLAG, Layout
from .words import dims, pattern, ranges, size, span, together, units


@dataclass(frozen=True)
class Shown:
    """All that is told of a split model.

    Attributes:
        name: of the target.
        per_node: ranks on each node.
        held: what all ranks hold.
        parameters, weights: of the whole model, in numbers and bytes.
        optimizer: its name.
    """

    name: str
    layout: Layout
    per_node: int
    held: Sequence[Holding]
    parameters: int
    weights: int
    optimizer: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def text(shown: Shown) -> str:
    """The mesh, what ranks hold, and how each parameter is cut."""
    layout = shown.layout
    nodes = -(-layout.world_size // shown.per_node)
    head = [
        f"{shown.name}: {shown.parameters:,} parameters, {size(shown.weights)}",
        *(f"  {note}" for note in shown.notes),
        f"{_many(layout.world_size, 'rank')} on {_many(nodes, 'node')} of {shown.per_node}: "
        f"{layout}",
    ]
    return "\n".join([*head, "", *_mesh(shown), "", *_ranks(shown), "", *_pieces(shown)])


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def _mesh(shown: Shown) -> list[str]:
    """Where the ranks are; many of them in ranges."""
    head = ["node", "rank", *(FLAG[axis][2:] for axis in AXES)]
    lines = []
    for block in rows(shown.layout, shown.per_node):
        nodes = range(block.ranks[0] // shown.per_node, block.ranks[-1] // shown.per_node + 1)
        lines.append([span(nodes), span(block.ranks), *map(span, block.spans)])
    return _table(head, lines, left=0)


def _ranks(shown: Shown) -> list[str]:
    """What ranks hold, those that hold alike in one line."""
    head = ["ranks", "parameters", "weights", "gradients", shown.optimizer, "sum", "holds"]
    lines, totals = [], [0] * 5
    for one in shown.held:
        each = [one.parameters, one.weights + one.buffers, one.gradients, one.optimizer, one.bytes]
        lines.append([ranges(one.ranks), *_numbers(each), what(shown, one)])
        totals = [total + len(one.ranks) * n for total, n in zip(totals, each, strict=True)]
    times = totals[0] / shown.parameters if shown.parameters else 1.0
    lines.append(["all", *_numbers(totals), f"{times:.4g} times the model"])
    return [
        "what one rank of them keeps (activations, and weights gathered for use, come on top"
        + (", here a stage's weights and gradients whole)" if _gathers_stages(shown) else ")"),
        *_table(head, lines, left=1, last_left=True),
    ]


def _numbers(counts: Sequence[int]) -> list[str]:
    """The first as a number, the others as bytes."""
    return [f"{counts[0]:,}", *map(size, counts[1:])]


def what(shown: Shown, one: Holding) -> str:
    """`stage 0: tokens, blocks.0-1`, or the modules alone without stages."""
    named = ", ".join(modules(one)) or "nothing"
    return named if shown.layout.pp == 1 else f"{stages(one)}: {named}"


def modules(one: Holding) -> list[str]:
    """The modules whose parameters ranks hold something of, numbered layers as one."""
    pieces = zip(one.part.pieces, one.shapes, strict=True)
    return units(piece.name for piece, shape in pieces if 0 not in shape)


def _gathers_stages(shown: Shown) -> bool:
    """A pipeline keeps its stage whole for all chunks of a step."""
    return shown.layout.pp > 1 and shown.layout.dp_shard > 1


def stages(one: Holding) -> str:
    numbers = one.part.stages
    return f"stage{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _pieces(shown: Shown) -> list[str]:
    """How each parameter is cut, stage by stage."""
    lines: list[str] = []
    for pp in dict.fromkeys(one.part.pp for one in shown.held):
        alike = [one for one in shown.held if one.part.pp == pp]
        if lines:
            lines.append("")
        if shown.layout.pp > 1:
            ranks = [rank for one in alike for rank in one.ranks]
            lines.append(f"{stages(alike[0])}, ranks {ranges(ranks)}")
        lines += _stage(alike, shown.layout)
    return lines


def _stage(alike: Sequence[Holding], layout: Layout) -> list[str]:
    """The parameters at one place of the pp axis; those of numbered layers in one line."""
    pieces = alike[0].part.pieces
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for i, piece in enumerate(pieces):
        shapes = list(dict.fromkeys(dims(one.shapes[i]) for one in alike))
        told = (dims(piece.shape), _few(shapes), _cut(piece, layout))
        groups.setdefault((pattern(piece.name), told), []).append(piece.name)
    lines = [
        [together(names), f"{len(names)} of" if len(names) > 1 else "", *told]
        for (_, told), names in groups.items()
    ]
    head = ["parameter", "", "whole", "on one rank", "cut"]
    return _table(head, lines, left=1, last_left=True)


def _few(words: Sequence[str], most: int = 3) -> str:
    """Some of many shapes: with uneven parts there are two or three."""
    shown = [*words[: most - 1], f"… {words[-1]}"] if len(words) > most else words
    return " or ".join(shown)


def _cut(piece: Piece, layout: Layout) -> str:
    """`tp: dim 1, shard: dim 0`; nothing for what each rank has whole."""
    cut = [
        f"{name}: dim {dim}"
        for name, dim, size_of in (
            ("tp", piece.tp_dim, layout.tp),
            ("shard", piece.shard_dim, layout.dp_shard),
        )
        if dim is not None and size_of > 1
    ]
    said = [", ".join(cut)] if cut else []
    if not piece.trained:
        said.append("not trained")
    if piece.copy_of is not None:
        said.append(f"a copy of {piece.copy_of}")
    return "; ".join(said) or "whole"


def _table(
    head: Sequence[str], lines: Sequence[Sequence[str]], left: int, last_left: bool = False
) -> list[str]:
    """Columns as wide as needed; the first `left` of them, and the last if asked, stand left."""
    every = [head, *lines]
    widths = [max(len(line[i]) for line in every) for i in range(len(head))]
    shown = []
    for line in every:
        cells = []
        for i, (cell, width) in enumerate(zip(line, widths, strict=True)):
            at_left = i < left or (last_left and i == len(head) - 1)
            cells.append(cell.ljust(width) if at_left else cell.rjust(width))
        shown.append("  ".join(cells).rstrip())
    return shown

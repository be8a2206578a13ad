"""The parts that ranks hold, as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...base.amounts import words
from ...base.text import columns
from ...parallel.holdings import Holding, Piece, rows
from ...parallel.layout import AXES, FLAG, Layout


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
        f"{words(layout.world_size, 'rank', 'ranks')} on {words(nodes, 'node', 'nodes')} of "
        f"{shown.per_node}: {layout}",
    ]
    return "\n".join([*head, "", *_mesh(shown), "", *_ranks(shown), "", *_pieces(shown)])


def _mesh(shown: Shown) -> list[str]:
    """The places of the ranks; many of them in ranges."""
    shown_axes = [axis for axis in AXES if axis != "cp" or shown.layout.cp > 1]
    head = ["node", "rank", *(FLAG[axis][2:] for axis in shown_axes)]
    lines = []
    for block in rows(shown.layout, shown.per_node):
        nodes = range(block.ranks[0] // shown.per_node, block.ranks[-1] // shown.per_node + 1)
        spans = dict(zip(AXES, block.spans, strict=True))
        places = [span(spans[axis]) for axis in shown_axes]
        lines.append([span(nodes), span(block.ranks), *places])
    return columns([head, *lines])


def _ranks(shown: Shown) -> list[str]:
    """The parts of ranks, those that hold alike in one line."""
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
        *columns([head, *lines], left=(0, -1)),
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
    return shown.layout.pp > 1 and shown.layout.shard_size > 1


def stages(one: Holding) -> str:
    numbers = one.part.stages
    return f"stage{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _pieces(shown: Shown) -> list[str]:
    """The cuts of each parameter, stage by stage."""
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
    return columns([head, *lines], left=(0, -1))


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
            ("shard", piece.shard_dim, layout.shard_size),
        )
        if dim is not None and size_of > 1
    ]
    said = [", ".join(cut)] if cut else []
    if not piece.trained:
        said.append("not trained")
    if piece.copy_of is not None:
        said.append(f"a copy of {piece.copy_of}")
    return "; ".join(said) or "whole"


def ranges(numbers: Iterable[int], most: int = 4) -> str:
    """`0-3, 6`; `0-6 by 2` where they go in equal steps; the first ones alone where they are many.

    Args:
        most: runs that are written out.
    """
    found = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in found:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    steps = {b - a for a, b in pairwise(found)}
    if len(runs) > 2 and len(steps) == 1:
        return f"{found[0]}-{found[-1]} by {steps.pop()}"
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(words) > most:
        return f"{', '.join(words[: most - 1])}, … {words[-1]}"
    return ", ".join(words)


def span(numbers: range) -> str:
    """`3`, or `0-3`."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def units(names: Iterable[str]) -> list[str]:
    """The modules that parameters belong to, layers that are numbered as one: `blocks.0-3`.

    Args:
        names: of parameters: `blocks.0.norm.weight`, `head.weight`.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for name in names:
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            found.setdefault((".".join(parts[:-1]) or name, ""), [])
        else:
            prefix = ".".join(parts[:number])
            found.setdefault((prefix, "numbered"), []).append(int(parts[number]))
    return [
        ".".join(p for p in (prefix, ranges(numbers) if kind else "") if p)
        for (prefix, kind), numbers in found.items()
    ]


def pattern(name: str) -> str:
    """A name with a star for each number in it."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def together(names: Sequence[str]) -> str:
    """One name for several of the same pattern: `blocks.0-3.norm.weight`."""
    parts = [name.split(".") for name in names]
    shown = []
    for column in zip(*parts, strict=True):
        numbers = all(part.isdigit() for part in column)
        shown.append(ranges(map(int, column)) if numbers else column[0])
    return ".".join(shown)


def dims(shape: Sequence[int]) -> str:
    """`256 x 64`."""
    return " x ".join(map(str, shape)) or "1 number"


def size(count: float) -> str:
    """Bytes with a unit and one digit after the point, powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

"""`rankup mesh`: find the target, a recipe or somebody's function, cut it on paper, show it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .. import recipes
from ..base.amounts import words
from ..base.errors import UserError
from ..base.text import columns
from ..parallel.holdings import Holding, Piece, holdings, rows
from ..parallel.layout import AXES, FLAG, Layout, choose, crossing
from ..parallel.user.named import function
from ..site import gpus
from .ready import require_torch

Asked = tuple[str | None, int | None, int | None, int | None, int | None, int | None, str | None]
ADAMW = 2  # numbers that it keeps for each trained one


@dataclass(frozen=True)
class Split:
    """The split of a model over ranks, as asked for; None is left open.

    Attributes:
        nodes, per_node: ranks are nodes x per_node.
    """

    nodes: int
    per_node: int
    strategy: str | None = None
    dp: int | None = None
    shard: int | None = None
    cp: int | None = None
    tp: int | None = None
    pp: int | None = None
    pp_schedule: str | None = None

    @property
    def words(self) -> list[str]:
        """The same as options of a recipe."""
        named = {
            "--strategy": self.strategy,
            "--dp": self.dp,
            "--shard": self.shard,
            "--cp": self.cp,
            "--tp": self.tp,
            "--pp": self.pp,
            "--pp-schedule": self.pp_schedule,
        }
        return [w for name, value in named.items() if value is not None for w in (name, str(value))]


@dataclass(frozen=True)
class Target:
    """A model and the layout it is to be split by.

    Attributes:
        build_model: without arguments; UserError where it does not work on meta tensors.
        example: a loss and a batch, which pipeline stages are balanced with; None without.
        states: numbers that the optimizer keeps per trained one.
        optimizer: its name.
        offload: whether parts are kept in host memory.
        notes, warnings: to be said.
    """

    name: str
    layout: Layout
    build_model: Callable[[], Any]
    example: Any
    schedule: str
    states: int = ADAMW
    optimizer: str = "AdamW"
    offload: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def show(
    target: str,
    args: tuple[str, ...],
    nodes: int,
    per_node: int | None,
    asked: Asked,
) -> int:
    """Print who holds what of TARGET's model.

    Args:
        asked: strategy, dp, shard, cp, tp, pp, and the pipeline's schedule.

    Returns:
        The exit code.

    Raises:
        UserError: the target or the layout is not possible; says why.
    """
    require_torch()
    ranks = per_node or max(1, gpus.visible_gpus(os.environ))
    found = find(target, args, Split(nodes, ranks, *asked))
    from ..parallel.choices import Choices
    from ..parallel.on_paper import on_paper

    choices = Choices(schedule=found.schedule, offload=found.offload)
    paper = on_paper(found.build_model, found.layout, choices, found.example)
    held = holdings(found.layout, paper.parts, found.states)
    shown = Shown(
        found.name,
        found.layout,
        ranks,
        held,
        paper.parameters,
        paper.weights,
        found.optimizer,
        (*found.notes, *paper.notes, *_offloaded(found.offload)),
        found.warnings,
    )
    print(text(shown))
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _offloaded(offload: bool) -> tuple[str, ...]:
    return ("weights, gradients and optimizer state lie in host memory",) if offload else ()


def find(target: str, args: tuple[str, ...], asked: Split) -> Target:
    """Return what TARGET and the words after it mean; imports torch, and a user's module.

    Raises:
        UserError: there is no such recipe, module or function, or the layout does not come out.
    """
    if target in recipes.RECIPES:
        return _recipe(target, args, asked)
    if args:
        raise UserError(
            f"{' '.join(args)} follows {target}, and only a recipe has options of its own; "
            f"options of `rankup mesh` stand in front of TARGET"
        )
    from ..parallel.choices import Choices
    from ..parallel.on_paper import fitting

    build = function(target, recipes.RECIPES)
    schedule = asked.pp_schedule or "1f1b"
    layout = choose(
        asked.nodes * asked.per_node,
        asked.per_node,
        asked.strategy,
        dp=asked.dp,
        shard=asked.shard,
        cp=asked.cp,
        tp=asked.tp,
        pp=asked.pp,
        fits=fitting(build, Choices(schedule=schedule)),
    )
    notes: tuple[str, ...] = ()
    if layout.pp > 1:
        notes = ("stages are balanced by their parameters alone; in a run also by their work",)
    return Target(
        target,
        layout,
        build,
        None,
        schedule,
        notes=notes,
        warnings=_crossing(layout, asked.per_node),
    )


def _recipe(name: str, args: tuple[str, ...], asked: Split) -> Target:
    options = recipes.find(name).parse([*asked.words, *args])
    layout = options.layout(asked.nodes * asked.per_node, asked.per_node)
    warnings = list(_crossing(layout, asked.per_node))
    if idle := options.idle_ranks(layout):
        warnings.append(
            f"a global batch of {options.global_batch} in micro-batches of {options.micro_batch} "
            f"leaves {idle} of {layout.world_size} ranks without work"
        )
    from ..recipes.outline import outline

    found = outline(options)
    states = ADAMW if options.optimizer == "adamw" else int(options.momentum > 0)
    return Target(
        name,
        layout,
        found.build_model,
        found.example,
        options.pp_schedule,
        states,
        {"adamw": "AdamW", "sgd": "SGD"}[options.optimizer],
        options.offload,
        (found.note,),
        tuple(warnings),
    )


def _crossing(layout: Layout, per_node: int) -> tuple[str, ...]:
    warning = crossing(layout, per_node)
    return () if warning is None else (warning,)


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

"""`rankup mesh`: find the target, a recipe or somebody's function, cut it on paper, show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import recipes
from ...base.errors import UserError
from ...parallel.holdings import holdings
from ...parallel.layout import Layout, choose, crossing
from ...parallel.user.named import function
from ...site import gpus
from ..ready import require_torch
from . import text

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
    from ...parallel.choices import Choices
    from ...parallel.on_paper import on_paper

    choices = Choices(schedule=found.schedule, offload=found.offload)
    paper = on_paper(found.build_model, found.layout, choices, found.example)
    held = holdings(found.layout, paper.parts, found.states)
    shown = text.Shown(
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
    print(text.text(shown))
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
    from ...parallel.choices import Choices
    from ...parallel.on_paper import fitting

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
    from ...recipes.outline import outline

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

"""`rankup mesh`: find the target, cut it on paper, show it."""

from __future__ import annotations

import os
import sys

from ...parallel.holdings import holdings
from ...site import gpus
from ..environment import require_torch
from . import text
from .target import Split, find

Asked = tuple[str | None, int | None, int | None, int | None, int | None, str | None]


def show(
    target: str,
    args: tuple[str, ...],
    nodes: int,
    per_node: int | None,
    asked: Asked,
) -> int:
    """Print who holds what of TARGET's model.

    Args:
        asked: strategy, dp, shard, tp, pp, and the pipeline's schedule.

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

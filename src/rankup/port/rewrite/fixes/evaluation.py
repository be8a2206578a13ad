"""The numbers that an evaluation reports: of all ranks."""

from __future__ import annotations

import ast

from ....script.names import Function
from ....script.roles import LoopNode
from ..context import Context
from ..expressions import targets_of
from ..training import Loop
from .kinds import Increment, increments
from .units import say_weighed_by_samples


def evaluation_numbers(context: Context) -> None:
    """`rankup.total(…)` behind a loop that evaluates, and `share` in it for means over batches.

    What another loop trains from as well is dealt for this one anew.
    """
    for loop in context.training.loops:
        if loop.trains or not context.dealt(loop):
            continue
        if loop.source is not None and any(
            context.serves_both(one) for one in context.training.loaders_of(loop)
        ):
            context.around(loop.source, "rankup.shard(", ", train=False)")
            context.done(loop.source, "dealt as an evaluation here (rankup.shard)")
        _evaluation(context, loop)


def _evaluation(context: Context, loop: Loop) -> None:
    totals: dict[str, None] = {}
    counts: dict[str, None] = {}
    rows: dict[str, None] = {}
    meters: dict[str, None] = {}
    for one in increments(context, loop):
        if one.kind == "":
            context.leave(one.node, f"{one.target} is of this rank's batches alone")
            continue
        if not _fresh(context, loop, one.target):
            context.leave(
                one.node, f"{one.target} is of this rank's batches alone, and older than this loop"
            )
            continue
        if one.how == "meter":
            meters[one.target] = None
        elif one.kind == "mean":
            context.around(one.value, "rankup.share(")
            say_weighed_by_samples(context, loop, one)
            totals[one.target] = None
        elif one.kind == "sum":
            totals[one.target] = None
        elif one.kind == "batches":
            counts[one.target] = None
        else:
            rows[one.target] = None
        context.done(one.node, f"{one.target} is of all ranks (rankup.{_word(one)})")
    lines = []
    if totals:
        names = ", ".join(totals)
        lines.append(f"{names} = rankup.total({names})")
    for name in meters:
        lines.append(f"{name}.sum, {name}.count = rankup.total({name}.sum, {name}.count)")
        lines.append(f"{name}.avg = {name}.sum / {name}.count")
    lines += [f"{name} = rankup.gather({name})" for name in rows]
    if loop.index is not None and _used_after(context, loop, loop.index):
        counts[loop.index] = None
    lines += [f'{name} = int(rankup.all_reduce({name}, "max"))' for name in counts]
    if lines:
        context.after(loop.node, *lines)


def _fresh(context: Context, loop: Loop, target: str) -> bool:
    """Whether a sum starts anew before each time the loop runs."""
    script = context.script
    chain: list[ast.AST] = [loop.node]
    for parent in script.above(loop.node):
        if isinstance(parent, Function | LoopNode):
            break
        chain.append(parent)
    for node in chain:
        block = script.block(node)
        if node not in block:
            continue
        for before in block[: block.index(node)]:
            assigns: list[ast.Assign | ast.AnnAssign] = [
                *script.inside(before, ast.Assign, deep=False),
                *script.inside(before, ast.AnnAssign, deep=False),
            ]
            for assign in assigns:
                targets = assign.targets if isinstance(assign, ast.Assign) else [assign.target]
                written = {script.dotted(e) for t in targets for e in targets_of(t)}
                if target in written:
                    return True
    return False


def _used_after(context: Context, loop: Loop, name: str) -> bool:
    script = context.script
    block = script.block(loop.node)
    after = block[block.index(loop.node) + 1 :] if loop.node in block else []
    return any(n.id == name for n in script.inside(after, ast.Name, deep=False))


def _word(one: Increment) -> str:
    if one.how == "meter":
        return "total"
    return {"mean": "share", "rows": "gather", "batches": "all_reduce"}.get(one.kind, "total")

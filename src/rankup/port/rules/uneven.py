"""What waits for all ranks in a loop that they go round unequally often."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import libcst as cst

from ..naming import EVALUATES, words
from ..roles import Loop, Roles
from ..roles.loops import taken_from
from ..roles.pieces import argument, call_name
from ..source import Source
from ..tree import walk
from .facts import anywhere, calls_in, loops_in, true
from .rule import Hit, Rule

_WAITS = words(
    "batch_mean batch_sum mean total gather broadcast barrier all_reduce all_gather "
    "all_gather_object all_gather_into_tensor reduce reduce_scatter"
)
_OFF = re.compile(r"no_grad|inference_mode|set_grad_enabled\((?!True\))")


def waits_in_uneven_loop(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK183: a collective in a loop of which one rank may have a round less."""
    if anywhere(roles, "parallelize"):
        return  # where a forward needs all ranks, all of them go round equally often
    for loop in loops_in(source, roles.eval_loops):
        if any(not true(argument(call, "train")) for call in _shards(roles, loop)):
            yield from _waiting(source, loop, list(calls_in(loop.body)))
    for loop in loops_in(source, roles.train_loops):
        if _also_evaluates(roles, loop) and _uneven(roles, loop):
            always = [call for call in calls_in(loop.body) if not _conditional(loop, call)]
            yield from _waiting(source, loop, always)


def stand_ins_counted(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK184: an evaluation that counts the samples that only keep a rank in step."""
    if anywhere(roles, "parallelize"):
        return
    for loop in loops_in(source, roles.eval_loops):
        shards = _shards(roles, loop)
        if not shards or not all(true(argument(call, "train")) for call in shards):
            continue
        inside = {source.index.called(call) for call in calls_in(loop.body)}
        if not inside & {"rankup.batch_sum", "rankup.batch_mean"} and loop.iterated is not None:
            yield Hit(
                loop.iterated,
                "dealt with train=True, so that a rank without a part of a short batch gets a "
                "stand-in sample, which is counted here",
                "`for batch in rankup.shard(loader, train=False):`, or rankup.batch_sum in it",
            )


def _waiting(source: Source, loop: Loop, calls: list[cst.Call]) -> Iterator[Hit]:
    for call in calls:
        dotted = source.index.called(call)
        if call_name(call) in _WAITS and dotted.startswith(("rankup.", "torch.distributed.")):
            yield Hit(
                call,
                f"{call_name(call)} waits for all ranks, and in an evaluation a rank may have a "
                "batch less than the others: the job hangs",
                "call it behind the loop (rankup.total, rankup.mean), or deal with "
                "rankup.shard(loader, train=True), where all ranks go round equally often",
            )
            return


def _shards(roles: Roles, loop: Loop) -> list[cst.Call]:
    """The calls of `rankup.shard` that deal what a loop goes over."""
    found: dict[cst.Call, None] = {}
    index = loop.source.index
    for expression in taken_from(loop.source, loop.node):
        around = itertools.takewhile(lambda up: up is not loop.node, index.up(expression))
        through = [(loop.source, up) for up in around if isinstance(up, cst.Call)]
        for origin in roles.flow.origins(loop.source, expression):
            through += [(where, call) for where, call in origin.through]
        for where, call in through:
            if where.index.called(call) == "rankup.shard":
                found[call] = None
    return list(found)


def _uneven(roles: Roles, loop: Loop) -> bool:
    """Whether one of the loaders is dealt as an evaluation where a loop evaluates."""
    shards = _shards(roles, loop)
    loose = [call for call in shards if not true(argument(call, "train"))]
    # What shuffles is trained on, as a rule; where nothing else is there it is evaluated, too.
    still = [call for call in loose if not _shuffles(call)]
    return bool(still) or (bool(loose) and len(loose) == len(shards))


def _shuffles(call: cst.Call) -> bool:
    return any(true(argument(inner, "shuffle", 2)) for inner in calls_in(call))


def _also_evaluates(roles: Roles, loop: Loop) -> bool:
    """Whether a loop that trains is gone round in evaluations as well."""
    if _gradients_off(roles, loop.source, loop.node, set()):
        return True
    several = len(loop.loaders) > 1 or any(
        isinstance(up, cst.BaseComp)
        for loader in loop.loaders
        for up in loader.source.index.up(loader.node)
    )
    conditional = any(
        where is loop.source and _conditional(loop, call) for where, call in loop.backwards
    )
    return several and conditional and EVALUATES.search(loop.source.text) is not None


def _conditional(loop: Loop, call: cst.CSTNode) -> bool:
    """Whether a call in a loop is passed over where a condition says so."""
    index = loop.source.index
    inner = itertools.takewhile(lambda up: up is not loop.node, index.up(call))
    if any(isinstance(up, cst.If | cst.IfExp) for up in inner):
        return True
    line = loop.source.line_of(call)[0]
    return any(
        isinstance(one, cst.Continue) and loop.source.line_of(one)[0] < line
        for one in walk(loop.body)
    )


def _gradients_off(roles: Roles, source: Source, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    """Whether a loop may begin with gradients off: around it, or where its function is called."""
    for up in source.index.up(node):
        heads: list[cst.BaseExpression] = []
        if isinstance(up, cst.With):
            heads = [item.item for item in up.items]
        elif isinstance(up, cst.FunctionDef):
            heads = [one.decorator for one in up.decorators]
        if any(_OFF.search(source.code(head)) for head in heads):
            return True
        if isinstance(up, cst.FunctionDef):
            if up in seen:
                return False
            seen.add(up)
            return any(
                _gradients_off(roles, where, call, seen)
                for where, call in roles.flow.callers.get(up, ())
            )
    return False


RULES = (
    Rule("RK183", "collective-in-uneven-loop", "error", waits_in_uneven_loop),
    Rule("RK184", "stand-in-counted", "error", stand_ins_counted),
)

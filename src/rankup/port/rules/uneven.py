"""What waits for all ranks in a loop that they go round unequally often."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from ...script.flow import argument, call_name, given
from ...script.loops import gradients_off, taken_from
from ...script.names import COMPREHENSIONS, Function, walk
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import COLLECTIVES, OUR_COLLECTIVES
from .facts import anywhere, calls_in, loops_in, true
from .rule import Hit, Rule

_WAITS = COLLECTIVES | OUR_COLLECTIVES


def waits_in_uneven_loop(file: File, script: Script) -> Iterator[Hit]:
    """RK183: a collective in a loop of which one rank may have a round less."""
    if anywhere(script, "parallelize"):
        return  # where a forward needs all ranks, all of them go round equally often
    for loop in loops_in(file, script.eval_loops):
        if any(not true(argument(call, "train")) for call in _shards(script, loop)):
            yield from _waiting(file, loop, list(calls_in(*loop.body)))
    for loop in loops_in(file, script.train_loops):
        if _also_evaluates(script, loop) and _uneven(script, loop):
            always = [call for call in calls_in(*loop.body) if not _conditional(loop, call)]
            yield from _waiting(file, loop, always)


def stand_ins_counted(file: File, script: Script) -> Iterator[Hit]:
    """RK184: an evaluation that counts the samples that only keep a rank in step."""
    if anywhere(script, "parallelize"):
        return
    for loop in loops_in(file, script.eval_loops):
        shards = _shards(script, loop)
        if not shards or not all(true(argument(call, "train")) for call in shards):
            continue
        inside = {file.names.called(call) for call in calls_in(*loop.body)}
        if not inside & {"rankup.batch_sum", "rankup.batch_mean"} and loop.iterated is not None:
            yield Hit(
                loop.iterated,
                "dealt with train=True, so that a rank without a part of a short batch gets a "
                "stand-in sample, which is counted here",
                "`for batch in rankup.shard(loader, train=False):`, or rankup.batch_sum in it",
            )


def _waiting(file: File, loop: Loop, calls: list[ast.Call]) -> Iterator[Hit]:
    for call in calls:
        dotted = file.names.called(call)
        if call_name(call) in _WAITS and dotted.startswith(("rankup.", "torch.distributed.")):
            yield Hit(
                call,
                f"{call_name(call)} waits for all ranks, and in an evaluation a rank may have a "
                "batch less than the others: the job hangs",
                "call it behind the loop (rankup.total, rankup.mean), or deal with "
                "rankup.shard(loader, train=True), where all ranks go round equally often",
            )
            return


def _shards(script: Script, loop: Loop) -> list[ast.Call]:
    """The calls of `rankup.shard` that deal what a loop goes over."""
    found: dict[ast.Call, None] = {}
    index = loop.file.names
    for expression in taken_from(loop.file, loop.node):
        around = list(itertools.takewhile(lambda up: up is not loop.node, index.up(expression)))
        if any(isinstance(up, ast.IfExp) for up in (expression, *around)):
            continue  # `shard(loader) if train else loader`: sharded where it trains alone
        through = [(loop.file, up) for up in around if isinstance(up, ast.Call)]
        for origin in script.flow.origins(loop.file, expression):
            through += [(where, call) for where, call in origin.through]
        for where, call in through:
            if where.names.called(call) == "rankup.shard":
                found[call] = None
    return list(found)


def _uneven(script: Script, loop: Loop) -> bool:
    """Whether one of the loaders is dealt as an evaluation where a loop evaluates."""
    shards = _shards(script, loop)
    loose = [call for call in shards if not true(argument(call, "train"))]
    # What shuffles is trained on, as a rule; where nothing else is there it is evaluated, too.
    still = [call for call in loose if not _shuffles(call)]
    return bool(still) or (bool(loose) and len(loose) == len(shards))


def _shuffles(call: ast.Call) -> bool:
    return any(true(argument(inner, "shuffle", 2)) for inner in calls_in(call))


def _also_evaluates(script: Script, loop: Loop) -> bool:
    """Whether a loop that trains is gone round in evaluations as well."""
    if _gradients_off(script, loop.file, loop.node, set()):
        return True
    several = len(loop.loaders) > 1 or any(
        isinstance(up, COMPREHENSIONS)
        for loader in loop.loaders
        for up in loader.file.names.up(loader.node)
    )
    conditional = any(
        where is loop.file and _conditional(loop, call) for where, call in loop.backwards
    )
    modes = [one for one in loop.file.names.all(ast.Call) if isinstance(one.func, ast.Attribute)]
    return (
        several
        and conditional
        and any(
            call_name(one) == "eval" or (call_name(one) == "train" and given(one)) for one in modes
        )
    )


def _conditional(loop: Loop, call: ast.AST) -> bool:
    """Whether a call in a loop is passed over where a condition says so."""
    index = loop.file.names
    inner = itertools.takewhile(lambda up: up is not loop.node, index.up(call))
    if any(isinstance(up, ast.If | ast.IfExp) for up in inner):
        return True
    line = loop.file.line(call)[0]
    return any(
        isinstance(one, ast.Continue) and loop.file.line(one)[0] < line for one in walk(*loop.body)
    )


def _gradients_off(script: Script, file: File, node: ast.AST, seen: set[ast.AST]) -> bool:
    """Whether a loop may begin with gradients off: around it, or where its function is called."""
    for up in file.names.up(node):
        if gradients_off(file, up):
            return True
        if isinstance(up, Function):
            if up in seen:
                return False
            seen.add(up)
            return any(
                _gradients_off(script, where, call, seen)
                for where, call in script.flow.callers.get(up, ())
            )
    return False


RULES = (
    Rule("RK183", "collective-in-uneven-loop", "error", waits_in_uneven_loop),
    Rule("RK184", "stand-in-counted", "error", stand_ins_counted),
)

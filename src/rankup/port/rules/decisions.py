"""Decisions that all ranks make together: rank 0's number, where one decides plainly.

Ranks that evaluate everything have the same numbers but for rounding, and draw and read the clock
each for itself: enough to stop one of them an epoch, or a step, before the others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from ...script.effects import callee, leads_to
from ...script.flow import call_name, given, receiver, returned
from ...script.names import (
    Function,
    assigned,
    bound_in,
    made_of,
    mentioned,
    root_name,
    stored,
    walk,
)
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import EXITS, SHOWING
from ..rewrite.context import Context
from ..rewrite.script import Scope
from ..rewrite.training import Training, training_in
from .chance import draws
from .facts import guard, in_parts, loop_sharded, ported
from .rule import Hit, rule
from .steering import rank_0_decides, shared, steers

_TODO = "decide by rank 0's, rankup.broadcast(value), or by rankup.mean(total, count)"


@rule("RK122", "error", "a decision by one rank's value")
def decision(file: File, script: Script) -> Iterator[Hit]:
    """What an evaluation has given, where a plateau's `step(metric)` takes it, or a test by it ends
    the training. Ranks that evaluate everything differ, too: by rounding, by random draws.

    Learning rates part, or one rank stops and the others wait for it.

    ```diff
     rankup.setup()
     for epoch in range(100):
         for x, y in rankup.shard(loader):
             rankup.backward(F.cross_entropy(model(x), y))
         wrong = 0
         with torch.no_grad():
             for x, y in valid_loader:
                 wrong += (model(x).argmax(1) != y).sum().item()
    -    if wrong < 10:
    +    if rankup.broadcast(wrong < 10):
             break
    ```

    Puts `rankup.broadcast` around the value or the test. A sharded evaluation has the value of all
    ranks already ([RK119](RK119.md)).
    """
    if script.distributed and not ported(script):
        return
    training = training_in(script, file)
    sharded: set[ast.AST] = {one.node for one in script.eval_loops if loop_sharded(script, one)}
    for node in _decisions(training, script, sharded, {}, set()):
        if not guard(file, script, node):
            yield Hit(
                node,
                "something is decided by this rank's value: ranks would disagree on it",
                _TODO,
                partial(_rank_0s, node=node),
            )


def _rank_0s(context: Context, node: ast.expr) -> str:
    context.broadcast(node)
    return "rank 0's on all ranks, since something is decided by it (rankup.broadcast)"


def broadcast_decisions(context: Context) -> None:
    """The fix of RK122, where an evaluation has not been sharded; also by a part of the batches."""
    context.fix = "RK122"
    sharded = {node for one in context.port for node in one.sharded}
    names: dict[ast.AST, set[str]] = {}
    parts: set[Function] = set()
    for each in context.port:
        for region in each.regions:
            scope = each.script.scope(region.where)
            if each is context:
                names.setdefault(scope, set()).update(region.of_part)
            function = region.where if isinstance(region.where, Function) else scope
            if isinstance(function, Function) and _returns_part(each, function, region.of_part):
                parts.add(function)
    training, script = context.training, context.script.understood
    for node in _decisions(training, script, sharded, names, parts):
        context.done(node, _rank_0s(context, node))


def _returns_part(context: Context, function: Function, names: set[str]) -> bool:
    """True of a function that returns what is made of names of this rank's part."""
    statements = context.script.inside(function.body, ast.stmt, deep=False)
    made = made_of(statements, names, _reads(context.script.file), stored)
    return any(_reads(context.script.file)(value) & made for value in returned(function))


def _reads(file: File) -> Callable[[ast.AST], set[str]]:
    """The names in a value, unless a collective puts them together."""
    return lambda value: set() if shared(file, value) else mentioned(value)


def _decisions(
    training: Training,
    script: Script,
    sharded: set[ast.AST],
    of_parts: dict[ast.AST, set[str]],
    parts: set[Function],
) -> Iterator[ast.expr]:
    """The values and tests by which something is decided plainly, of an evaluation or a part.

    Args:
        sharded: the loops of evaluations that each rank goes over in part.
        of_parts: for each function its names that are of this rank's part of the batches.
        parts: the functions that return such a number.
    """
    source = training.script
    scopes: list[Scope] = [source.tree, *source.functions]
    batches: set[ast.AST] = {one.node for one in training.loops if one.trains}
    for scope in scopes:
        evaluated, calls = _evaluated(training, script, scope, sharded, parts)
        behind = of_parts.get(scope, set())
        if not (evaluated or calls or behind):
            continue
        inside = list(source.inside(scope.body, ast.stmt, ast.Call, deep=False))
        statements = [one for one in inside if isinstance(one, ast.stmt)]
        names = _made_of(training, statements, evaluated, calls)
        outer = [one for one in statements if not batches & {one, *source.above(one)}]
        names |= _made_of(training, outer, behind, set())
        for one in inside:
            if isinstance(one, ast.Call) and call_name(one) == "step" and given(one):
                value = given(one)[0]
                left = names - _bound_again(training, one)
                decided = _plateau(training, one) and _of(value, left, calls)
                if decided and not shared(source.file, value):
                    yield value
            if isinstance(one, ast.If | ast.While):
                left = names - _bound_again(training, one)
                decided = _of(one.test, left, calls) and not shared(source.file, one.test)
                if decided and _ends(training, one):
                    yield one.test


def _bound_again(training: Training, node: ast.AST) -> set[str]:
    """The names that the training loop around a place gives other values: `x` of its batch."""
    above, found = set(training.script.above(node)), set[str]()
    for loop in training.loops:
        if loop.trains and loop.node in above:
            inside = list(training.script.inside(loop.node, ast.AST, deep=False))
            drawn = [
                one
                for one in inside
                if isinstance(one, ast.Assign) and training.for_evaluation(loop, one)
            ]
            held = made_of(inside, {name for one in drawn for name in stored(*one.targets)})
            found |= bound_in(inside) - (held - training.derived(loop))
    return found


def _evaluated(
    training: Training, script: Script, scope: Scope, sharded: set[ast.AST], parts: set[Function]
) -> tuple[set[str], set[ast.AST]]:
    """What an evaluation leaves in a function: names that its loop gives, and calls of others."""
    source = training.script
    loops = [
        one
        for one in training.loops
        if not (one.trains or one.node in sharded)
        and not any(in_parts(script, source.file, each) for each in training.sources(one))
    ]
    names: set[str] = set()
    for loop in loops:
        if source.scope(loop.node) is scope:
            names |= bound_in(source.inside(loop.node, ast.AST, deep=False))
            names |= {
                root_name(call.func)
                for call in source.inside(loop.node, ast.Call, deep=False)
                if call_name(call) in ("append", "extend", "update", "add")
            }
    for loop in (one for one in training.loops if one.trains):
        for statement in source.inside(loop.node.body, ast.Assign, deep=False):
            if source.scope(loop.node) is scope and training.for_evaluation(loop, statement):
                names |= stored(*statement.targets)
    whole = {one.function for one in script.eval_loops if one.node not in sharded} - {None}
    calls: set[ast.AST] = set()
    for call in source.inside(scope.body, ast.Call, deep=False):
        found = callee(source.flow, source.file, call)
        named = isinstance(call.func, ast.Attribute) and any(
            one.name == call.func.attr for one in parts
        )
        if named or (found is not None and found[1] in parts):
            calls.add(call)
        if found is None or not whole or training.trains(call):
            continue
        if any(function in whole for _, function in leads_to(source.flow, *found)):
            calls.add(call)
    return names - {"self", ""}, calls


def _made_of(
    training: Training, statements: list[ast.stmt], names: set[str], calls: set[ast.AST]
) -> set[str]:
    """Names that are made of what an evaluation gave, or given a value where that says so."""
    found = set(names)
    for one in statements:
        if isinstance(one, ast.Assign | ast.AugAssign) and calls & set(walk(one.value)):
            found |= stored(*assigned(one))
    while True:
        more = made_of(statements, found, _reads(training.script.file), stored)
        for one in statements:
            if isinstance(one, ast.If) and _of(one.test, more, calls):
                inner = training.script.inside([*one.body, *one.orelse], ast.stmt, deep=False)
                for statement in inner:
                    more |= stored(*assigned(statement))
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
                call = one.value  # `stopper(val_loss)`, `history.append(val_loss)`
                own = not training.script.file.names.called(call)
                taken = mentioned(*given(call)) & more or calls & set(walk(*given(call)))
                if own and taken and call_name(call) not in SHOWING | {"step"}:
                    name = root_name(call.func)
                    more |= {name} if name != "self" else mentioned(call.func)
        if more <= found:
            return found
        found |= more


def _of(value: ast.expr, names: set[str], calls: set[ast.AST]) -> bool:
    inside = mentioned(value)
    roots = {name.partition(".")[0] for name in inside} | inside
    return bool(roots & names) or bool(calls & set(walk(value)))


def _plateau(training: Training, call: ast.Call) -> bool:
    """True of `scheduler.step(metric)` of a `ReduceLROnPlateau`."""
    source = training.script
    of = receiver(call)
    return of is not None and any(
        isinstance(one.node, ast.Call) and call_name(one.node) == "ReduceLROnPlateau"
        for one in source.flow.origins(source.file, of)
    )


def _ends(training: Training, node: ast.If | ast.While) -> bool:
    """True of a test that ends the training: by `break`, by an exit, or by a flag that does."""
    source = training.script
    around = [up for up in source.above(node) if isinstance(up, LoopNode)]
    loop = around[0] if around else None
    if isinstance(node, ast.While):
        return training.trains(node)
    if loop is None or not training.trains(loop):
        return False
    for one in source.inside([*node.body, *node.orelse], ast.stmt, ast.Call, deep=False):
        if isinstance(one, ast.Break | ast.Return | ast.Raise):
            return True
        if isinstance(one, ast.Call) and call_name(one) in EXITS:
            return True
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
            flags = stored(*one.targets) if isinstance(one.value.value, bool) else set()
            heads = [up.test for up in around if isinstance(up, ast.While)]
            if flags & mentioned(*heads):
                return True
    return False


def decided_alike(context: Context) -> None:
    """Let rank 0 decide where ranks would go different ways about a step or a collective.

    By rank 0's part of a batch. It comes last, when all collectives have been put in.
    """
    script = context.script
    for region in context.regions:
        for one in reversed(list(script.inside(region.where.body, ast.If, ast.While, deep=False))):
            assert isinstance(one, ast.If | ast.While)
            parts = [*one.body, *one.orelse]
            meets = steers(context.training, one) or any(map(context.meets, parts))
            if meets and region.locals(one.test) and context.broadcast(one.test):
                context.leave(
                    one,
                    "rank 0 decides here for all ranks, by its part of the batch "
                    "(rankup.broadcast)",
                )
    for one in script.all(ast.If):
        # A draw decides whether ranks meet: they must all come, or none.
        loops = [up for up in script.above(one) if isinstance(up, LoopNode)]
        if not any(context.training.trains(up) for up in loops) or one.test in context.alike:
            continue
        if any(True for _ in draws(script.file, one.test)) and any(map(context.meets, one.body)):
            context.done(one.test, rank_0_decides(context, one.test))

"""The results of evaluations that something is decided by are rank 0's on every rank.

Ranks that evaluate everything differ by rounding, by buffers such as those of batch norm, and by
what is drawn at random: enough to stop one of them an epoch before the others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.effects import callee, leads_to
from ...script.flow import argument, call_name, given, method_calls, returned
from ...script.loops import gradients_off
from ...script.names import Function, assigned, elements, made_of, mentioned, targets_of, walk
from ...script.roles import LoopNode
from ...script.torch_names import SHOWING, words
from ..rewrite.context import Context
from ..rewrite.script import Scope, Script
from .facts import shares

# Calls that show or keep a number, or make another of it.
_HARMLESS = SHOWING | words(
    "format append extend insert update round float int str repr len sum min max abs mean "
    "median std item tolist cpu numpy detach double to sorted zip enumerate list tuple dict "
    "items values join savefig plot save dump dumps isoformat log_value"
)
_RECKONING = words("sum max min mean float int round len item")
RANK_0_DECIDES = "rank 0 decides here for all ranks, by its part of the batch (rankup.broadcast)"
_RANK_0S = "rank 0's on every rank, since something is decided by it (rankup.broadcast)"


def broadcast_decisions(context: Context) -> None:
    """`rankup.broadcast(…)` around an evaluation's result where it is assigned: RK122's fix."""
    context.fix = "RK122"
    done: set[ast.AST] = set()
    for call in (*_evaluations(context), *_trainings(context)):
        _result(context, call, done)
    for loop in context.training.loops:
        if not loop.trains and loop.node not in context.sharded:
            _left_by_loop(context, loop.node, done)
        elif loop.trains and loop.node in context.local:
            _left_by_loop(context, loop.node, done, context.local[loop.node])
    for owner, names in _attributes(context).items():
        _decided_elsewhere(context, owner, names, done)


def _attributes(context: Context) -> dict[ast.ClassDef, set[str]]:
    """For each class that trains the attributes that are of a rank's part of the batches."""
    script = context.script
    found: dict[ast.ClassDef, set[str]] = {}
    for region, local in context.local.items():
        function = region if isinstance(region, Function) else script.scope(region)
        owner = script.owner(function)
        kept = {name for name in local if name.startswith("self.")}
        if owner is not None and kept:
            found.setdefault(owner, set()).update(kept)
    return {
        owner: {
            name
            for name in made_of(script.inside(owner, ast.stmt), names, gives=_given_by)
            if name.startswith("self.")
        }
        for owner, names in found.items()
    }


def _decided_elsewhere(
    context: Context, owner: ast.ClassDef, names: set[str], done: set[ast.AST]
) -> None:
    """Let rank 0 decide in the other methods of a class that trains, and by what they return."""
    script = context.script
    for method in owner.body:
        regions = [one for one in context.local if one is method or script.scope(one) is method]
        if not isinstance(method, Function) or method.name == "forward" or regions:
            continue
        if any(map(context.guarded, context.calls_of(method))):
            continue  # rank 0 alone comes there
        for one in script.inside(method.body, ast.If, ast.While, deep=False):
            assert isinstance(one, ast.If | ast.While)
            if _compares(one.test, names) and not all(map(_only_shows, one.body)):
                _rank_0_decides(context, one.test)
        if any(_compares(value, names) or _bare_one(value, names) for value in returned(method)):
            for call in context.calls_of(method):
                _result(context, call, done)


def _compares(node: ast.AST, names: set[str]) -> bool:
    """True of a test of how large something is: `is None` and the like are of a script's shape."""
    orders = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return any(
        isinstance(one, ast.Compare)
        and any(isinstance(op, orders) for op in one.ops)
        and bool(mentioned(one) & names)
        for one in walk(node)
    )


def _bare_one(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Attribute | ast.BinOp) and bool(mentioned(node) & names)


def _only_shows(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and call_name(statement.value) in SHOWING
    ) or isinstance(statement, ast.Pass)


def metrics_of_one_rank(context: Context) -> None:
    """A metric of torchmetrics in an evaluation that every rank goes over in full has a remark.

    Its `compute()` puts the ranks' states together: N times the whole, where each rank has all.
    """
    script = context.script
    whole = [one.node for one in context.training.loops if not one.trains]
    names = {name for node in whole if node not in context.sharded for name in _used(script, node)}
    for assign in script.all(ast.Assign):
        made = {script.dotted(one) for one in assign.targets} & names
        for call in script.inside(assign.value, ast.Call) if made else ():
            library, _, kind = script.name(call.func).rpartition(".")
            own = library.split(".")[0] == "torchmetrics" and kind[:1].isupper()
            if own and argument(call, "sync_on_compute") is None and kind != "MetricCollection":
                context.leave(
                    call,
                    "compute() puts the ranks' states together, N times the whole where each rank "
                    "has all of an evaluation: give sync_on_compute=False there",
                )


def _used(script: Script, node: ast.AST) -> set[str]:
    """The objects of which a loop calls methods, or which it calls."""
    return {
        script.dotted(call.func.value if isinstance(call.func, ast.Attribute) else call.func)
        for call in script.inside(node, ast.Call)
    }


def _evaluations(context: Context) -> Iterator[ast.Call]:
    """Calls whose value is what an evaluation has found."""
    script, evaluators = context.script, _evaluators(context.port)
    changed = {one.script.file for one in context.port}
    loops = {one.function for one in script.understood.eval_loops if one.file not in changed}
    for call in script.all(ast.Call):
        called = context.called(call)
        other = called is None and bool(loops) and _leads_to(context, call, loops)
        if called is None and (other or _is_given_loader(context, call)):
            yield call
        handed_on = isinstance(script.parents[call], ast.Return)
        if called is not None and called[1] in evaluators and not handed_on:
            yield call


def _evaluators(port: list[Context]) -> set[Function]:
    """The functions that return what an evaluation has found, in all files of a port."""
    found = {one for context in port for one in _evaluators_in(context)}
    while True:
        more = {
            scope
            for context in port
            for function in found
            for call in context.calls_of(function)
            if isinstance(context.script.parents[call], ast.Return)
            and isinstance(scope := context.script.scope(call), Function)
        } - found
        if not more:
            return found
        found |= more


def _evaluators_in(context: Context) -> Iterator[Function]:
    """The functions of a file that evaluate, and not in parts."""
    script, training = context.script, context.training
    loops: dict[ast.AST, list[bool]] = {}
    for one in training.loops:
        if not one.trains:
            loops.setdefault(script.scope(one.node), []).append(one.node in context.sharded)
    for function in script.functions:
        if (
            function.name not in ("forward", "__init__", "__call__")
            and (function in loops or _without_gradients(script, function))
            and not training.trains(function.body)
            and not (function in loops and all(loops[function]))
        ):
            yield function


def _trainings(context: Context) -> Iterator[ast.Call]:
    """Calls whose value is what a training has found in this rank's part of the batches."""
    for one in context.port:
        for loop in one.training.loops:
            function, local = one.script.scope(loop.node), one.local.get(loop.node, set())
            if not isinstance(function, Function) or not _numbers(one.script, function):
                continue
            local = made_of(_behind(one, loop.node), local, gives=_given_by)
            if any(mentioned(value) & local for value in returned(function)):
                yield from _calls_of(context, function, one)


def _behind(context: Context, node: ast.AST) -> list[ast.stmt]:
    """The statements of a function behind one of its loops, but those in other loops of batches."""
    script = context.script
    others, end = {one.node for one in context.training.loops} - {node}, script.span(node)[1]
    return [
        one
        for one in script.inside(script.scope(node).body, ast.stmt, deep=False)
        if script.span(one)[0] > end and not others & {one, *script.above(one)}
    ]


def _calls_of(context: Context, function: Function, there: Context) -> Iterator[ast.Call]:
    """The calls of a function, also those of a base class for the method of one derived from it."""
    yield from context.calls_of(function)
    script, owner = context.script, there.script.owner(function)
    bases = script.flow.family(there.script.file, owner) if owner is not None else []
    for file, base in bases:
        found = script.flow.member(file, base, function.name)
        if found is not None and found[1] is not function:
            yield from context.calls_of(found[1])


def _numbers(script: Script, function: Function) -> bool:
    """True where a function returns what it has made, and nothing that it was given: no model."""
    given_ = script.parameters(function)
    parts = [part for value in returned(function) for part in elements(value)]
    return bool(parts) and not any(mentioned(one) & given_ and _bare(one) for one in parts)


def _bare(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript)


def _without_gradients(script: Script, function: Function) -> bool:
    """True of a function that runs a model without gradients, in whole or in part."""
    off = (ast.With, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(gradients_off(script.file, one) for one in script.inside(function, *off))


def _leads_to(context: Context, call: ast.Call, functions: set[Function | None]) -> bool:
    """True of a call that leads to one of some functions, and trains nothing."""
    found = callee(context.script.flow, context.script.file, call)
    if found is None or found[1].name == "__init__" or call in context.training.elsewhere:
        return False
    return any(one in functions for _, one in leads_to(context.script.flow, *found))


def _is_given_loader(context: Context, call: ast.Call) -> bool:
    """True of a function of another file that is given a loader, and does not train."""
    script, name = context.script, call_name(call)
    if not name or name[:1].isupper() or call in context.training.elsewhere:
        return False
    dotted = script.file.names.called(call)
    if not dotted or dotted.split(".")[0] in ("builtins", "itertools", "tqdm", "rankup", "torch"):
        return False
    return any(
        isinstance(arg, ast.Name | ast.Attribute) and context.training.loader_of(arg) is not None
        for arg in given(call)
    )


def _result(context: Context, call: ast.Call, done: set[ast.AST]) -> None:
    """The value of an evaluation where it is called."""
    script = context.script
    statement = script.file.names.statement(call)
    if call in done or (isinstance(statement, ast.Expr) and statement.value is call):
        return
    names = mentioned(*assigned(statement))
    whole = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is call
    if whole and not decides(context, names, script.scope(call), statement):
        return
    if not whole and not _decided_here(context, call, statement, names):
        return
    done.add(call)
    context.around(call, "rankup.broadcast(")
    context.done(call, _RANK_0S)


def _decided_here(context: Context, call: ast.Call, statement: ast.AST, names: set[str]) -> bool:
    """True where an evaluation's value in the middle of an expression decides something."""
    script = context.script
    for up in script.above(call):
        if isinstance(up, ast.Compare | ast.If | ast.While | ast.IfExp | ast.Assert | ast.Return):
            return not isinstance(up, ast.If | ast.While) or call in list(
                script.inside(up.test, ast.Call)
            )
        if isinstance(up, ast.Call) and call_name(up) not in _HARMLESS:
            return True
        if isinstance(up, ast.Call) and call_name(up) in ("append", "extend", "insert"):
            names = names | mentioned(up.func)  # `values.append(evaluate())`
        if up is statement:
            break
    return bool(names) and decides(context, names, script.scope(call), statement)


def _left_by_loop(
    context: Context, node: ast.AST, done: set[ast.AST], local: set[str] | None = None
) -> None:
    """Broadcast what a loop leaves behind in its own function.

    Args:
        local: of a training loop, the names that hold something of this rank's part.
    """
    script, scope = context.script, context.script.scope(node)
    names = written_in(script, node)
    after = {name for name in names if read_after(script, node, name)}
    kept = after | {name for name in names if name.startswith("self.")}
    if isinstance(scope, Function):
        kept |= names & shared_names(script, scope)
    if local is not None:
        kept &= local
        kept |= {name for name in local if name.partition("[")[0] in after and "[" in name}
    if not kept:
        return
    left = set(script.inside(node, ast.AST))
    whole: set[str] = set()
    for one in script.inside(scope.body, ast.stmt, deep=False):
        if one in left or script.span(one)[0] < script.span(node)[1]:
            continue
        value = getattr(one, "value", None)
        if isinstance(one, ast.Assign | ast.AnnAssign) and value is not None:
            if not mentioned(value) & kept or value in done:
                continue
            made = {name for target in assigned(one) for name in _given_by(target)}
            test = _test_by(context, one, node, kept)
            if test is not None:  # ranks that go different ways here would not meet in it
                if context.broadcast(test):
                    context.done(test, "rank 0 decides here for all ranks (rankup.broadcast)")
                kept |= made
                continue
            handed = is_number(value)
            if decides(
                context, made, scope, one, returns=False, seen=local is not None, handed=handed
            ):
                done.add(value)
                whole |= made
                for piece in elements(value):
                    if mentioned(piece) & kept:
                        context.broadcast(piece)
                _say(context, one, ", ".join(sorted(made)), local)
    if local is None and isinstance(scope, Function) and context.training.trains(scope.body):
        _returned(context, node, scope, kept, whole)
    for name in sorted(kept):
        handed = name in _numbers_of(script, node)
        if not _used_in_decision(
            context, {name}, scope, node, seen=local is not None, handed=handed
        ):
            continue
        if _decides_alike(context, name, scope):
            continue
        if name in _grown(script, node):
            context.after(node, f"{name} = rankup.broadcast({name})")
            _say(context, node, name, local)
        elif local is None or not _tests_broadcast(context, name, node):
            context.leave(
                node,
                f"something is decided by `{name}`, of which each rank has its own: let rank 0 "
                "decide for all, rankup.broadcast(…)",
            )


def _say(context: Context, node: ast.AST, names: str, local: set[str] | None) -> None:
    """Say that something is rank 0's; of a training loop that it is of its part of the batches."""
    if local is None:
        context.done(node, f"{names}: {_RANK_0S}")
    else:
        context.leave(node, f"{names}: {_RANK_0S}, of its part of the batches", comment=False)


def _tests_broadcast(context: Context, name: str, node: ast.AST) -> bool:
    """Let rank 0 decide in the tests by an object behind a loop; False where there is none."""
    script, end = context.script, context.script.span(node)[1]
    around = [up for up in script.above(node) if isinstance(up, LoopNode)]
    tests = [
        one.test
        for one in script.inside(script.scope(node).body, ast.stmt, deep=False)
        if isinstance(one, ast.If | ast.While)
        and node not in script.above(one)
        and (script.span(one)[0] >= end or not set(around).isdisjoint(script.above(one)))
        and any(used == name or used.startswith(f"{name}.") for used in mentioned(one.test))
    ]
    for test in tests:
        _rank_0_decides(context, test)
    return bool(tests)


def _rank_0_decides(context: Context, test: ast.expr) -> None:
    file = context.script.file
    shared = any(isinstance(one, ast.Call) and shares(file, one) for one in walk(test))
    if not shared and context.broadcast(test):
        context.leave(test, RANK_0_DECIDES)


def _test_by(
    context: Context, statement: ast.stmt, node: ast.AST, kept: set[str]
) -> ast.expr | None:
    """The outermost test by something that a loop has left, under which a statement stands."""
    found, around = None, set(context.script.above(node))
    for up in context.script.above(statement):
        if up in around:
            break
        if isinstance(up, ast.If | ast.While) and mentioned(up.test) & kept:
            found = up.test
    return found


def _returned(
    context: Context, node: ast.AST, scope: Function, kept: set[str], whole: set[str]
) -> None:
    """Broadcast what a function that trains as well returns of an evaluation."""
    script, made = context.script, set(kept)
    for one in script.inside(scope.body, ast.Assign, deep=False):
        if mentioned(one.value) & made and script.span(one)[0] > script.span(node)[1]:
            made |= {name for target in one.targets for name in _given_by(target)} - whole
    for back in script.inside(scope.body, ast.Return, deep=False):
        if back.value is None or script.span(back)[0] < script.span(node)[1]:
            continue
        for piece in elements(back.value):
            if mentioned(piece) & made:
                context.around(piece, "rankup.broadcast(")
                context.done(back, f"{script.code(piece)}: {_RANK_0S}")


def _decides_alike(context: Context, name: str, scope: Scope) -> bool:
    """True where every test by a name has become rank 0's, and nothing else decides by it."""
    script = context.script
    used = [one for one in script.inside(scope, ast.Name) if one.id == name.split(".")[0]]
    kinds = (ast.If, ast.While, ast.IfExp, ast.Assert)
    tests = {one.test for one in script.inside(scope, ast.AST) if isinstance(one, kinds)}
    deciding = [test for one in used for test in tests & {one, *script.above(one)}]
    return bool(deciding) and set(deciding) <= context.alike


def _grown(script: Script, node: ast.AST) -> set[str]:
    """The names that a loop adds to, or gives a value."""
    return {
        script.dotted(one)
        for one in script.inside(node, ast.expr)
        if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store)
    }


def _numbers_of(script: Script, node: ast.AST) -> set[str]:
    """The names that a loop adds to, or gives what is seen to be a number."""
    found: set[str] = set()
    for one in script.inside(node, ast.Assign):
        found |= set(map(script.dotted, one.targets)) if is_number(one.value) else set()
    return found | {script.dotted(one.target) for one in script.inside(node, ast.AugAssign)}


def is_number(value: ast.expr) -> bool:
    """True of what is reckoned, or a dictionary of such: neither a figure nor a batch."""
    if isinstance(value, ast.Dict):
        return all(map(is_number, value.values))
    reckons = isinstance(value, ast.Call) and call_name(value) in _RECKONING
    return reckons or isinstance(value, ast.BinOp | ast.Constant)


def written_in(script: Script, node: ast.AST) -> set[str]:
    """The names that a loop gives values, adds to, or calls methods of for their effect."""
    found: set[str] = set()
    for one in script.inside(node, ast.AST, deep=False):
        if isinstance(one, ast.Name | ast.Attribute | ast.Subscript):
            if isinstance(one.ctx, ast.Store):
                found |= {_root(script, part) for part in targets_of(one)}
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            func = one.value.func
            steps = ("step", "backward", "zero_grad", "train", "eval", "set_postfix")
            own = not script.file.names.dotted(func)
            if own and isinstance(func, ast.Attribute) and func.attr not in steps:
                found.add(_root(script, func.value))
            elif own and isinstance(func, ast.Name) and script.called(one.value) is None:
                found.add(func.id)  # `stopper(accuracy)`
    return found - {"", "self"}


def _root(script: Script, node: ast.AST) -> str:
    """`self.total` of `self.total[0]`, `meter` of `meter.sum`."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute) and script.dotted(node).startswith("self."):
            return ".".join(script.dotted(node).split(".")[:2])
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def read_after(script: Script, node: ast.AST, name: str) -> bool:
    """True where a name is read behind a loop before it is given another value.

    Behind it is also the beginning of a loop around it, of which there is a next round.
    """
    scope, end = script.scope(node), script.span(node)[1]
    own = script.uses(node, name)
    uses = [one for one in script.uses(scope, name) if one not in own]
    later = sorted((one for one in uses if script.span(one)[0] >= end), key=script.span)
    if later:
        grown = isinstance(script.parents[later[0]], ast.AugAssign)
        return grown or not isinstance(later[0].ctx, ast.Store)
    around = [up for up in script.above(node) if isinstance(up, LoopNode)]
    again = sorted(
        (one for one in uses if around and around[-1] in script.above(one)), key=script.span
    )
    if again:
        return not isinstance(again[0].ctx, ast.Store)
    return bool(around) and bool(own) and isinstance(own[0].ctx, ast.Load)


def decides(
    context: Context,
    names: set[str],
    scope: Scope,
    after: ast.AST,
    *,
    returns: bool = True,
    seen: bool = False,
    handed: bool = False,
) -> bool:
    """True where something may be decided by these names, or by what is made of them.

    Args:
        after: the statement that gives them their values.
        returns: whether to hand them to a caller counts as a decision.
        seen: tests and a scheduler's step alone are decisions, not what may become of them in
            another method or in a call.
        handed: tests in a function that is called as well, and methods that cannot be followed.
    """
    script, tainted = context.script, set(names)
    statements = list(script.inside(scope.body, ast.stmt, deep=False))
    kept = list(method_calls(script.inside(scope.body, ast.Call, deep=False), "append"))
    while True:
        tainted = made_of(statements, tainted, gives=_given_by)
        lists = {
            name
            for call, owner in kept
            if mentioned(*call.args) & tainted
            for name in mentioned(owner)
        }
        if lists <= tainted:
            break
        tainted |= lists
    if any(name.startswith("self.") for name in tainted) and not seen:
        return True  # another method may decide by it
    if _used_in_decision(context, tainted, scope, after, returns=returns, seen=seen, handed=handed):
        return True
    return not seen and bool(shared_names(script, scope) & tainted)


def _given_by(target: ast.AST) -> set[str]:
    """The names that an assignment changes: of `x[i]` not the index."""
    indices = [one.slice for one in ast.walk(target) if isinstance(one, ast.Subscript)]
    return mentioned(target) - mentioned(*indices)


def shared_names(script: Script, scope: Scope) -> set[str]:
    """The names that a function has from around it: `global best`."""
    return {
        name
        for one in script.inside(scope.body, ast.stmt, deep=False)
        if isinstance(one, ast.Global | ast.Nonlocal)
        for name in one.names
    }


def _used_in_decision(
    context: Context,
    names: set[str],
    scope: Scope,
    after: ast.AST,
    *,
    returns: bool = False,
    seen: bool = False,
    handed: bool = False,
) -> bool:
    """True where one of these names stands where a script decides, or where that cannot be seen."""
    script = context.script
    inside = set(script.inside(after, ast.AST))
    for one in script.inside(scope.body, ast.AST, deep=False):
        if one in inside or _is_alike(context, one):
            continue
        found: list[ast.expr] = []
        match one:
            case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
                found = [one.test]
            case ast.Compare() if not seen:
                found = [one]
            case ast.Return(value=ast.expr() as value) if returns:
                found = [value]
            case ast.For(iter=ast.Call() as value):
                found = [value] if call_name(value) == "range" else []
            case ast.Call():
                if seen:
                    found = tested(script, one) if handed else []
                    found = given(one) if call_name(one) == "step" else found
                elif call_name(one) in _HARMLESS or _known_library(script, one):
                    found = []
                else:  # by what a function returns something may be decided, not in it
                    found = [] if _gives_a_name(script, one) else given(one)
        if mentioned(*(value for value in found if not _is_alike(context, value))) & names:
            return True
    return False


def tested(script: Script, call: ast.Call) -> list[ast.expr]:
    """Return the arguments by which a call such as `hook.on_epoch(self, error)` may decide.

    All of it, where the method cannot be followed.
    """
    if call_name(call) in _HARMLESS or not isinstance(script.parents[call], ast.Expr):
        return []
    functions = followed(script, call)
    if not functions:
        hidden = isinstance(call.func, ast.Attribute) and not script.file.names.called(call)
        return given(call) if hidden else []
    values = [
        script.given(function, name, call)
        for function in functions
        for one in walk(function)
        if isinstance(one, ast.If | ast.While | ast.IfExp)
        for name in {name.partition("[")[0] for name in mentioned(one.test)}
    ]
    return list(dict.fromkeys(value for value in values if value is not None))


def followed(script: Script, call: ast.Call) -> list[Function]:
    """The function that a call runs, or the methods of this name in any class of the script's."""
    found = callee(script.flow, script.file, call)
    if found is not None and found[0].names.enclosing(found[1], ast.ClassDef) is None:
        return [found[1]]
    if not isinstance(call.func, ast.Attribute) or script.file.names.called(call):
        return [] if found is None else [found[1]]
    return [
        one
        for file in script.flow.files
        for owner in file.names.all(ast.ClassDef)
        for one in owner.body
        if isinstance(one, Function) and one.name == call.func.attr
    ]


def _gives_a_name(script: Script, call: ast.Call) -> bool:
    """True of `x = f(y)` of a function; a method may keep what it is given."""
    plain = isinstance(call.func, ast.Name) or bool(script.file.names.dotted(call.func))
    assign = script.parents[call]
    return plain and isinstance(assign, ast.Assign) and isinstance(assign.targets[0], ast.Name)


def _is_alike(context: Context, node: ast.AST) -> bool:
    """True of a part of what has one value on all ranks."""
    return any(
        up in context.alike or (isinstance(up, ast.Call) and shares(context.script.file, up))
        for up in (node, *context.script.above(node))
    )


def _known_library(script: Script, call: ast.Call) -> bool:
    """True of functions of libraries that only compute, show or write."""
    name = script.file.names.called(call)
    roots = ("torch", "numpy", "math", "builtins", "matplotlib", "wandb", "json", "os", "time",
             "logging", "sklearn", "pandas", "scipy", "rankup")  # fmt: skip
    return name.split(".")[0] in roots and name not in ("builtins.range", "builtins.exit")

"""What goes from batch to batch or to the next epoch, and each rank changes by its own samples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.effects import callee
from ...script.flow import Flow, call_name, given, method_calls, receiver
from ...script.names import Function, assigned, bound_in, made_of, mentioned, stored, walk, written
from ...script.names import parameters as arguments
from ...script.roles import LoopNode
from ...script.source import File
from ...script.torch_names import words
from ..rewrite.training import Loop, Training
from .facts import parameters_of
from .rule import Hit

# These change a part of a tensor, or blend something in.
_CHANGES = words("index_copy_ index_add_ index_put_ scatter_ scatter_add_ add_ sub_ lerp_")
_GROWS = words("append appendleft extend insert update add")
_JOINS = words("cat concat concatenate stack vstack hstack")
_REDUCES = words("mean sum std var median quantile max min amax amin item kthvalue topk norm")
_SHARED = words("broadcast all_reduce batch_mean batch_sum")
_DEPTH = 4  # callers, or called functions
_MOST = 300  # expressions that a loader is made of
_LISTS = ast.List | ast.ListComp


def kept(training: Training, file: File) -> Iterator[Hit]:
    """Yield the hits of RK129 at what is kept of samples."""
    yield from _carried(training)
    yield from _for_the_loss(training)
    yield from _for_the_data(training)
    yield from _in_modules(file)
    yield from _branches(training)


def _carried(training: Training) -> Iterator[Hit]:
    """A state that is made of a batch, and that the loss of the next batch is made with."""
    script = training.script
    for loop in training.loops:
        names = list(script.inside(loop.node, ast.Name))
        given_ = [one.id for one in names if isinstance(one.ctx, ast.Store)]
        once = {one for one in given_ if given_.count(one) == 1}
        feeding = training.feeding(loop.node, loop.losses)
        local = (training.derived(loop) - loop.losses - _targets(loop)) & feeding & once
        if not local:
            continue
        for one in script.inside(loop.node.body, ast.Assign, ast.AugAssign, deep=False):
            assert isinstance(one, ast.Assign | ast.AugAssign)
            if not any(call_name(call) in _REDUCES for call in script.inside(one.value, ast.Call)):
                continue
            read = [name for name in names if script.span(name)[0] < script.span(one)[1]]
            before = {name.id for name in read if isinstance(name.ctx, ast.Load)}
            for name in sorted(mentioned(*assigned(one)) & local & before):
                yield Hit(
                    one,
                    f"`{name}` goes from batch to batch, made of a rank's part: ranks go apart",
                    "put together what it is made of (rankup.all_reduce)",
                )


def _for_the_loss(training: Training) -> Iterator[Hit]:
    """A table with a row for each sample, a memory, a running mean of which a loss is made."""
    script = training.script
    for loop in (one for one in training.loops if one.trains):
        parts = script.inside(
            loop.node.body, ast.Subscript, ast.Call, ast.Assign, ast.AugAssign, deep=False
        )
        found = [(node, of, by) for node in parts for of, by in changed(node)]
        if not found:
            continue
        around = script.scope(loop.node)
        tables = training.feeding(around, loop.losses) - bound_in(walk(loop.node))
        lists = training.feeding(loop.node, loop.losses) - _begun_in(training, loop)
        for node, of, by in found:
            name = held(of)
            feeding = tables if isinstance(node, ast.Subscript) or _in_place(node) else lists
            if name in feeding and mentioned(*by) & training.derived(loop):
                yield _of_its_own(node, name)


def _begun_in(training: Training, loop: Loop) -> set[str]:
    """The names that a loop gives a new value, and not a part of what they had: `old[-5:]`."""
    return {
        name
        for one in training.script.inside(loop.node, ast.Assign, ast.AnnAssign, deep=False)
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None
        for name in stored(*assigned(one)) - mentioned(one.value)
    } | _targets(loop)


def _targets(loop: Loop) -> set[str]:
    return stored(loop.node.target) if isinstance(loop.node, ast.For | ast.AsyncFor) else set()


def _branches(training: Training) -> Iterator[Hit]:
    """An `if` by this rank's part of a batch that gives the loss something else."""
    script = training.script
    for loop in (one for one in training.loops if one.trains):
        feeding, local = training.feeding(loop.node, loop.losses), training.derived(loop)
        for one in script.inside(loop.node.body, ast.If, deep=False):
            assert isinstance(one, ast.If)
            inner = script.inside([*one.body, *one.orelse], ast.Assign, ast.AugAssign, deep=False)
            asked = list(script.inside(one.test, ast.Call))
            own = any(
                call_name(call) in _REDUCES and mentioned(call) & local for call in asked
            ) and not any(call_name(call) in _SHARED for call in asked)
            if own and any(mentioned(*assigned(at)) & feeding for at in inner):
                yield Hit(
                    one,
                    "by its part of the batch each rank decides here what its loss is made of",
                    "decide by all of it (rankup.all_reduce)",
                )


# What chooses the next epoch's samples.


def _for_the_data(training: Training) -> Iterator[Hit]:
    """A table or a list by which the samples of the next epoch are chosen, in whatever file."""
    script, seen = training.script, set[ast.AST]()
    for loop in (one for one in training.loops if one.trains):
        tables = _made_of_anew(training, loop)
        for file, node, of, entry in _changes(training, loop) if tables else ():
            made = {one.node for one in script.flow.origins(file, of)}
            if node not in seen and made & tables:
                seen.add(node)
                at = "" if entry is None else f" ({file.short_place(node)})"
                yield _of_its_own(node if entry is None else entry, file.code(of), at)


def _made_of_anew(training: Training, loop: Loop) -> set[ast.AST]:
    """The expressions that a loop's loaders are made of, where each epoch makes new ones."""
    flow, found = training.script.flow, set[ast.AST]()
    waiting: list[tuple[File, ast.AST]] = []
    for source in training.sources(loop):
        for one in flow.origins(training.script.file, source):
            if isinstance(one.node, ast.Call) and _again(flow, one.file, one.node, _DEPTH):
                waiting += [(one.file, part) for part in given(one.node)]
    while waiting and len(found) < _MOST:
        file, node = waiting.pop()
        if isinstance(node, ast.List | ast.Call):
            waiting += [(file, one) for one in _put_into(flow, file, node, loop.node)]
        for part in walk(node):
            if not isinstance(part, ast.Name | ast.Attribute):
                continue
            for made in flow.origins(file, part):
                if made.node not in found and not isinstance(made.node, ast.ClassDef | Function):
                    found.add(made.node)
                    waiting.append((made.file, made.node))
    return found


def _again(flow: Flow, file: File, node: ast.AST, depth: int) -> bool:
    """True of a place in a loop, or in a function that is called in one."""
    for up in file.names.up(node):
        if isinstance(up, LoopNode):
            return True
        if isinstance(up, Function):
            callers = flow.callers.get(up, ()) if depth else ()
            return any(_again(flow, where, call, depth - 1) for where, call in callers)
    return False


def _put_into(flow: Flow, file: File, made: ast.AST, but: ast.AST) -> Iterator[ast.AST]:
    """What a list is filled with, and what decides about that, but in one loop."""
    for call, owner in method_calls(file.names.all(ast.Call), *_GROWS):
        above = list(file.names.up(call))
        if but not in above and any(one.node is made for one in flow.origins(file, owner)):
            yield from given(call)
            for up in above:
                if isinstance(up, Function):
                    break
                if isinstance(up, ast.If | ast.For):
                    yield up.test if isinstance(up, ast.If) else up.iter


def _changes(
    training: Training, loop: Loop
) -> Iterator[tuple[File, ast.AST, ast.expr, ast.Call | None]]:
    """What a loop, and what it calls, changes by a rank's own samples; and behind it by such.

    Each with its file, what is changed, and the call in this file that leads to another function.
    """
    script, own = training.script, training.derived(loop) - loop.losses
    end, scope = script.span(loop.node)[1], script.scope(loop.node)
    behind = [one for one in script.inside(scope.body, ast.stmt) if script.span(one)[0] >= end]
    left = {name for name in own if not bound_in(script.inside(loop.node, ast.Name)) & {name}}
    waiting: list[tuple[File, list[ast.stmt], set[str], ast.Call | None, int]] = [
        (script.file, loop.node.body, own, None, _DEPTH),
        (script.file, behind, made_of(behind, left), None, 0),
    ]
    while waiting:
        file, body, names, entry, depth = waiting.pop(0)
        for node in walk(*body):
            for of, by in changed(node):
                if mentioned(*by) & names:
                    yield file, node, of, entry
            if not isinstance(node, ast.Call) or not depth:
                continue
            found = callee(script.flow, file, node)
            taken = parameters_of(node, found[1], names) if found is not None else set()
            if found is not None and taken:
                inner = found[1].body
                passed = made_of(walk(*inner), taken)
                waiting.append((found[0], inner, passed, entry or node, depth - 1))


# Forms of a change.


def changed(node: ast.AST) -> list[tuple[ast.expr, list[ast.expr]]]:
    """What is changed in part, in place or by more of it, and what decides about that."""
    match node:
        case ast.Subscript(value=value, slice=at, ctx=ast.Store()):
            return [(value, [at])]
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _CHANGES | _GROWS:
            while isinstance(value, ast.Call) and call_name(value).endswith("_"):
                value = receiver(value) or value.func  # `mean.mul_(0.9)` of `.add_(x)`
            return [(value, given(node))]
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if lists(value):
            return [(target, [value])]
        case ast.Assign(targets=[target], value=value) if _joins(value, written(target)):
            return [(target, [value])]
    return []


def lists(value: ast.expr) -> bool:
    """True of what a list is added to by `+=`."""
    listed = isinstance(value, ast.Call) and call_name(value) in ("tolist", "list", "sorted")
    return listed or isinstance(value, _LISTS)


def _joins(value: ast.expr, name: str) -> bool:
    """True of `torch.cat([bank, x])[-9:]` and `bank + [x]`, given to the name that is in it."""
    if not name or name not in mentioned(value):
        return False
    return any(
        (isinstance(one, ast.Call) and call_name(one) in _JOINS)
        or (isinstance(one, ast.BinOp) and (lists(one.left) or lists(one.right)))
        for one in walk(value)
    )


def _in_place(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and call_name(node) in _CHANGES


def held(node: ast.expr) -> str:
    """`bank` of `bank.data`, of `bank[label]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return written(node).removesuffix(".data")


def _in_modules(file: File) -> Iterator[Hit]:
    """A table or a mean of a loss or a model that keeps it itself."""
    for function in (one for one in file.names.functions if one.name == "forward"):
        found = [
            (node, held(of), by)
            for node in walk(*function.body)
            for of, by in [*changed(node), *_blended(node)]
        ]
        found = [one for one in found if re.fullmatch(r"self\.\w+", one[1])]
        if not found:
            continue
        given_ = {one.arg for one in arguments(function.args)} - {"self"}
        local = made_of(walk(*function.body), given_, gives=stored)
        own = {
            (name, file.line(node)[0]): node for node, name, by in found if mentioned(*by) & local
        }
        for (name, _), node in own.items():
            yield _of_its_own(node, name)


def _blended(node: ast.AST) -> list[tuple[ast.expr, list[ast.expr]]]:
    """`mean = 0.9 * mean + 0.1 * x`, `mean[:] = …`, `seen += len(x)`."""
    match node:
        case ast.Assign(targets=[target], value=value) if written(target) in mentioned(value):
            return [(target, [value])]
        case ast.Assign(targets=[ast.Subscript(slice=ast.Slice()) as target], value=value):
            return [(target, [value])]
        case ast.AugAssign(target=target, value=value):
            return [(target, [value])]
    return []


def _of_its_own(node: ast.AST, name: str, at: str = "") -> Hit:
    return Hit(
        node,
        f"`{name}` is kept from batch to batch, and each rank changes it by its own samples{at}",
        "put together what it is changed by (rankup.all_gather)",
    )

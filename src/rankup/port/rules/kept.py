"""State that goes on to the next batch or epoch, and that each rank changes by its own samples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...script.effects import callee
from ...script.flow import Flow, Origin, call_name, given, method_calls, receiver
from ...script.names import Function, assigned, bound_in, made_of, mentioned, stored, walk, written
from ...script.names import parameters as arguments
from ...script.roles import Loop, LoopNode
from ...script.source import File
from ...script.torch_names import words
from ..rewrite.training import Training
from .decisions import shared_names
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


Change = tuple[File, ast.AST, ast.expr, ast.Call | None]


@dataclass(frozen=True)
class _Region:
    """A loop or a step that trains.

    Attributes:
        local: the names that hold something of a batch, but for the losses.
        changes: what it changes by these, with what it calls.
    """

    where: LoopNode | Function
    local: set[str]
    losses: set[str]
    changes: list[Change]


def kept(training: Training, file: File) -> Iterator[Hit]:
    """Yield the hits of RK129 at what is kept of samples."""
    regions = [
        _Region(where, local, losses, list(_changes(training, where.body, local)))
        for where, local, losses in _regions(training)
    ]
    for one in regions:
        yield from _carried(training, one)
    yield from _for_the_loss(training, regions)
    yield from _for_the_data(training, {one.where: one.changes for one in regions})
    yield from _in_modules(file)
    yield from _branches(training)


def _regions(training: Training) -> Iterator[tuple[LoopNode | Function, set[str], set[str]]]:
    """The loops and the steps that train: each with its names of a batch, and its losses."""
    for loop in training.loops:
        if loop.trains:
            yield loop.node, training.derived(loop) - loop.losses, loop.losses
    for step, calls in training.steps.items():
        losses = mentioned(*calls)
        if training.script.callers(step):
            yield step, made_of(walk(step), training.given_batches(step)) - losses, losses


def _carried(training: Training, region: _Region) -> Iterator[Hit]:
    """A state that is made of a batch, and that the loss of the next batch is made with."""
    script, where = training.script, region.where
    reducing = [
        one
        for one in script.inside(where.body, ast.Assign, ast.AugAssign, deep=False)
        if isinstance(one, ast.Assign | ast.AugAssign)
        and mentioned(*assigned(one)) & region.local
        and any(call_name(call) in _REDUCES for call in script.inside(one.value, ast.Call))
    ]
    if not reducing:
        return
    places = [
        one
        for one in script.inside(where, ast.Name, ast.Attribute)
        if isinstance(one, ast.Name | ast.Attribute) and script.dotted(one)
    ]
    given_ = [script.dotted(one) for one in places if isinstance(one.ctx, ast.Store)]
    once = {one for one in given_ if given_.count(one) == 1}
    if isinstance(where, Function):  # its own names begin anew
        once &= {one for one in once if one.startswith("self.")} | shared_names(script, where)
    names = region.local & training.feeding(where, region.losses) & once - _target(where)
    for one in reducing if names else ():
        end = script.span(one)[1]
        read = [at for at in places if isinstance(at.ctx, ast.Load) and script.span(at)[0] < end]
        for name in sorted(mentioned(*assigned(one)) & names & set(map(script.dotted, read))):
            yield Hit(
                one,
                f"`{name}` goes from batch to batch, made of a rank's part: ranks go apart",
                "put together what it is made of (rankup.all_reduce)",
            )


def _for_the_loss(training: Training, regions: list[_Region]) -> Iterator[Hit]:
    """A table with a row for each sample, a memory, a running mean of which a loss is made."""
    script, seen = training.script, set[ast.AST]()
    for region in (one for one in regions if one.changes):
        where = region.where
        tables = training.feeding(script.scope(where), region.losses) - bound_in(walk(where))
        lists = training.feeding(where, region.losses) - _begun_in(training, where)
        elsewhere = any(entry is not None for *_, entry in region.changes)
        objects = _objects(training, where, tables | lists) if elsewhere else set()
        for file, node, of, entry in region.changes:
            whole = isinstance(node, ast.Subscript) or _in_place(node)
            made = {one.node for one in script.flow.origins(file, of)} if entry else set()
            same = held(of) in (tables if whole else lists) if entry is None else made & objects
            if same and node not in seen:
                seen.add(node)
                yield _of_its_own(file, node, of, entry)


def _objects(training: Training, where: LoopNode | Function, names: set[str]) -> set[ast.AST]:
    """The expressions that make what names stand for, and the attributes of instances."""
    script, flow = training.script, training.script.flow
    found = set[ast.AST]()
    for part in script.inside(where, ast.Name, ast.Attribute):
        for one in flow.origins(script.file, part) if held(part) in names else ():
            found |= {one.node} | _attributes(flow, one)
    return {one for one in found if isinstance(one, ast.Call | ast.List | ast.Dict)}


def _begun_in(training: Training, where: ast.AST) -> set[str]:
    """The names that code gives a new value, and not a part of what they had: `old[-5:]`."""
    begun = {
        name
        for one in training.script.inside(where, ast.Assign, ast.AnnAssign, deep=False)
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None
        for name in stored(*assigned(one)) - mentioned(one.value)
    }
    return begun | _target(where)


def _target(where: ast.AST) -> set[str]:
    return stored(where.target) if isinstance(where, ast.For | ast.AsyncFor) else set()


def _branches(training: Training) -> Iterator[Hit]:
    """A branch by this rank's part of a batch that gives the loss something else."""
    script = training.script
    for loop in (one for one in training.loops if one.trains):
        feeding, local = training.feeding(loop.node, loop.losses), training.derived(loop)
        for one in script.inside(loop.node.body, ast.If, ast.IfExp, deep=False):
            assert isinstance(one, ast.If | ast.IfExp)
            run = [*one.body, *one.orelse] if isinstance(one, ast.If) else script.statement(one)
            inner = script.inside(run, ast.Assign, ast.AugAssign, deep=False)
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


def _for_the_data(training: Training, changes: dict[ast.AST, list[Change]]) -> Iterator[Hit]:
    """A table or a list by which the samples of the next epoch are chosen, in whatever file."""
    script, seen = training.script, set[ast.AST]()
    for loop in (one for one in training.loops if one.trains):
        found = [*changes[loop.node], *_changes(training, *_behind(training, loop))]
        tables = set[ast.AST]()
        if found:
            tables = _made_of_anew(training, loop) | _given_to_loaders(training, loop)
        for file, node, of, entry in found:
            parts = [one for one in walk(of) if isinstance(one, ast.Name | ast.Attribute)]
            made = {one.node for part in parts for one in script.flow.origins(file, part)}
            if node not in seen and made & tables:
                seen.add(node)
                yield _of_its_own(file, node, of, entry)


def _given_to_loaders(training: Training, loop: Loop) -> set[ast.AST]:
    """The objects that a loop's loaders hold: a data set, a sampler, and what these are given."""
    flow, found = training.script.flow, set[ast.AST]()
    sources = training.sources(loop)
    waiting = [one for source in sources for one in flow.origins(training.script.file, source)]
    while waiting:
        made = waiting.pop()
        if not isinstance(made.node, ast.Call) or not call_name(made.node)[:1].isupper():
            continue
        found.add(made.node)
        for part in given(made.node):
            for one in flow.origins(made.file, part):
                if one.node not in found and isinstance(one.node, ast.Call | ast.List):
                    found |= {one.node} | _attributes(flow, one)
                    waiting.append(one)
    return found


def _attributes(flow: Flow, made: Origin) -> set[ast.AST]:
    """The values that the attributes of an instance are given."""
    owner = flow.class_of(made.file, made.node) if isinstance(made.node, ast.Call) else None
    several = owner[0].names.attributes(owner[1]).values() if owner is not None else ()
    values = {one.node for bound in several for one in bound}
    return {one for one in values if isinstance(one, ast.Call | ast.List | ast.Dict)}


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
    """Return what a list is filled with, and what decides about that, but in one loop."""
    for call, owner in method_calls(file.names.all(ast.Call), *_GROWS):
        above = list(file.names.up(call))
        if but not in above and any(one.node is made for one in flow.origins(file, owner)):
            yield from given(call)
            for up in above:
                if isinstance(up, Function):
                    break
                if isinstance(up, ast.If | ast.For):
                    yield up.test if isinstance(up, ast.If) else up.iter


def _changes(training: Training, body: list[ast.stmt], local: set[str]) -> Iterator[Change]:
    """Return what statements, and what they call, change by a rank's own samples.

    Each with its file, what is changed, and the call in this file that leads to another function.
    """
    flow = training.script.flow
    waiting: list[tuple[File, list[ast.stmt], set[str], ast.Call | None, int]] = []
    waiting.append((training.script.file, body, local, None, _DEPTH))
    while waiting:
        file, statements, names, entry, depth = waiting.pop(0)
        for node in walk(*statements):
            found = callee(flow, file, node) if isinstance(node, ast.Call) and depth else None
            for of, by in changed(node) if found is None else ():
                if mentioned(*by) & names:
                    yield file, node, of, entry
            if found is not None and isinstance(node, ast.Call):
                taken = parameters_of(node, found[1], names)
                inner = found[1].body
                if taken:
                    passed = made_of(walk(*inner), taken)
                    waiting.append((found[0], inner, passed, entry or node, depth - 1))


def _behind(training: Training, loop: Loop) -> tuple[list[ast.stmt], set[str]]:
    """The statements behind a loop in its function, and the names that it leaves them."""
    script, own = training.script, training.derived(loop) - loop.losses
    end, scope = script.span(loop.node)[1], script.scope(loop.node)
    behind = [one for one in script.inside(scope.body, ast.stmt) if script.span(one)[0] >= end]
    return behind, made_of(behind, own - bound_in(script.inside(loop.node, ast.Name)))


# Forms of a change.


def changed(node: ast.AST) -> list[tuple[ast.expr, list[ast.expr]]]:
    """Return what is changed in part, in place or by more of it, and what decides about that."""
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
            (node, of, by)
            for node in walk(*function.body)
            for of, by in [*changed(node), *_blended(node)]
        ]
        found = [one for one in found if re.fullmatch(r"self\.\w+", held(one[1]))]
        if not found:
            continue
        given_ = {one.arg for one in arguments(function.args)} - {"self"}
        local = made_of(walk(*function.body), given_, gives=stored)
        own = {
            (held(of), file.line(node)[0]): (node, of)
            for node, of, by in found
            if mentioned(*by) & local
        }
        for node, of in own.values():
            yield _of_its_own(file, node, of)


def _blended(node: ast.AST) -> list[tuple[ast.expr, list[ast.expr]]]:
    """`mean = 0.9 * mean + 0.1 * x`, `mean[:] = …`, `mean.copy_(…)` of it, `seen += len(x)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=target, attr="copy_"), args=[value, *_]) if held(
            target
        ) in mentioned(value):
            return [(target, [value])]
        case ast.Assign(targets=[target], value=value) if written(target) in mentioned(value):
            return [(target, [value])]
        case ast.Assign(targets=[ast.Subscript(slice=ast.Slice()) as target], value=value):
            return [(target, [value])]
        case ast.AugAssign(target=target, value=value):
            return [(target, [value])]
    return []


def _of_its_own(file: File, node: ast.AST, of: ast.expr, entry: ast.Call | None = None) -> Hit:
    what = f"`{held(of)}` is kept from batch to batch, and each rank changes it by its own samples"
    return Hit(
        entry or node,
        what if entry is None else f"{what} ({file.short_place(node)})",
        "put together what it is changed by (rankup.all_gather)",
    )

"""Training loops (they reach `.backward()`) and evaluation loops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from .flow import Flow, call_name, first_argument, given, is_backward, literal
from .models import is_loader, role
from .names import Function, calls_in, elements, walk
from .roles import Count, Loop, LoopNode, Role, RoleKind, unique
from .source import File
from .torch_names import LOADER_WRAPPERS, METRIC_METHODS

_EVALUATING = re.compile("eval|vali|test|infer|accuracy|predict")  # in the name of a function
Backward = tuple[File, ast.Call]
_DEPTH = 5  # callers of the function with the backward that are looked through for the loop


def find_loops(flow: Flow, models: Iterable[Role]) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """The loops that reach a backward, and those over loaders that evaluate."""
    reached: dict[LoopNode, tuple[File, list[Backward]]] = {}
    for file in flow.files:
        for call in file.names.all(ast.Call):
            if is_backward(flow, file, call):
                for where, node in _loops_of(flow, file, call, _DEPTH):
                    reached.setdefault(node, (where, []))[1].append((file, call))
    train = [
        _loop(flow, file, node, "train_loader", tuple(backwards))
        for node, (file, backwards) in reached.items()
    ]
    around = {up for node, (where, _) in reached.items() for up in where.names.up(node)}
    steps = {  # functions with a backward that a training loop calls
        where.names.function(call)
        for node, (file, backwards) in reached.items()
        for where, call in backwards
        if where.names.function(call) is not file.names.function(node)
    }
    evaluation = [
        _loop(flow, file, node, "eval_loader")
        for file in flow.files
        for node in walk(file.tree)
        if isinstance(node, LoopNode) and node not in reached and node not in around
        if file.names.function(node) not in steps - {None}
    ]
    made = {one.node for one in models}
    found = [one for one in evaluation if one.loaders and _evaluates(flow, one, made)]
    return tuple(train), tuple(found)


def _evaluates(flow: Flow, loop: Loop, models: set[ast.AST]) -> bool:
    """True where a loop runs a model, by its surroundings or by what it calls; or is shared.

    A function of the script's own may run one, and so may any that is given it.
    """
    file, body = loop.file, loop.node.body
    if _shared(file, loop):
        return True
    around = list(file.names.up(loop.node))
    if any(isinstance(up, Function) and _EVALUATING.search(up.name.lower()) for up in around):
        return True
    if any(gradients_off(file, one) for one in (*around, *walk(*body))):
        return True
    calls = list(calls_in(*body))
    if any(flow.callee(file, call) is not None for call in calls):
        return True
    named = (one for call in calls for one in (call.func, *given(call)))
    return any(
        made.node in models
        for one in named
        if isinstance(one, ast.Name | ast.Attribute)
        for made in flow.origins(file, one)
    )


def _shared(file: File, loop: Loop) -> bool:
    """True where the ranks share a loop, or put together what it counts, by rankup's own calls."""
    counted = {one.name for one in loop.counts}
    head = [] if isinstance(loop.node, ast.While) else calls_in(loop.node.iter)
    if any(file.names.called(call) == "rankup.shard" for call in head):
        return True
    around = file.names.function(loop.node) or file.tree
    return any(
        file.code(given) in counted
        for call in calls_in(*around.body)
        if file.names.called(call) in ("rankup.total", "rankup.gather")
        for given in call.args
    )


def _loops_of(flow: Flow, file: File, node: ast.AST, depth: int) -> list[tuple[File, LoopNode]]:
    """The loop over batches around a node: in its function, else around the function's calls."""
    around: list[LoopNode] = []
    function: Function | None = None
    for up in file.names.up(node):
        if isinstance(up, LoopNode):
            around.append(up)
        elif isinstance(up, Function):
            function = up
            break
    with_loader = [one for one in around if _loaders(flow, file, one, "train_loader")[1]]
    if with_loader:
        return [(file, with_loader[0])]
    outer: list[tuple[File, LoopNode]] = []
    if function is not None and depth > 0:
        for where, call in flow.callers.get(function, ()):
            outer += _loops_of(flow, where, call, depth - 1)
        # a step function called in a loop over a loader: that is the loop, not one over parts
        if any(_loaders(flow, where, one, "train_loader")[1] for where, one in outer):
            return outer
    if around:
        return [(file, around[0])]
    return outer


def _loaders(
    flow: Flow, file: File, node: LoopNode, kind: RoleKind
) -> tuple[ast.expr | None, tuple[Role, ...]]:
    """The expression that a loop takes its batches from, and the loaders that it may be."""
    expressions = taken_from(file, node)
    found = [(one, origin) for one in expressions for origin in flow.origins(file, one)]
    sure = [(one, origin) for one, origin in found if is_loader(flow, origin)]
    roles = unique(role(kind, origin, is_loader(flow, origin)) for _, origin in sure)
    return next(iter([*(one for one, _ in sure), *expressions]), None), roles


def _loop(
    flow: Flow, file: File, node: LoopNode, kind: RoleKind, backwards: tuple[Backward, ...] = ()
) -> Loop:
    return Loop(file, node, *_loaders(flow, file, node, kind), backwards, counts(file, node))


def taken_from(file: File, node: ast.AST) -> list[ast.expr]:
    """The expressions that give a loop its batches, without wrappers; several with `zip`."""
    if not isinstance(node, LoopNode):
        return []
    given = [] if isinstance(node, ast.While) else [node.iter]
    return [one for place in (*given, *_next_calls(node)) for one in _unwrapped(file, place)]


def _next_calls(node: LoopNode) -> list[ast.expr]:
    """`it` of each `next(it)` and `it.next()` in a loop's own body."""
    return [drawn for call in calls_in(*node.body) if (drawn := drawn_from(call)) is not None]


def drawn_from(call: ast.Call) -> ast.expr | None:
    """`it` of `next(it)`, and of the old `it.next()`."""
    if isinstance(call.func, ast.Name) and call.func.id == "next" and call.args:
        return call.args[0]
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("next", "__next__"):
        return None if call.args else call.func.value
    return None


def _unwrapped(file: File, node: ast.expr) -> list[ast.expr]:
    """`loader` of `enumerate(tqdm(loader), 1)`; both of `zip(a, b)`."""
    if isinstance(node, ast.Call) and call_name(node) in LOADER_WRAPPERS and node.args:
        if call_name(node) in ("range", "trange"):
            return [node]
        pick = node.args if call_name(node) in ("zip", "chain") else node.args[:1]
        return [one for arg in pick for one in _unwrapped(file, arg)]
    return [node]


def gradients_off(file: File, node: ast.AST) -> bool:
    """True where what stands in a `with`, or a function, may run without gradients."""
    heads: list[ast.AST] = []
    if isinstance(node, ast.With | ast.AsyncWith):
        heads += [item.context_expr for item in node.items]
    elif isinstance(node, Function):
        heads += node.decorator_list
    for head in list(heads):
        if isinstance(head, ast.Name):  # `context = torch.no_grad() if … else …`
            _, bindings = file.names.bindings(head.id, file.names.scope(head))
            heads += [one.node for one in bindings if one.kind == "value"]
    return any(_turns_off(file, one) for head in heads for one in walk(head))


def _turns_off(file: File, node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    call = file.names.parents[node]
    on = isinstance(call, ast.Call) and literal(first_argument(call)) is True
    return name in ("no_grad", "inference_mode") or (name == "set_grad_enabled" and not on)


def counts(file: File, node: LoopNode) -> tuple[Count, ...]:
    """The values that grow in a loop's body."""
    found = []
    for one in walk(*node.body):
        match one:
            case ast.AugAssign(op=ast.Add()):
                found.append(Count(file, one, _grows(file, one.target), one.value))
            case ast.Assign(targets=[target], value=made):  # `hits, n = hits + right, n + len(x)`
                pairs = zip(elements(target), elements(made), strict=False)
                for name, value in pairs if len(elements(target)) == len(elements(made)) else ():
                    match value:
                        case ast.BinOp(left=left, op=ast.Add(), right=more):
                            if file.code(left) == file.code(name):
                                found.append(Count(file, one, _grows(file, name), more))
            case ast.Call(func=ast.Attribute(value=grown, attr=word), args=[value, *_]):
                if word in METRIC_METHODS:
                    found.append(Count(file, one, _grows(file, grown), value))
    return tuple(found)


def _grows(file: File, node: ast.expr) -> str:
    """`total` of `total`, and of `total[label]`: what holds the value that grows."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return file.code(node)

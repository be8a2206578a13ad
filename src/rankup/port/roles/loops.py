"""Which loops train (they reach `.backward()`), and which evaluate."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ..source import Source
from ..tree import walk
from .flow import Flow
from .kinds import Count, Loop, Role
from .pieces import call_name
from .trained import is_loader, role
from .words import AROUND_LOADER, METRIC_METHODS

Backward = tuple[Source, cst.Call]
LoopNode = cst.For | cst.While
_DEPTH = 5  # callers of the function with the backward that are looked through for the loop


def find_loops(
    flow: Flow, models: Iterable[Role]
) -> tuple[tuple[Loop, ...], tuple[Loop, ...], tuple[tuple[bool, Role], ...]]:
    """Training loops, evaluation loops, and (trains, loader) for each loader in one of them."""
    reached: dict[LoopNode, tuple[Source, list[Backward]]] = {}
    for source in flow.sources:
        for call in source.index.all(cst.Call):
            if is_backward(source, call):
                for where, node in _loops_of(flow, source, call, _DEPTH):
                    reached.setdefault(node, (where, []))[1].append((source, call))
    loaders: list[tuple[bool, Role]] = []
    train = []
    for node, (source, backwards) in reached.items():
        iterated, found = _iterated(flow, source, node, "train_loader")
        loaders += [(True, one) for one in found]
        train.append(Loop(source, node, iterated, found, tuple(backwards), counts(source, node)))
    trains = set(reached)
    around = {up for node, (where, _) in reached.items() for up in where.index.up(node)}
    called = _calls_reached(flow, reached)
    evaluation = []
    nodes = {one.node for one in models}
    for source in flow.sources:
        every: list[LoopNode] = [*source.index.all(cst.For), *source.index.all(cst.While)]
        for node in every:
            if node in trains or node in around or _nested_in(source, node, trains):
                continue
            iterated, found = _iterated(flow, source, node, "eval_loader")
            if not found or called & {source.index.function(node)}:
                continue
            if not _evaluates(flow, source, node, nodes):
                continue
            loaders += [(False, one) for one in found]
            evaluation.append(Loop(source, node, iterated, found, (), counts(source, node)))
    return tuple(train), tuple(evaluation), tuple(loaders)


def is_backward(source: Source, call: cst.Call) -> bool:
    """`loss.backward()`, `accelerator.backward(loss)`, `torch.autograd.backward(loss)`."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "backward":
        return False
    receiver = call.func.value
    return not (isinstance(receiver, cst.Name) and receiver.value in ("self", "ctx", "super"))


def _loops_of(
    flow: Flow, source: Source, node: cst.CSTNode, depth: int
) -> list[tuple[Source, LoopNode]]:
    """The loop over batches around a node: in its function, else around the function's calls."""
    around: list[LoopNode] = []
    function: cst.FunctionDef | None = None
    for up in source.index.up(node):
        if isinstance(up, (cst.For, cst.While)):
            around.append(up)
        elif isinstance(up, cst.FunctionDef):
            function = up
            break
    with_loader = [one for one in around if _iterated(flow, source, one, "train_loader")[1]]
    if with_loader:
        return [(source, with_loader[0])]
    outer: list[tuple[Source, LoopNode]] = []
    if function is not None and depth > 0:
        for where, call in flow.callers.get(function, ()):
            outer += _loops_of(flow, where, call, depth - 1)
        # a step function called in a loop over a loader: that is the loop, not one over parts
        if any(_iterated(flow, where, one, "train_loader")[1] for where, one in outer):
            return outer
    if around:
        return [(source, around[0])]
    return outer


def _nested_in(source: Source, node: cst.CSTNode, others: set[LoopNode]) -> bool:
    """Within a loop that trains and without a loader of its own: a part of a step."""
    return any(up in others for up in source.index.up(node)) and not isinstance(node, cst.For)


def _calls_reached(
    flow: Flow, reached: dict[LoopNode, tuple[Source, list[Backward]]]
) -> set[cst.FunctionDef | None]:
    """Functions with a backward in them that a training loop calls."""
    found: set[cst.FunctionDef | None] = set()
    for node, (source, backwards) in reached.items():
        for where, call in backwards:
            function = where.index.function(call)
            if function is not None and function is not source.index.function(node):
                found.add(function)
    return found


def _iterated(
    flow: Flow, source: Source, node: LoopNode, kind: str
) -> tuple[cst.BaseExpression | None, tuple[Role, ...]]:
    """The expression that a loop takes its batches from, and the loaders that it may be."""
    expressions = taken_from(source, node)
    first: cst.BaseExpression | None = None
    roles: dict[cst.CSTNode, Role] = {}
    for expression in expressions:
        for origin in flow.origins(source, expression):
            sure = is_loader(flow, origin)
            if sure:
                first = first or expression
                wanted = "train_loader" if kind == "train_loader" else "eval_loader"
                roles.setdefault(origin.node, role(wanted, origin, sure))  # type: ignore[arg-type]
    return first or (expressions[0] if expressions else None), tuple(roles.values())


def taken_from(source: Source, node: cst.CSTNode) -> list[cst.BaseExpression]:
    """What a loop takes its batches from, without what is around a loader; several with `zip`."""
    if not isinstance(node, (cst.For, cst.While)):
        return []
    given = [node.iter] if isinstance(node, cst.For) else []
    return [one for place in (*given, *_next_calls(node)) for one in _unwrapped(source, place)]


def _next_calls(node: LoopNode) -> list[cst.BaseExpression]:
    """`it` of each `next(it)` and `it.next()` in a loop's own body."""
    found: list[cst.BaseExpression] = []
    for one in walk(node.body):
        if isinstance(one, cst.Call):
            if isinstance(one.func, cst.Name) and one.func.value == "next" and one.args:
                found.append(one.args[0].value)
            elif call_name(one) in ("next", "__next__") and isinstance(one.func, cst.Attribute):
                found.append(one.func.value)
    return found


def _unwrapped(source: Source, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """`loader` of `enumerate(tqdm(loader), 1)`; both of `zip(a, b)`."""
    if isinstance(node, cst.Call) and call_name(node) in AROUND_LOADER and node.args:
        if call_name(node) in ("range", "trange"):
            return [node]
        pick = node.args if call_name(node) in ("zip", "chain") else node.args[:1]
        return [one for arg in pick for one in _unwrapped(source, arg.value)]
    return [node]


def _evaluates(flow: Flow, source: Source, node: LoopNode, models: set[cst.CSTNode]) -> bool:
    """Whether a loop without backward runs a model: by its surroundings or by its calls."""
    if _behind_eval(source, node):
        return True
    around = [node, *source.index.up(node)]
    for up in around:
        if no_grad(up):
            return True
        if isinstance(up, cst.FunctionDef):
            if without_gradients(up):
                return True
            words = up.name.value.lower()
            if any(word in words for word in ("eval", "valid", "test", "infer", "accuracy")):
                return True
    for inner in walk(node.body):
        if no_grad(inner):
            return True
        if isinstance(inner, cst.Call):
            if call_name(inner) == "eval" or "eval" in call_name(inner).lower():
                return True
            if isinstance(inner.func, (cst.Name, cst.Attribute)) and models & {
                origin.node for origin in flow.origins(source, inner.func)
            }:
                return True
    return False


def _behind_eval(source: Source, node: cst.CSTNode) -> bool:
    """Whether `model.eval()` stands above a loop in its block, and no `model.train()` since."""
    found = False
    for one in getattr(source.index.parents.get(node), "body", ()):
        if one is node:
            return found
        call = one.body[0] if isinstance(one, cst.SimpleStatementLine) else None
        if isinstance(call, cst.Expr) and isinstance(call.value, cst.Call):
            found = (found or call_name(call.value) == "eval") and call_name(call.value) != "train"
    return False


def no_grad(node: cst.CSTNode) -> bool:
    """Whether it is a `with` that switches gradients off."""
    return isinstance(node, cst.With) and any(_is_no_grad(item.item) for item in node.items)


def without_gradients(function: cst.FunctionDef) -> bool:
    """Whether a function is decorated with `torch.no_grad()`."""
    return any(_is_no_grad(one.decorator) for one in function.decorators)


def _is_no_grad(node: cst.BaseExpression) -> bool:
    func = node.func if isinstance(node, cst.Call) else node
    name = func.attr.value if isinstance(func, cst.Attribute) else getattr(func, "value", "")
    return name in ("no_grad", "inference_mode", "set_grad_enabled")


def counts(source: Source, node: LoopNode) -> tuple[Count, ...]:
    """What grows in a loop's body."""
    found = []
    for one in walk(node.body):
        match one:
            case cst.AugAssign(operator=cst.AddAssign()):
                found.append(Count(source, one, _grows(source, one.target), one.value))
            case cst.Call(func=cst.Attribute(attr=cst.Name(value=word))) if word in METRIC_METHODS:
                if one.args and isinstance(one.func, cst.Attribute):
                    name = _grows(source, one.func.value)
                    found.append(Count(source, one, name, one.args[0].value))
    return tuple(found)


def _grows(source: Source, node: cst.BaseExpression) -> str:
    """`total` of `total`, and of `total[label]`: what holds the value that grows."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return source.code(node)

"""Files that functions of other files write: guarded where the script calls them, or named."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from ...script.effects import Helper, Reached, trains
from ...script.flow import argument, call_name
from ...script.loops import gradients_off, taken_from
from ...script.models import is_loader
from ...script.names import bound_in, parameters, root_name, walk
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import (
    COLLECTIVES,
    DRAWING_METHODS,
    OUR_COLLECTIVES,
    RETURNS_SELF,
    SPLITS,
    is_draw,
    words,
)
from ..rewrite.context import Context
from .facts import by_every_rank, guard, rank0_first
from .rule import Hit

# Methods that change what they are called on, so that ranks that leave them out differ.
_CHANGING = words("step backward load_state_dict requires_grad_ update")
_GROWING = words("append extend insert pop remove clear add setdefault popitem put")
ALONE = "let rank 0 alone, `if rankup.is_root_process():`"
_MODES = ("train", "eval")
_COLLECTIVES = COLLECTIVES | OUR_COLLECTIVES | {"shard", "wrap"}


@lru_cache(maxsize=1)
def by_helpers(script: Script) -> list[Helper]:
    """The calls of functions in files that a port does not change that write on every rank.

    Not of those that train: such a call is no one rank's.
    """
    return [
        helper
        for helper in script.helpers
        if helper.sites
        and not trains(helper.caller, script, helper.call)
        and not guard(helper.caller, script, helper.call)
        and not rank0_first(helper.caller, script, helper.call)
        and any(by_every_rank(script, site) for site in helper.sites)
        and not _to_nowhere(helper)
    ]


def _to_nowhere(helper: Helper) -> bool:
    """True where the ranks but the first hand a helper a file that nothing is written to."""
    path = _handed_to_open(helper)
    return isinstance(path, ast.Call) and call_name(path) == "path0"


def helpers_that_write(file: File, script: Script, *, checkpoint: bool) -> Iterator[Hit]:
    """Yield the hits at these calls: of those that save checkpoints, or of the others."""
    for helper in by_helpers(script):
        if helper.caller is file and checkpoint == any(
            site.kind == "checkpoint" for site in helper.sites
        ):
            alone = isinstance(file.names.parents[helper.call], ast.Expr)  # nothing is given back
            called = file.code(helper.call.func)
            todo = f"let rank 0 go first, `rankup.rank0_first({called}, …)`"
            if all(
                isinstance(one.file.names.parents[one.node], ast.Assign) for one in helper.sites
            ):
                todo = "give the others nowhere to write to, `rankup.path0(path)`"
            yield Hit(
                helper.call,
                f"every rank writes the same file in {_at(helper)}",
                ALONE if alone else todo,
                partial(_call_alone, helper=helper),
                comment=False,
            )


def _at(helper: Helper) -> str:
    """The place of the first call that writes."""
    site = helper.sites[0]
    return site.file.short_place(site.node)


def _call_alone(context: Context, helper: Helper) -> str | None:
    """Let rank 0 alone call what writes files and does nothing else; of the rest say so."""
    call = helper.call
    if context.goes_first(call):
        return ""
    if context.script.per_sample(call):
        context.leave(
            call,
            f"each rank writes what its samples need in {_at(helper)}: make it before the job",
        )
        return ""
    alone = harmless(helper.reached) and not _parts_states(context, helper)
    mode = _mode_after(context, helper) if alone else None
    if mode is not None and context.only_root(call):
        if mode:  # as it leaves the model on rank 0
            context.after(context.script.statement(call), mode)
        return f"rank 0 alone writes this ({_at(helper)})"
    if (path := _handed_to_open(helper)) is not None:
        context.around(path, "rankup.path0(")
        return f"rank 0 alone writes this file (rankup.path0, {_at(helper)})"
    return None


def _parts_states(context: Context, helper: Helper) -> bool:
    """True where rank 0 alone would go over a loader, which draws, and what is drawn next differs.

    The next pass over a sharded loader makes the ranks' random states alike again.
    """
    script, training = context.script, context.training
    loops = [up for up in script.above(helper.call) if isinstance(up, LoopNode)]
    passes = any(
        is_loader(script.flow, origin) > 0
        for file, function in helper.reached
        for loop in walk(*function.body)
        for source in taken_from(file, loop)
        for origin in script.flow.origins(file, source)
    )
    steps = [loop.node for loop in training.loops if loop.trains]
    return passes and any(
        (is_draw(script.name(call.func)) or call_name(call) in SPLITS)
        and not set(steps) & set(script.above(call))
        for loop in loops[-1:]
        for call in script.inside(loop, ast.Call)
    )


def _handed_to_open(helper: Helper) -> ast.expr | None:
    """The argument of a call that does nothing but name the file which is opened to be written."""
    file, function = helper.file, helper.function
    if len(helper.sites) != 1 or helper.sites[0].form != "path":
        return None
    path = helper.sites[0].path
    if isinstance(path, ast.Call) and call_name(path) == "Path" and len(path.args) == 1:
        path = path.args[0]
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if not isinstance(path, ast.Name) or path.id not in names or file is not helper.sites[0].file:
        return None
    for node in walk(*function.body):
        if isinstance(node, ast.Name) and node.id == path.id and node is not path:
            compared = file.names.parents[node]
            noted = isinstance(compared, ast.Assign) and not _read_again(file, compared)
            if not noted and not isinstance(compared, ast.Compare | ast.If | ast.IfExp):
                return None
    if file.names.function(path) is not function:
        return None
    bound = names[:1] in (["self"], ["cls"])
    return argument(helper.call, path.id, names.index(path.id) - bound)


def _read_again(file: File, assign: ast.Assign) -> bool:
    """True where a file reads an attribute that an assignment sets; of other targets always."""
    targets = assign.targets
    if not all(isinstance(one, ast.Attribute) for one in targets):
        return True
    set_here = {one.attr for one in targets if isinstance(one, ast.Attribute)}
    return any(
        one.attr in set_here and isinstance(one.ctx, ast.Load)
        for one in file.names.all(ast.Attribute)
    )


def _mode_after(context: Context, helper: Helper) -> str | None:
    """`net.train()` where a function ends with that; empty where it changes no mode.

    None where ranks that leave it out could not be as those that run it.
    """
    file, function = helper.file, helper.function
    changed: set[str] = set()
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    for where, one in helper.reached:
        given = [arg.arg for arg in parameters(one.args)]
        for node in walk(*one.body):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr in _MODES:
                if one is not function:
                    return None
                changed.add(file.code(node.func).rpartition(".")[0])
            elif (
                isinstance(node.func, ast.Name)
                and node.func.id in given
                and not any(gradients_off(where, up) for up in where.names.up(node))
            ):
                return None  # a forward with gradients on is the start of an exchange
    if not changed:
        return ""
    ends = file.code(function.body[-1])
    name, _, method = ends.rpartition(".")
    if changed != {name} or name not in names or method not in [f"{one}()" for one in _MODES]:
        return None
    model = argument(helper.call, name, names.index(name))
    written_as = context.script.dotted(model) if model is not None else ""
    return f"{written_as}.{method}" if written_as else None


def harmless(functions: Sequence[Reached]) -> bool:
    """True where ranks that leave these functions out stay as those that run them."""
    return all(keeps_state(file, one.body, made_in(one.body)) for file, one in functions)


def made_in(body: Sequence[ast.AST]) -> set[str]:
    """Names of objects that statements make themselves, and so may change."""
    found: set[str] = set()
    for node in walk(*body):
        match node:
            case ast.Assign(value=value, targets=targets):
                made = [(value, one) for one in targets]
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                made = [(value, target)]
            case _:
                continue
        for value, target in made:
            same = isinstance(value, ast.Call) and call_name(value) in RETURNS_SELF
            if not same and not isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
                found |= bound_in(walk(target))
    return found


def keeps_state(file: File, body: Sequence[ast.AST], own: set[str]) -> bool:
    """True where statements change nothing but their own names: no object, no random state.

    Args:
        own: names whose values are made in these statements.
    """
    for node in walk(*body):
        match node:
            case ast.Global() | ast.Nonlocal() | ast.Yield() | ast.YieldFrom():
                return False
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                if root_name(node) not in own:
                    return False
            case ast.Call():
                name, dotted = call_name(node), file.names.called(node)
                if name in _CHANGING | DRAWING_METHODS or (name in _COLLECTIVES and dotted):
                    return False
                if is_draw(dotted):
                    return False
                grows = isinstance(node.func, ast.Attribute) and name in _GROWING and not dotted
                if grows and root_name(node.func) not in own:
                    return False
    return True

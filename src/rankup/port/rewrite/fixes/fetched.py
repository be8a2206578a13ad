"""What is downloaded or made for all ranks: rank 0 goes first."""

from __future__ import annotations

import ast

from ....script.effects import callee, fetched, leads_to, written
from ....script.flow import Flow, call_name, given
from ....script.names import walk
from ....script.roles import LoopNode
from ....script.source import File
from ....script.torch_names import words as names_of
from ...rules.writing import changes_files
from ..context import Context

_FETCHED = "rank 0 fetches first, then the others (rankup.rank0_first)"
_MADE = "rank 0 makes this first, then the others look (rankup.rank0_first)"
_CONSTRUCTED = (
    "rank 0 constructs this data set, which writes files, before the others (rankup.rank0_first)"
)
_MAKERS = names_of(
    "subprocess.run subprocess.call subprocess.check_call subprocess.check_output os.system "
    "shutil.unpack_archive"
)
# Data sets of these libraries process their raw files when they are constructed.
_PROCESSING = names_of("InMemoryDataset DGLDataset")


def fetch(context: Context) -> None:
    """`rankup.rank0_first(…)` around downloads, and around what is made of raw files."""
    script = context.script
    _constructed(context)
    _prepared(context)
    for call in script.all(ast.Call):
        if not _fetches(context, call) or context.goes_first(call):
            continue
        above = list(script.above(call))
        if isinstance(script.scope(call), ast.Lambda):
            continue
        if script.per_sample(call):
            context.leave(
                call,
                "each rank fetches its own samples here, and nodes have no network: fetch all of "
                "them before the job",
            )
            continue
        asks = next(
            (one for one in above if isinstance(one, ast.If) and context.asks_files(one.test)), None
        )
        if asks is not None and not _in_else(context, call, asks):
            if _alike(context, asks) and script.first_on_line(script.span(asks)[0]):
                context.indented(asks, "with rankup.rank0_first():")
                _where_missing(context, asks)
                context.done(call, _FETCHED)
                continue
            context.leave(
                call, "all ranks may fetch this at once: put it in `with rankup.rank0_first():`"
            )
            continue
        _goes_first(context, call)
        context.done(call, _FETCHED)


def _goes_first(context: Context, call: ast.Call) -> None:
    """`rankup.rank0_first(f, x)` for `f(x)`."""
    script = context.script
    (start, end), whole = script.span(call.func), script.span(call)
    opening = script.text.index("(", end, whole[1])
    context.edits.insert(start, "rankup.rank0_first(")
    comma = "," if script.text[opening + 1] in "\r\n" else ", "
    context.edits.replace((opening, opening + 1), comma if given(call) else "")
    context.first.add(call)


def _where_missing(context: Context, asks: ast.If) -> None:
    found = {asks, *_led_to(context, asks)}
    context.first |= found
    context.missing |= found


def _led_to(context: Context, node: ast.AST) -> set[ast.AST]:
    """The script's own functions that only a node leads to."""
    flow, found = context.script.whole_flow, _reached(context, node)
    while True:
        others = {
            one
            for one in found
            for where, call in flow.callers.get(one, ())
            if not any(up is node or up in found for up in where.names.up(call))
        }
        if not others:
            return found
        found -= others


def _reached(context: Context, node: ast.AST) -> set[ast.AST]:
    """The script's own functions that a node leads to."""
    script, found = context.script, set[ast.AST]()
    for call in script.inside(node, ast.Call):
        first = callee(script.whole_flow, script.file, call)
        if first is not None:
            reached = leads_to(script.whole_flow, *first)
            found |= {one for file, one in reached if file is script.file}
    return found


def _constructed(context: Context) -> None:
    """Data sets whose constructor writes files, in this file or another one."""
    script = context.script
    flow = script.whole_flow
    for call in script.all(ast.Call):
        made = flow.definition(script.file, call.func)
        if made is None or not isinstance(made[1], ast.ClassDef) or context.goes_first(call):
            continue
        file, owner = made[0], made[1]
        bases = {base.rpartition(".")[2] for base in flow.bases(file, owner)}
        holds = flow.member(file, owner, "__getitem__") is not None
        if not holds and not any(base.endswith("Dataset") for base in bases):
            continue
        init = flow.member(file, owner, "__init__")
        reached = leads_to(flow, *init) if init is not None else []
        writes = any(
            written(flow, where, node) is not None or changes_files(where, node)
            for where, one in reached
            for node in walk(*one.body)
            if isinstance(node, ast.Call)
        )
        if not writes and not bases & _PROCESSING:
            continue
        inside = {one for where, one in reached if where is script.file}
        elsewhere = any(
            up.func is not call.func and not any(above in inside for above in where.names.up(up))
            for one in inside
            for where, up in flow.callers.get(one, ())
            if one is not (init and init[1])
        )
        if script.per_sample(call) or isinstance(script.scope(call), ast.Lambda) or elsewhere:
            context.leave(
                call,
                "every rank makes the same files as it constructs this data set: put it in "
                "`with rankup.rank0_first():`",
            )
            continue
        _goes_first(context, call)
        context.first |= inside
        context.done(call, _CONSTRUCTED)


def _fetches(context: Context, call: ast.Call) -> bool:
    """Whether a call fetches, but through a function of the script, which is changed itself."""
    script = context.script
    found = callee(script.whole_flow, script.file, call)
    if found is not None and (found[0] is script.file or call in context.training.elsewhere):
        return False
    if fetched(script.file, call) is not None or found is None:
        return fetched(script.file, call) is not None
    made = [
        (file, node)
        for file, function in leads_to(script.whole_flow, *found)
        for node in walk(*function.body)
        if isinstance(node, ast.Call) and file is not script.file
    ]
    trains = any(call_name(node) == "backward" for _, node in made)
    return not trains and any(fetched(file, node) is not None for file, node in made)


def _meets(context: Context, node: ast.AST) -> bool:
    """Whether ranks would meet in a function that is called elsewhere as well, and one waits.

    What a node leads to runs on rank 0 first, and then on the others: none may wait in it.
    """
    script = context.script
    reached = _reached(context, node)
    return any(
        _fetches(context, call) or changes_files(script.file, call)
        for function in reached - _led_to(context, node)
        for call in script.inside(function, ast.Call)
    )


def _in_else(context: Context, node: ast.AST, asks: ast.If) -> bool:
    """Whether a place within `asks` lies in an `else:`, its own or that of a statement in it."""
    script, below = context.script, node
    for up in script.above(node):
        other = getattr(up, "orelse", None)
        chained = isinstance(below, ast.If) and script.code(below).startswith("elif")
        if isinstance(other, list) and below in other and not chained:
            return True
        if up is asks:
            break
        below = up
    return False


def _alike(context: Context, node: ast.If) -> bool:
    """Whether rank 0 may do all of it first: it ends where it began, and trains nothing."""
    script = context.script
    leaving = (ast.Return, ast.Break, ast.Continue, ast.Yield)
    leaves = any(True for _ in script.inside(node, *leaving, deep=False))
    saves = any(script.name(one.func) == "torch.save" for one in script.inside(node, ast.Call))
    return not (leaves or saves or context.training.trains(node) or _meets(context, node))


def _prepared(context: Context) -> None:
    """`with rankup.rank0_first():` around `if not exists(data): make(data)`."""
    script = context.script
    for one in script.all(ast.If):
        maker = _maker(context, one)
        inside = any(isinstance(up, LoopNode) for up in script.above(one))
        if maker is None or inside or not context.asks_files(one.test):
            continue
        negated = any(isinstance(node, ast.Not) for node in _operators(one.test))
        if not negated or not _alike(context, one) or context.goes_first(one):
            continue
        if script.per_sample(one):
            continue
        if script.first_on_line(script.span(one)[0]):
            context.indented(one, "with rankup.rank0_first():")
            context.done(maker, _MADE)
            _where_missing(context, one)


def _operators(test: ast.expr) -> list[ast.unaryop]:
    return [node.op for node in walk(test) if isinstance(node, ast.UnaryOp)]


def _maker(context: Context, node: ast.AST) -> ast.Call | None:
    """The first call that makes files, also in a function of the repository."""
    script = context.script
    for call in script.inside(node, ast.Call):
        if _makes(script.whole_flow, script.file, call):
            return call
        found = callee(script.whole_flow, script.file, call)
        if found is not None and any(
            _makes(script.whole_flow, file, one)
            for file, function in leads_to(script.whole_flow, *found)
            for one in walk(*function.body)
            if isinstance(one, ast.Call)
        ):
            return call
    return None


def _makes(flow: Flow, file: File, call: ast.Call) -> bool:
    site = written(flow, file, call)
    if site is not None:
        return site.dotted != "torch.save"
    return file.names.called(call) in _MAKERS or call_name(call) == "extractall"

"""The beginning of a script: it joins the group, and one rank speaks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.effects import callee, leads_to
from ...script.flow import argument, call_name
from ...script.names import Function, children, walk
from ...script.roles import LoopNode
from ...script.source import File
from ...script.torch_names import DRAWING_METHODS, SEEDING, is_draw, words
from ..rules.facts import string
from ..rules.order import differing
from ..rules.writing import clock_names
from .context import Context
from .script import Script

# These draw initial values or orders from the states that all processes have.
_DRAWING = ("torch.nn.init.", "torchvision.models.")
_DRAWING_CALLS = DRAWING_METHODS | words(
    "random_split train_test_split sample "
    "Linear Embedding LSTM GRU RNN Bilinear MultiheadAttention Conv1d Conv2d Conv3d "
    "ConvTranspose1d ConvTranspose2d ConvTranspose3d"
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def join(context: Context) -> None:
    """`import rankup` behind the script's own imports, `rankup.setup()` before anything happens."""
    script, imported = context.script, "import rankup"
    lines = ["rankup.setup()", "rankup.quiet()"]
    context.fix = "RK101"
    context.done(None, "joins the process group and takes its own GPU (rankup.setup)")
    context.done(None, "rank 0 alone prints, draws bars and logs (rankup.quiet)")
    if len(context.port) == 1 and not starts(context):
        context.leave(
            None,
            "nothing in this file starts the training: the script that does has to import from the "
            "port of this one, and to call rankup.setup() before all else",
        )
    guard, drawing, last = main_guard(script), _drawing_before(context), last_import(script)
    if drawing is not None:
        if guard is not None:  # helper processes import the script anew, and are no ranks
            lines = ['if __name__ == "__main__":', *(f"    {line}" for line in lines)]
        context.before(script.row(drawing)[0], imported, "", *lines, "")
        return
    import_rankup(context)
    body = [one for one in script.tree.body if not _documents(one)]
    if guard is not None and not _works_at_import(context):
        inner = guard.body[0]
        if script.first_on_line(script.span(inner)[0]):
            context.before(inner, *lines)
        else:  # if __name__ == "__main__": main()
            context.edits.insert(script.span(inner)[0], "; ".join(lines) + "; ")
    elif last is not None:
        context.after(last, "", *lines)
    else:
        context.before(body[0], *lines, "")


def import_rankup(context: Context) -> None:
    """`import rankup` behind a file's own imports, where it is used."""
    script, last = context.script, last_import(context.script)
    body = [one for one in script.tree.body if not _documents(one)]
    if not context.uses_rankup and len(context.port) > 1 and context is not context.port[0]:
        return
    if last is not None:
        context.after(last, "import rankup")
    elif body:
        blank = [""] if context is not context.port[0] else []
        context.before(body[0], "import rankup", *blank)
    else:
        context.after(script.tree.body[-1], "import rankup")


def last_import(script: Script) -> ast.AST | None:
    """The last import of those at the top of the script."""
    last = None
    for statement in script.tree.body:
        if all(isinstance(one, ast.Import | ast.ImportFrom) for one in script.row(statement)):
            last = statement
        elif isinstance(statement, Function | ast.ClassDef | LoopNode) or (
            isinstance(statement, ast.If | ast.With)
            and not any(True for _ in script.inside(statement, ast.Import))
        ):
            break
        elif any(
            script.name(one).split(".")[0] == "torch" for one in script.inside(statement, ast.Name)
        ):
            break  # work has begun; an import that comes later is too late for the runtime
    return last


def main_guard(script: Script) -> ast.If | None:
    """`if __name__ == "__main__":`"""
    for statement in script.tree.body:
        if isinstance(statement, ast.If) and script.file.guards(statement):
            return statement
    return None


def starts(context: Context) -> bool:
    """True where running a file trains, or calls something of its own."""
    script = context.script
    own = {one.name for one in script.tree.body if isinstance(one, DEFINITIONS)}
    body = [one for one in script.tree.body if not isinstance(one, DEFINITIONS)]
    return (
        main_guard(script) is not None
        or context.training.trains(body)
        or any(one.id in own for one in script.inside(body, ast.Name))
    )


def _works_at_import(context: Context) -> bool:
    """True where something trains, or a loader or an optimizer is made, outside of the guard."""
    script, guard = context.script, main_guard(context.script)
    body = [
        one for one in script.tree.body if one is not guard and not isinstance(one, DEFINITIONS)
    ]
    if context.training.trains(body):
        return True
    roles: list[ast.AST] = [*context.training.loader_calls, *context.training.optimizers]
    roles += [loop.node for loop in context.training.loops]
    return any(
        script.scope(node) is script.tree and not any(one is guard for one in script.above(node))
        for node in roles
    )


def _documents(statement: ast.AST) -> bool:
    """True of a docstring."""
    return isinstance(statement, ast.Expr) and string(statement.value) is not None


def _drawing_before(context: Context) -> ast.stmt | None:
    """The first statement that draws or prints before the usual place of `rankup.setup()`.

    It may be an import of a file of the repository, which splits its data as it is imported, or
    makes a name by the clock, which rank 0 can share only with ranks that have joined.
    """
    script = context.script
    guard, last = main_guard(script), last_import(script)
    at_guard = guard is not None and not _works_at_import(context)
    for statement in script.tree.body:
        if statement is guard or not (at_guard or last is not None):
            return None
        if _draws(script, script.file, statement, {script.file}):
            return statement
        if not at_guard and statement is last:
            return None
    return None


def _draws(script: Script, file: File, statement: ast.stmt, seen: set[File]) -> bool:
    """True where running a statement at the top of a file draws, there or in what it imports.

    So does one that makes a name by the clock, or goes by an order of the process' own.
    """
    own = set(differing(script.flow, file))
    for node in run_at_import(statement):
        if node in own or (isinstance(node, ast.Assign) and node in set(clock_names(file))):
            return True
        if isinstance(node, ast.Import | ast.ImportFrom):
            for other in script.flow.imported(file, node):
                if other not in seen:
                    seen.add(other)
                    if any(_draws(script, other, one, seen) for one in other.tree.body):
                        return True
        elif isinstance(node, ast.Call):
            if _draws_itself(file, node):
                return True
            found = callee(script.flow, file, node)
            if found is not None and any(
                one in set(clock_names(where))
                if isinstance(one, ast.Assign)
                else one in set(differing(script.flow, where))
                or (isinstance(one, ast.Call) and _draws_itself(where, one))
                for where, function in leads_to(script.flow, *found)
                for one in walk(*function.body)
            ):
                return True
    return False


def run_at_import(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that run as its file is imported: no bodies of functions."""
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        main = isinstance(node, ast.If) and any(
            isinstance(one, ast.Name) and one.id in ("__name__", "TYPE_CHECKING")
            for one in walk(node.test)
        )
        if isinstance(node, Function | ast.Lambda) or main:
            continue
        yield node
        stack.extend(reversed(children(node)))


def _draws_itself(file: File, call: ast.Call) -> bool:
    dotted, name = file.names.called(call), call_name(call)
    if dotted == "builtins.print":
        return True
    own = argument(call, "generator") or argument(call, "random_state")
    if name in SEEDING or own is not None:
        return False
    return is_draw(dotted) or dotted.startswith(_DRAWING) or name in _DRAWING_CALLS

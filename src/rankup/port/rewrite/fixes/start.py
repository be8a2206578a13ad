"""The beginning of a script: it joins the group, and one rank speaks."""

from __future__ import annotations

import ast

from ....script.names import RUNTIME, Function
from ....script.roles import LoopNode
from ...rules.facts import string
from ..context import Context
from ..script import Script

_DRAWS = ("torch.rand", "torch.randn", "torch.randint", "torch.normal")


def import_rankup(context: Context, vendor: bool) -> None:
    """`import rankup` behind the script's own imports at its top."""
    line = f"import {RUNTIME} as rankup" if vendor else "import rankup"
    script = context.script
    last = last_import(script)
    if last is not None:
        context.after(last, line)
        return
    body = [one for one in script.tree.body if not _documents(one)]
    context.before(body[0], line) if body else context.after(script.tree.body[-1], line)


def join(context: Context) -> None:
    """`rankup.setup()` and `rankup.quiet()` before anything happens."""
    lines = []
    if "setup" not in context.options.without:
        lines.append("rankup.setup()")
        context.fix = "setup"
        context.done(None, "joins the process group and takes its own GPU (rankup.setup)")
    if "quiet" not in context.options.without:
        lines.append("rankup.quiet()")
        context.fix = "quiet"
        context.done(None, "rank 0 alone prints, draws bars and logs (rankup.quiet)")
    if not lines:
        return
    guard = main_guard(context.script)
    if guard is not None and not _works_at_import(context):
        inner = guard.body[0]
        if context.script.first_on_line(context.script.span(inner)[0]):
            context.before(inner, *lines)
        else:  # if __name__ == "__main__": main()
            context.edits.insert(context.script.span(inner)[0], "; ".join(lines) + "; ")
        return
    last = last_import(context.script)
    if last is not None:
        context.after(last, "", *lines)
    else:
        body = [one for one in context.script.tree.body if not _documents(one)]
        context.before(body[0], *lines, "")


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
        if isinstance(statement, ast.If) and "__name__" in script.code(statement.test):
            return statement
    return None


def _works_at_import(context: Context) -> bool:
    """Whether a model, a loader or a loop stands outside functions and the guard."""
    script, guard = context.script, main_guard(context.script)
    roles: list[ast.AST] = [*context.training.loader_calls, *context.training.optimizers]
    roles += [loop.node for loop in context.training.loops]
    return any(
        script.scope(node) is script.tree and not any(one is guard for one in script.above(node))
        for node in roles
    )


def _documents(statement: ast.AST) -> bool:
    """A docstring, or an import from the future."""
    return isinstance(statement, ast.Expr) and string(statement.value) is not None

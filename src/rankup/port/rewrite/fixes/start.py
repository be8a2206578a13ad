"""The beginning of a script: it joins the group, and one rank speaks."""

from __future__ import annotations

import ast
import re

from ....script.flow import argument, given
from ....script.names import RUNTIME, Function
from ....script.roles import LoopNode
from ....script.source import candidates
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
    if "same_random" not in context.options.without and draws_unseeded(context):
        lines.append("rankup.same_random()")
        context.fix = "same_random"
        context.done(None, "all ranks start from rank 0's random state (rankup.same_random)")
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


def draws_unseeded(context: Context) -> bool:
    """Whether something that ranks must agree on is drawn, and no seed is set for all of it."""
    script = context.script
    # Of a generator that the script has made with a seed all ranks draw the same.
    own = ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState")
    names = {
        name
        for call in script.all(ast.Call)
        if (name := script.name(call.func)) not in own or not given(call)
    }
    last = {name.split(".")[-1] for name in names}
    torch_seed = {"torch.manual_seed", "torch.random.manual_seed"} & names
    python = any(n.startswith("random.") and n != "random.seed" for n in names)
    array = any(n.startswith("numpy.random.") and n != "numpy.random.seed" for n in names)
    drawn = {"random_split", "randperm", "randint", "train_test_split"} & last
    everything = {"seed_everything", "set_seed", "fix_seed"} & last
    if everything:
        return False
    return (
        bool(drawn - {"train_test_split"} and not torch_seed)
        or _draws_data(context)
        or ("numpy.random.seed" not in names and _redraws(context))
        or (python and "random.seed" not in names)
        or ((array or "train_test_split" in last) and "numpy.random.seed" not in names)
    )


def _draws_data(context: Context) -> bool:
    """Whether a loader's data set is drawn with torch, in flat code above any seed."""
    script, training = context.script, context.training
    seeds = [
        call
        for call in script.all(ast.Call)
        if script.name(call.func) in ("torch.manual_seed", "torch.random.manual_seed")
    ]
    flat = [script.line(call) for call in seeds if script.scope(call) is script.tree]
    if len(flat) < len(seeds):
        return False  # in a function: when it runs cannot be seen
    seen: set[ast.AST] = set()
    waiting: list[ast.AST] = [
        arg for call in training.loader_calls if (arg := argument(call, "dataset", 0)) is not None
    ]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for call in script.inside(node, ast.Call):
            drawn = script.name(call.func) in _DRAWS and argument(call, "generator") is None
            if drawn and not any(line < script.line(call) for line in flat):
                return True
        for name in script.inside(node, ast.Name):
            waiting += [value for _, value in training.assigned(name.id, script.scope(name))]
    return False


def _redraws(context: Context) -> bool:
    """Whether a data set is told to draw anew what it holds: `loader.dataset.sample()`."""
    script = context.script
    files = {
        path
        for name in script.file.names.imported
        if script.folder is not None
        for path in candidates((script.folder,), script.folder, name)
    }
    for call in script.all(ast.Call):
        written = script.dotted(call.func).split(".")
        if len(written) < 3 or written[-2] != "dataset":
            continue
        name = written[-1]
        texts = [script.code(one) for one in script.functions if one.name == name]
        for path in sorted(files):
            texts += [script.other(path).code(one) for one in script.functions_in(path, name)]
        if any(re.search(r"\b(np|numpy)\.random\.", text) for text in texts):
            return True
    return False


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

"""The beginning of a script: it joins the group, and one rank speaks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import UserError
from ...script.effects import callee, leads_to
from ...script.flow import argument, call_name, is_none
from ...script.names import RUNTIME, Function, children, walk
from ...script.roles import LoopNode
from ...script.source import File, imports_in
from ...script.torch_names import DRAWING_METHODS, SEEDING, is_draw, words
from ..rules.facts import string
from .context import Context
from .script import Script

# These draw initial values or orders from the states that all processes have.
_DRAWING = ("torch.nn.init.", "torchvision.models.")
_DRAWING_CALLS = DRAWING_METHODS | words(
    "random_split train_test_split sample "
    "Linear Embedding LSTM GRU RNN Bilinear MultiheadAttention Conv1d Conv2d Conv3d "
    "ConvTranspose1d ConvTranspose2d ConvTranspose3d"
)
_KEEPING = words("append add insert update setdefault setattr __setitem__ register")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def join(context: Context) -> None:
    """`import rankup` behind the script's own imports, `rankup.setup()` before anything happens."""
    script, imported = context.script, _import(context)
    lines = ["rankup.setup()", "rankup.quiet()"]
    context.fix = "RK101"
    context.done(None, "joins the process group and takes its own GPU (rankup.setup)")
    context.done(None, "rank 0 alone prints, draws bars and logs (rankup.quiet)")
    if len(context.port) == 1 and not _starts(context):
        context.leave(
            None,
            "nothing in this file starts the training: the script that does has to import from the "
            "port of this one, and to call rankup.setup() before all else",
        )
    guard, drawing, last = main_guard(script), _drawing_before(context), last_import(script)
    if drawing is not None:
        if guard is not None:  # helper processes import the script anew, and are no ranks
            lines = ['if __name__ == "__main__":', *(f"    {line}" for line in lines)]
        context.before(drawing, imported, "")
        context.before(drawing, *lines, "")
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
        context.after(last, _import(context))
    elif body:
        blank = [""] if context is not context.port[0] else []
        context.before(body[0], _import(context), *blank)
    else:
        context.after(script.tree.body[-1], _import(context))


def _import(context: Context) -> str:
    return f"import {RUNTIME} as rankup" if context.options.vendor else "import rankup"


def beside(path: Path) -> Path:
    """The place of a port that does not take that of its original."""
    return path.with_name(f"{path.stem}_dist{path.suffix}")


def import_ports(context: Context) -> None:
    """Let a file import the ports of the modules that train, in place of their originals."""
    changed = {one.script.file for one in context.port[1:]}
    for plain in context.script.all(ast.Import) if changed else ():
        for alias in plain.names:
            _import_module(context, alias, changed)
    for node in context.script.all(ast.ImportFrom) if changed else ():
        _import_from(context, node, changed)


def _ported_name(dotted: str, file: File) -> str:
    """`trainer_dist` for `trainer`; for a package the port of its `__init__`."""
    stem = beside(file.path).stem
    if file.path.stem == "__init__":
        return f"{dotted}{stem}" if dotted.endswith(".") else f"{dotted}.{stem}"
    return f"{dotted}_dist"


def _import_module(context: Context, alias: ast.alias, changed: set[File]) -> None:
    """`import trainer_dist as trainer`; `import net.trainer_dist`, and where that is used."""
    script, name = context.script, alias.name
    file = script.flow.module(script.file, name)
    parts = name.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if script.flow.module(script.file, package) in changed:
            raise UserError(
                f"{script.file.path}:{script.line(alias)}: `import {name}` brings the package "
                f"{package}, which imports what trains: write `from {name} import …`, or port "
                "with --in-place"
            )
    if file not in changed:
        return
    assert file is not None
    new = _ported_name(name, file)
    if alias.asname is not None or "." not in name:
        context.replace(alias, f"{new} as {alias.asname or name}")
        return
    context.replace(alias, new)
    for node in script.all(ast.Attribute):
        if script.dotted(node) == name and _of_import(script, node, name):
            context.replace(node, new)


def _of_import(script: Script, node: ast.Attribute, name: str) -> bool:
    """True where `net.engine` is that of `import net.engine`, and of no other `net`."""
    names, first = script.file.names, name.split(".")[0]
    _, bindings = names.bindings(first, names.scope(node))
    imported = [
        one.kind == "import" and one.dotted == first for one in bindings if not is_none(one.node)
    ]
    if any(imported) and not all(imported):
        raise UserError(
            f"{script.file.path}:{script.line(node)}: `{first}` is the package of `import {name}` "
            "and something else as well: give one of them another name"
        )
    return all(imported) and bool(imported)


def _import_from(context: Context, node: ast.ImportFrom, changed: set[File]) -> None:
    """`from trainer_dist import Trainer`; `from net import trainer_dist as trainer`."""
    script, flow = context.script, context.script.flow
    module = "." * node.level + (node.module or "")
    file = flow.module(script.file, module)
    inner = module if module.endswith(".") else f"{module}."
    ported = _ported_name(module, file) if file in changed and file is not None else module
    names: dict[str, list[str]] = {}
    for alias in node.names:
        part = flow.module(script.file, f"{inner}{alias.name}")
        bound = False
        if file is not None and file is not script.file:  # a package asks for its own modules
            bound = alias.name in file.names.members(file.tree)
        written = script.code(alias)
        if part is None or bound:
            names.setdefault(ported, []).append(written)
        elif part in changed and part.path.stem == "__init__":
            written = f"{beside(part.path).stem} as {alias.asname or alias.name}"
            names.setdefault(f"{inner}{alias.name}", []).append(written)
        elif part in changed:
            written = f"{alias.name}_dist as {alias.asname or alias.name}"
            names.setdefault(module, []).append(written)
        else:
            names.setdefault(module, []).append(written)
    start, end = script.span(node)
    head = re.match(r"from\b\s*(.*?)\s*\bimport\b", script.text[start:end], re.DOTALL)
    if list(names) == [ported] != [module] and head is not None:
        context.edits.replace((start + head.start(1), start + head.end(1)), ported)
        return
    lines = [f"from {where} import {', '.join(several)}" for where, several in names.items()]
    if list(names) != [module] or "_dist as " in lines[0]:
        alone = script.row(node) == [node]
        indent = script.text[:start].rpartition("\n")[2]
        context.replace(node, ("\n" + indent if alone else "; ").join(lines))


def refuse_registered_twice(port: list[Context]) -> None:
    """Raise UserError where a decorator registers what a port and its original both define.

    The original of a package runs before its port, and so does all that it imports.
    """
    flow, changed = port[0].script.flow, {one.script.file for one in port[1:]}
    originals = {
        file
        for one in port
        for node in imports_in(one.script.file)
        for file in flow.imported(one.script.file, node)
        if file not in changed or file.path.stem == "__init__"
    }
    waiting = list(originals)
    while waiting:
        file = waiting.pop()
        for node in (one for statement in file.tree.body for one in _run_at_import(statement)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                more = set(flow.imported(file, node)) - originals
                originals |= more
                waiting += more
    for context in port[1:]:
        script = context.script
        if script.file not in originals:
            continue
        for definition in script.tree.body:
            if not isinstance(definition, _DEFINITIONS):
                continue
            for decorator in definition.decorator_list:
                if _registers(script, decorator, changed):
                    raise UserError(
                        f"{script.file.path}:{script.line(decorator)}: "
                        f"`@{script.code(decorator)}` would register `{definition.name}` twice, "
                        "since the original of this module is imported beside its port: port with "
                        "--in-place"
                    )


def _registers(script: Script, decorator: ast.expr, changed: set[File]) -> bool:
    """True of a decorator of the repository that may keep what it is given.

    One in a module that has a port is there twice itself.
    """
    file, flow = script.file, script.flow
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    found = flow.definition(file, func)
    if found is not None:
        return found[0] not in changed and any(_keeps(one) for one in walk(found[1]))
    place = flow.find(flow.absolute(file, file.names.dotted(func)))  # REGISTRY.register
    if place is None or not place[1] or place[0] in changed:
        return False
    bound = place[0].names.members(place[0].tree).get(place[1][0], ())
    return any(one.kind == "value" for one in bound)


def _keeps(node: ast.AST) -> bool:
    """True of `REGISTRY[name] = one`, of `registered.append(one)` and the like."""
    if isinstance(node, ast.Call):
        return call_name(node) in _KEEPING
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def pickled_classes(port: list[Context]) -> None:
    """Say where a whole module is saved whose class has a port: the file names that one."""
    understood = port[0].script.understood
    changed = {one.script.file for one in port[1:]}
    for site in understood.saves if changed else ():
        saved = argument(site.node, "obj", 0)
        if site.dotted != "torch.save" or saved is None:
            continue
        for one in saved.values if isinstance(saved, ast.Dict) else (saved,):
            made = understood.flow.class_of(site.file, one)
            if made is None or made[0] not in changed:
                continue
            module = beside(made[0].path).stem
            text = (
                f"{site.file.code(one)} is saved whole: the file names {module}.{made[1].name}, "
                "and loads only beside the ports: port with --in-place, or save the state_dict()"
            )
            there = [context for context in port if context.script.file is site.file]
            if there:
                there[0].leave(site.node, text)
            else:
                port[0].leave(None, f"{site.file.short_place(site.node)}: {text}")


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


def _starts(context: Context) -> bool:
    """True where running a file trains, or calls something of its own."""
    script = context.script
    own = {one.name for one in script.tree.body if isinstance(one, _DEFINITIONS)}
    body = [one for one in script.tree.body if not isinstance(one, _DEFINITIONS)]
    return (
        main_guard(script) is not None
        or context.training.trains(body)
        or any(one.id in own for one in script.inside(body, ast.Name))
    )


def _works_at_import(context: Context) -> bool:
    """True where a model, a loader or a loop stands outside functions and the guard."""
    script, guard = context.script, main_guard(context.script)
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

    It may be an import of a file of the repository, which splits its data as it is imported.
    """
    script = context.script
    guard, last = main_guard(script), last_import(script)
    at_guard = guard is not None and not _works_at_import(context)
    for statement in script.tree.body:
        if statement is guard or not (at_guard or last is not None):
            return None
        if _draws(script, script.file, statement, {script.file}) or _prints(script, statement):
            return statement
        if not at_guard and statement is last:
            return None
    return None


def _prints(script: Script, statement: ast.stmt) -> bool:
    """True where running a statement at the top of the script prints, as each rank would."""
    return any(
        isinstance(node, ast.Call) and script.name(node.func) in ("print", "builtins.print")
        for node in _run_at_import(statement)
    )


def _draws(script: Script, file: File, statement: ast.stmt, seen: set[File]) -> bool:
    """True where running a statement at the top of a file draws, there or in what it imports."""
    for node in _run_at_import(statement):
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
                _draws_itself(where, call)
                for where, function in leads_to(script.flow, *found)
                for call in walk(*function.body)
                if isinstance(call, ast.Call)
            ):
                return True
    return False


def _run_at_import(statement: ast.stmt) -> Iterator[ast.AST]:
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
    own = argument(call, "generator") or argument(call, "random_state")
    if name in SEEDING or own is not None:
        return False
    return is_draw(dotted) or dotted.startswith(_DRAWING) or name in _DRAWING_CALLS

"""The imports of a port's files: of the ports of each other, in place of their originals."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ...base.errors import UserError
from ...script.flow import argument, call_name, is_none
from ...script.names import walk
from ...script.source import File, imports_in
from ...script.torch_names import words
from .context import Context, NotPortable
from .script import Script
from .start import DEFINITIONS, main_guard, run_at_import, starts

_KEEPING = words("append add insert update setdefault setattr __setitem__ register")


def beside(path: Path) -> Path:
    """The place of a port that does not take that of its original."""
    return path.with_name(f"{path.stem}_dist{path.suffix}")


def import_ports(context: Context) -> None:
    """Let a file import the ports of the script and its modules, in place of their originals.

    Raises:
        NotPortable: an import brings both, or its name is that of something else, too.
        UserError: a module imports from the script, which would begin anew with that.
    """
    script = context.port[0].script
    others = [one for one in context.port if one is not context]
    if context is not context.port[0] and starts(context.port[0]) and main_guard(script) is None:
        for node in script.understood.imports_of(context.script.file, script.file):
            raise UserError(
                f"{context.script.file.path}:{context.script.line(node)}: not ported: this imports "
                f"from {script.file.path.name}, which runs anew with that: it has no "
                '`if __name__ == "__main__":` around what it does. Move what is imported here into '
                "a module of its own, or put the guard there"
            )
    changed = {one.script.file for one in others}
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
        brought = script.flow.module(script.file, package)
        if brought in changed:
            assert brought is not None
            raise NotPortable(
                f"{script.file.path}:{script.line(alias)}: `import {name}` brings the package "
                f"{package}, which imports what is ported: write `from {name} import …`, or port "
                "with --in-place",
                brought,
                script.file,
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
        if script.dotted(node) == name and _of_import(script, node, name, file):
            context.replace(node, new)


def _of_import(script: Script, node: ast.Attribute, name: str, file: File) -> bool:
    """True where `net.engine` is that of `import net.engine`, and of no other `net`."""
    names, first = script.file.names, name.split(".")[0]
    _, bindings = names.bindings(first, names.scope(node))
    imported = [
        one.kind == "import" and one.dotted == first for one in bindings if not is_none(one.node)
    ]
    if any(imported) and not all(imported):
        raise NotPortable(
            f"{script.file.path}:{script.line(node)}: `{first}` is the package of `import {name}` "
            "and something else as well: give one of them another name, or port with "
            "--in-place",
            file,
            script.file,
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
    """Raise NotPortable where a decorator registers what a port and its original both define.

    The original of a package runs before its port, and so does all that it imports.
    """
    flow, changed = port[0].script.flow, {one.script.file for one in port}
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
        for node in (one for statement in file.tree.body for one in run_at_import(statement)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                more = set(flow.imported(file, node)) - originals
                originals |= more
                waiting += more
    for context in port[1:]:
        script = context.script
        if script.file not in originals:
            continue
        for definition in script.tree.body:
            if not isinstance(definition, DEFINITIONS):
                continue
            for decorator in definition.decorator_list:
                if _registers(script, decorator, changed):
                    raise NotPortable(
                        f"{script.file.path}:{script.line(decorator)}: "
                        f"`@{script.code(decorator)}` would register `{definition.name}` twice, "
                        "since the original of this module is imported beside its port: port with "
                        "--in-place",
                        script.file,
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

"""From a script to its roles: loops first, then what goes through them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .effects import find_sites
from .flow import Flow, call_name
from .loops import find_loops, is_backward
from .models import find_models, find_optimizers, find_schedulers
from .names import Function, children
from .roles import Script
from .source import File, imports_in, local_modules
from .torch_names import FRAMEWORKS, RUNTIMES, last, root


def understand(file: File, known: dict[str, File] | None = None) -> Script:
    """Models, loaders, loops and files of a script and of the local modules that it imports.

    A source that cannot be parsed, or is about something else with all of its modules, has no roles
    at all.

    Args:
        known: files that were read before, by their real path.
    """
    if file.error is not None:
        return Script(file, (file,), Flow([file]))
    flow = Flow([file, *local_modules(file, known)])
    if not any(one.concerns_training for one in flow.files):
        return Script(file, flow.files, flow)
    optimizers = find_optimizers(flow)
    models = find_models(flow, optimizers)
    train, evaluation, train_loaders, eval_loaders = find_loops(flow, models)
    return Script(
        file,
        flow.files,
        flow,
        frameworks(flow),
        runtimes(flow),
        models,
        optimizers,
        find_schedulers(flow),
        train_loaders,
        eval_loaders,
        train,
        evaluation,
        *find_sites(flow),
    )


def frameworks(flow: Flow) -> frozenset[str]:
    """Those that do the training: what is imported and used, not what is only imported."""
    found: set[str] = set()
    for file in flow.files:
        names = file.names
        roots = {root(name) for name in names.imported if not name.startswith(".")}
        called = {names.called(call) for call in names.all(ast.Call)}
        methods = {one for call in names.all(ast.Call) if (one := call_name(call)).islower()}
        parts = {".".join(one.split(".")[:2]) for one in (*called, *names.imported)}
        for name, (packages, words) in FRAMEWORKS.items():
            made = {last(one) for one in called if root(one) in packages}
            if roots & packages and words & (made | methods | parts):
                found.add(name)
    return frozenset(found)


def runtimes(flow: Flow) -> frozenset[str]:
    """The libraries that join the ranks: `torch`, `rankup`, `course`, `horovod`, `deepspeed`, …"""
    return frozenset(
        kind
        for file in flow.files
        for call in file.names.all(ast.Call)
        for kind, called in RUNTIMES.items()
        if called.fullmatch(file.names.called(call) or call_name(call))
    )


def files_to_port(script: Script) -> tuple[File, ...]:
    """The script, the modules that train for it and some others, and those that import these."""
    others = script.files[1:]
    found = set(script.also)
    for file in others:
        backwards = [call for call in file.names.all(ast.Call) if is_backward(call)]
        if any(script.comes_to(file, call) for call in backwards):
            found.add(file)
        if file.path.stem != "__init__" and imports_of(script, file, script.file):
            found.add(file)  # what it takes from the script has to come from the port
    if not found:
        return (script.file,)
    imports = {file: set(script.flow.modules_named(file)) for file in script.files}
    while more := {one for one in others if imports[one] & found} - found:
        found |= more
    named = {script.file}  # a package that only runs on the way to its module stays as it is
    while more := {other for one in named for other in imports[one]} - named:
        named |= more
    return (script.file, *(one for one in others if one in found & named))


def imports_of(script: Script, file: File, module: File) -> list[ast.stmt]:
    """The imports of a file that name a module, where the script comes to them and they run."""
    return [
        node
        for node in imports_in(file)
        if module in script.flow.modules_named_by(file, node)
        and script.comes_to(file, node)
        and not any(
            isinstance(up, ast.If) and "TYPE_CHECKING" in file.code(up.test)
            for up in file.names.up(node)
        )
    ]


def find_reached(flow: Flow) -> set[ast.AST]:
    """The functions, classes and methods that a script comes to."""
    found: set[ast.AST] = set()
    waiting: list[tuple[File, ast.AST]] = [(file, file.tree) for file in flow.files]
    while waiting:
        file, node = waiting.pop()
        for one in _run_with(file, node, file is flow.files[0]):
            named = isinstance(one, ast.Name) or (
                isinstance(one, ast.Attribute) and file.names.dotted(one)
            )
            definition = flow.definition(file, one) if named else None
            if definition is None or definition[1] in found:
                continue
            where, body = definition
            found.add(body)
            if isinstance(body, ast.ClassDef):  # an instance may be asked for all of it
                for at, owner in flow.family(where, body):
                    found |= set(owner.body)
                    waiting += [(at, method) for method in owner.body]
            else:
                waiting.append((where, body))
    return found


def _run_with(file: File, node: ast.AST, script: bool) -> Iterator[ast.AST]:
    """The nodes that run with a module or a function, without the bodies of functions in it.

    Of a module that is imported not what it does as a script.
    """
    stack = list(children(node))
    while stack:
        one = stack.pop()
        if isinstance(one, Function | ast.ClassDef):
            stack += one.decorator_list
            stack += one.bases if isinstance(one, ast.ClassDef) else []
            continue
        if not script and file.guards(one):
            continue
        yield one
        stack += children(one)

"""What functions in other files of the folder write, which stay as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....script.flow import argument
from ....script.names import Function, parameters, walk
from ....script.source import File
from ..context import Context

_CHANGING = {"step", "backward", "load_state_dict", "requires_grad_", "update"}
_MODES = ("train", "eval")


def written_elsewhere(context: Context, writers: set[str], methods: set[str]) -> None:
    """Rank 0 alone calls what writes files and does nothing else; of the rest there is a remark.

    Args:
        writers: full names of functions that write a file.
        methods: names of methods that do.
    """
    for call, file, function, place in _found(context, writers, methods):
        mode = _mode_after(context, call, file, function) if _only_writes(function) else None
        if mode is not None and context.only_root(call):
            if mode:  # as it leaves the model on rank 0
                context.after(context.script.statement(call), mode)
            context.done(call, f"rank 0 alone writes this ({_at(file, place)})")
        else:
            context.leave(
                call,
                f"every rank writes the same file in {_at(file, place)}, which stays as "
                "it is: let rank 0 alone write there, `if rankup.is_root_process():`",
                comment=False,
            )


def saved_elsewhere(context: Context) -> bool:
    """Whether the script calls a function in another file that saves with torch."""
    return any(True for _ in _found(context, {"torch.save"}, set()))


def _found(
    context: Context, writers: set[str], methods: set[str]
) -> Iterator[tuple[ast.Call, File, Function, ast.Call]]:
    """Calls of functions in other files that write, with the function and the first place."""
    script = context.script
    for call in script.all(ast.Call):
        path = script.beside(call)
        if path is None or call in context.training.elsewhere:
            continue
        file = script.other(path)
        if file.error is not None:
            continue
        for function in script.functions_in(path, script.name(call.func).split(".")[-1])[:1]:
            place = _place(file, function, writers, methods)
            if place is not None:
                yield call, file, function, place


def _at(file: File, node: ast.AST) -> str:
    return f"{file.path.name}:{file.line(node)[0]}"


def _place(file: File, function: Function, writers: set[str], methods: set[str]) -> ast.Call | None:
    for node in walk(*function.body):
        if isinstance(node, ast.Call) and (
            file.names.called(node) in writers or _method(node) in methods
        ):
            return node
    return None


def _mode_after(context: Context, call: ast.Call, file: File, function: Function) -> str | None:
    """`net.train()` where a function ends with that; empty where it changes no mode.

    None where ranks that leave it out could not be as those that run it.
    """
    changed: set[str] = set()
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    for node in walk(*function.body):
        if not isinstance(node, ast.Call):
            continue
        if _method(node) in _MODES:
            changed.add(file.code(node.func).rpartition(".")[0])
        elif isinstance(node.func, ast.Name) and node.func.id in names:
            around = [up for up in file.names.up(node) if isinstance(up, ast.With)]
            heads = [file.code(item.context_expr) for one in around for item in one.items]
            if not any("no_grad" in head or "inference_mode" in head for head in heads):
                return None  # a forward with gradients on is the start of an exchange
    if not changed:
        return ""
    ends = file.code(function.body[-1])
    name, _, method = ends.rpartition(".")
    if changed != {name} or name not in names or method not in [f"{one}()" for one in _MODES]:
        return None
    model = argument(call, name, names.index(name))
    written = context.script.dotted(model) if model is not None else ""
    return f"{written}.{method}" if written else None


def _only_writes(function: Function) -> bool:
    """Whether ranks that leave it out stay as those that run it."""
    names = {one.arg for one in parameters(function.args)}
    for node in walk(*function.body):
        if isinstance(node, ast.Global | ast.Nonlocal):
            return False
        if isinstance(node, ast.Call) and _method(node) in _CHANGING:
            return False
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if not isinstance(target, ast.Name | ast.Tuple) and _root(target) in names:
                return False
    return True


def _method(call: ast.Call) -> str:
    """`save` of `picture.save(path)`; empty for a plain function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    """`x` of `x.y[0]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""

"""What functions in other files of the folder write, which stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Source
from ...tree import walk
from ..context import Context
from ..expressions import attribute, root_name

_CHANGING = {"step", "backward", "load_state_dict", "requires_grad_", "update"}
_MODES = ("train", "eval")


def written_elsewhere(context: Context, writers: set[str], methods: set[str]) -> None:
    """Rank 0 alone calls what writes files and does nothing else; of the rest there is a remark.

    Args:
        writers: full names of functions that write a file.
        methods: names of methods that do.
    """
    if context.split is not None:
        return  # the parts of a split model are put together by all ranks
    for call, source, function, place in _found(context, writers, methods):
        mode = _mode_after(context, call, source, function) if _only_writes(function) else None
        if mode is not None and context.only_root(call):
            if mode:  # as it leaves the model on rank 0
                context.after(context.script.statement(call), mode)
            context.done(call, f"rank 0 alone writes this ({_at(source, place)})")
        else:
            context.leave(
                call,
                f"every rank writes the same file in {_at(source, place)}, which stays as "
                "it is: let rank 0 alone write there, `if rankup.is_root_process():`",
                comment=False,
            )


def saved_elsewhere(context: Context) -> bool:
    """Whether the script calls a function in another file that saves with torch."""
    return any(True for _ in _found(context, {"torch.save"}, set()))


def _found(
    context: Context, writers: set[str], methods: set[str]
) -> Iterator[tuple[cst.Call, Source, cst.FunctionDef, cst.CSTNode]]:
    """Calls of functions in other files that write, with the function and the first place."""
    script = context.script
    for call in script.all(cst.Call):
        path = script.beside(call)
        if path is None or call in context.training.elsewhere:
            continue
        source = script.source(path)
        if source.trouble is not None:
            continue
        for function in script.functions_in(path, script.name(call.func).split(".")[-1])[:1]:
            place = _place(source, function, writers, methods)
            if place is not None:
                yield call, source, function, place


def _at(source: Source, node: cst.CSTNode) -> str:
    return f"{source.path.name}:{source.line_of(node)[0]}"


def _place(
    source: Source, function: cst.FunctionDef, writers: set[str], methods: set[str]
) -> cst.CSTNode | None:
    for node in walk(function.body):
        if isinstance(node, cst.Call) and (
            source.index.called(node) in writers or attribute(node) in methods
        ):
            return node
    return None


def _mode_after(
    context: Context, call: cst.Call, source: Source, function: cst.FunctionDef
) -> str | None:
    """`net.train()` where a function ends with that; empty where it changes no mode.

    None where ranks that leave it out could not be as those that run it.
    """
    changed: set[str] = set()
    given = {one.name.value for one in function.params.params}
    for node in walk(function.body):
        if not isinstance(node, cst.Call):
            continue
        if attribute(node) in _MODES:
            changed.add(source.code(node.func).rpartition(".")[0])
        elif isinstance(node.func, cst.Name) and node.func.value in given:
            around = [up for up in source.index.up(node) if isinstance(up, cst.With)]
            heads = [source.code(item.item) for one in around for item in one.items]
            if not any("no_grad" in head or "inference_mode" in head for head in heads):
                return None  # a forward with gradients on is the start of an exchange
    if not changed:
        return ""
    ends = source.code(function.body.body[-1]).strip()
    name, _, method = ends.rpartition(".")
    if changed != {name} or name not in given or method not in [f"{one}()" for one in _MODES]:
        return None
    model = context.script.given(function, name, call)
    written = context.script.dotted(model) if model is not None else ""
    return f"{written}.{method}" if written else None


def _only_writes(function: cst.FunctionDef) -> bool:
    """Whether ranks that leave it out stay as those that run it."""
    for node in walk(function.body):
        if isinstance(node, cst.Global | cst.Nonlocal):
            return False
        if isinstance(node, cst.Call) and attribute(node) in _CHANGING:
            return False
        targets: list[cst.BaseExpression] = []
        if isinstance(node, cst.Assign):
            targets = [one.target for one in node.targets]
        elif isinstance(node, cst.AugAssign | cst.AnnAssign):
            targets = [node.target]
        given = {one.name.value for one in function.params.params}
        for target in targets:
            if not isinstance(target, cst.Name | cst.Tuple) and root_name(target) in given:
                return False
    return True

"""Values that grow over this rank's batches, and are put together over the ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from ...script.flow import call_name, returned
from ...script.names import Function, made_of, mentioned, walk
from ...script.roles import Count, Loop, Script
from ...script.source import File
from ...script.torch_names import OUR_COLLECTIVES, words

_REDUCES = re.compile(r"all_?reduce|all_?gather|^gather|^reduce|synchroni[sz]e|_reduce$|^sync_")
_OURS = OUR_COLLECTIVES - words("barrier rank0_first save_full_model save_sharded_model")
_DEPTH = 3


def is_reduction(file: File, call: ast.Call) -> bool:
    """A collective that puts values together, or a helper of that name."""
    dotted = file.names.called(call)
    if dotted.startswith("rankup."):
        return dotted.removeprefix("rankup.") in _OURS
    if dotted.startswith(("functools", "builtins", "torch.cuda")) or dotted == "torch.gather":
        return False
    return _REDUCES.search(call_name(call)) is not None


def shares(file: File, call: ast.Call) -> bool:
    """A collective behind which all ranks have the same value: a reduction, or a broadcast."""
    return is_reduction(file, call) or call_name(call) in ("broadcast", "broadcast_object_list")


def reduced(file: File, script: Script, loop: Loop, count: Count) -> bool:
    """True where a count of a loop, or what is made of it, goes through a reduction."""
    around: ast.AST = file.names.function(loop.node) or file.tree
    if count.name.startswith("self."):
        around = file.names.enclosing(loop.node, ast.ClassDef) or around
    # Rank 0's is the value of all only where every rank has it all.
    reduces = _adds_up if loop in script.train_loops else is_reduction
    if _reduces_itself(file, script, count):
        return True
    if any(
        isinstance(one, ast.Call)
        and (reduces(file, one) or _callee_reduces(file, script, one, reduces))
        for one in walk(count.node)
    ):
        return True
    return _reaches(file, script, around, {count.name}, _DEPTH, reduces)


def _adds_up(file: File, call: ast.Call) -> bool:
    return is_reduction(file, call) and call_name(call) != "broadcast"


def _reaches(
    file: File,
    script: Script,
    around: ast.AST,
    names: set[str],
    depth: int,
    reduces: Callable[[File, ast.Call], bool],
) -> bool:
    found = made_of(walk(around), names)
    for node in walk(around):
        if isinstance(node, ast.Call):
            hands_on = reduces(file, node) or _callee_reduces(file, script, node, reduces)
            if hands_on and mentioned(node) & found:
                return True
    if not isinstance(around, Function) or depth == 0:
        return False
    if not any(mentioned(value) & found for value in returned(around)):
        return False
    for where, call in script.flow.callers.get(around, ()):
        for up in where.names.up(call):
            if isinstance(up, ast.Call) and reduces(where, up):
                return True
            if isinstance(up, (ast.Assign, ast.AnnAssign)):
                target = up.targets[0] if isinstance(up, ast.Assign) else up.target
                outer: ast.AST = where.names.function(call) or where.tree
                if _reaches(where, script, outer, mentioned(target), depth - 1, reduces):
                    return True
                break
            if isinstance(up, ast.stmt):
                break
    return False


def _callee_reduces(
    file: File, script: Script, call: ast.Call, reduces: Callable[[File, ast.Call], bool]
) -> bool:
    """A call of a function of the script's own that has a reduction in it."""
    callee = script.flow.callee(file, call)
    if callee is None:
        return False
    return any(isinstance(one, ast.Call) and reduces(callee[0], one) for one in walk(callee[1]))


def _reduces_itself(file: File, script: Script, count: Count) -> bool:
    """A meter whose class has a reduction: torchmetrics, `meter.all_reduce()`."""
    if not isinstance(count.node, ast.Call) or not isinstance(count.node.func, ast.Attribute):
        return False
    for origin in script.flow.origins(file, count.node.func.value):
        if isinstance(origin.node, ast.Call):
            if origin.file.names.called(origin.node).startswith("torchmetrics"):
                return True
            owner = script.flow.class_of(origin.file, origin.node)
            if owner is not None and any(
                isinstance(one, ast.Call) and is_reduction(owner[0], one) for one in walk(owner[1])
            ):
                return True
    return False

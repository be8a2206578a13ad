"""Conditions that let only some ranks through."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Literal

from ...script.effects import Reached, callee, leads_to
from ...script.flow import call_name
from ...script.names import Function, calls_in
from ...script.roles import Script, Site
from ...script.source import File
from .facts import RANK_WORDS, ranked

Guard = Literal["", "rank0", "local", "others"]
_LOCAL = re.compile(r"local_?rank|LOCAL_RANK|\bgpu\s*==\s*0|device_id\s*==\s*0|SLURM_LOCALID", re.I)
_RANK = re.compile(
    rf"\b{RANK_WORDS}rank(?:s|_?id|_?zero|_?0)?\b"
    r"|\bis_\w*(?:main|root|master|primary|chief)\w*|\bmain_process\b|\bmaster\w*\b"
    r"|\bis_(?:main|root|master)\b|process_index|SLURM_PROCID",
    re.IGNORECASE,
)
_NOT_ZERO = re.compile(
    r"!=\s*0|>\s*0|^\s*\(?not\s+(?!torch|dist)\w*\.?\w*(?:is_|main|root|master|rank0)",
    re.IGNORECASE,
)
_DECORATOR = re.compile(r"rank_?(?:zero|0)|main_(?:process|rank)|master", re.IGNORECASE)
_NO_RANK = re.compile(r"(?:==|<|is)\s*None|is_initialized|is_available|world_?size")
_FIRST = ("rank0_first", "main_process_first", "rank_zero_first")
_DEPTH = 3


def guard(file: File, script: Script, node: ast.AST, depth: int = _DEPTH) -> Guard:
    """For whom a place runs: everybody (""), rank 0, rank 0 of each node, all but rank 0."""
    child = node
    function: Function | None = None
    for up in file.names.up(node):
        kind = _left_before(file, script, child)
        if kind:
            return kind
        if isinstance(up, (ast.If, ast.IfExp)):
            kind = _of_test(file, script, up.test)
            if kind and child is not up.test:
                otherwise = up.orelse if isinstance(up.orelse, list) else [up.orelse]
                return _turned(kind) if child in otherwise else kind
        elif isinstance(up, ast.BoolOp) and isinstance(up.op, ast.And):
            for value in up.values:
                if value is child:
                    break
                if kind := _of_test(file, script, value):
                    return kind
        elif isinstance(up, Function):
            function = up
            if any(
                _DECORATOR.search(file.code(one.func if isinstance(one, ast.Call) else one))
                for one in up.decorator_list
            ):
                return "rank0"
            break
        child = up
    if function is None or depth == 0:
        return ""
    kinds = {
        guard(where, script, call, depth - 1)
        for where, call in script.flow.callers.get(function, ())
    }
    return kinds.pop() if len(kinds) == 1 else ""


def by_every_rank(script: Script, site: Site) -> bool:
    """True of a call that all ranks make, and that writes to one place for all of them."""
    file = site.file
    if guard(file, script, site.node) or rank0_first(file, script, site.node):
        return False
    own = site.path is not None and ranked(script, file, site.path)
    return not own and runs(file, script, site.node)


def runs(file: File, script: Script, node: ast.AST) -> bool:
    """False of what stands in a module, and the script does not come to."""
    if file is script.file:
        return True
    for up in file.names.up(node):
        if file.guards(up):
            return False
        if isinstance(up, Function) and isinstance(file.names.parents[up], ast.Module):
            return any(
                any(one.id == up.name for one in where.names.all(ast.Name))
                or any(one.attr == up.name for one in where.names.all(ast.Attribute))
                for where in script.files
            )
    return True


def rank0_first(file: File, script: Script, node: ast.AST) -> bool:
    """True of what rank 0 does before the others: `with rank0_first():`, `rank0_first(f, …)`."""
    around = [node, *file.names.up(node)]
    if any(isinstance(one, (ast.With, ast.Call)) and _goes_first(one) for one in around):
        return True
    return any(one in _going_first(script) for one in around)


@lru_cache(maxsize=1)
def _going_first(script: Script) -> frozenset[Function]:
    """The functions that rank 0 runs before the others."""
    flow, first = script.flow, list[Reached | None]()
    for where in script.files:
        for call in where.names.all(ast.Call):
            if _goes_first(call) and call.args:
                named = flow.definition(where, call.args[0])
                first += [flow.body(*named)] if named is not None else []
        for block in filter(_goes_first, where.names.all(ast.With)):
            first += [callee(flow, where, call) for call in calls_in(*block.body)]
    reached = (leads_to(flow, *one) for one in first if one is not None)
    return frozenset(function for several in reached for _, function in several)


def _goes_first(node: ast.With | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        return call_name(node) in _FIRST
    heads = [one.context_expr for one in node.items]
    return any(isinstance(one, ast.Call) and call_name(one) in _FIRST for one in heads)


def _left_before(file: File, script: Script, child: ast.AST) -> Guard:
    """`if rank != 0: return` further up in the same block."""
    for statement in file.names.block(child):
        if statement is child:
            return ""
        if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
            kind = _of_test(file, script, statement.test)
            if kind:
                return _turned(kind)
    return ""


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Continue))


def _of_test(file: File, script: Script, test: ast.expr) -> Guard:
    """The ranks that a condition lets through."""
    texts = [file.code(test)]
    for name in _names(test):
        texts += [
            origin.file.code(origin.node)
            for origin in script.flow.origins(file, name)
            if isinstance(origin.node, (ast.Compare, ast.UnaryOp))
            or (isinstance(origin.node, ast.Call) and call_name(origin.node).startswith("is_"))
        ]
    for text in texts:
        if _NO_RANK.search(text) and not re.search(r"==\s*0|is_(?:main|root|master)", text):
            continue
        local = _LOCAL.search(text) is not None
        if not local and not _RANK.search(text):
            continue
        everything = re.sub(r"\w*local_?rank\w*", "", text, flags=re.IGNORECASE)
        local = local and not _RANK.search(everything)
        plain = isinstance(test, ast.Name) and test.id.lower().endswith("rank")
        if _NOT_ZERO.search(text) or plain:
            return "others"
        return "local" if local else "rank0"
    return ""


def _names(test: ast.expr) -> list[ast.expr]:
    found: list[ast.expr] = []
    stack: list[ast.expr] = [test]
    while stack:
        at = stack.pop()
        match at:
            case ast.Name() | ast.Attribute():
                found.append(at)
            case ast.BoolOp():
                stack += at.values
            case ast.UnaryOp():
                stack.append(at.operand)
    return found


def _turned(kind: Guard) -> Guard:
    return {"rank0": "others", "local": "others", "others": "rank0", "": ""}[kind]  # type: ignore[return-value]

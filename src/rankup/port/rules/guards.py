"""Whether a place is for one rank only, and for which."""

from __future__ import annotations

import re
from typing import Literal

import libcst as cst

from ..roles import Roles
from ..roles.pieces import call_name
from ..source import Source

Guard = Literal["", "rank0", "local", "others"]
_LOCAL = re.compile(r"local_?rank|LOCAL_RANK|\bgpu\s*==\s*0|device_id\s*==\s*0|SLURM_LOCALID", re.I)
_RANK = re.compile(
    r"\b\w*rank\w*\b|\bis_\w*(?:main|root|master|primary|chief)\w*|\bmain_process\b|\bmaster\w*\b"
    r"|\bis_(?:main|root|master)\b|process_index|SLURM_PROCID",
    re.IGNORECASE,
)
_NOT_ZERO = re.compile(
    r"!=\s*0|>\s*0|^\s*\(?not\s+(?!torch|dist)\w*\.?\w*(?:is_|main|root|master|rank0)",
    re.IGNORECASE,
)
_DEPTH = 3


def guard(source: Source, roles: Roles, node: cst.CSTNode, depth: int = _DEPTH) -> Guard:
    """For whom a place runs: everybody (""), rank 0, rank 0 of each node, all but rank 0."""
    child = node
    function: cst.FunctionDef | None = None
    for up in source.index.up(node):
        if isinstance(up, (cst.If, cst.IfExp)):
            kind = _of_test(source, roles, up.test)
            if kind and child is not up.test:
                return _turned(kind) if child is up.orelse else kind
        elif isinstance(up, cst.BooleanOperation) and child is up.right:
            kind = _of_test(source, roles, up.left)
            if kind and isinstance(up.operator, cst.And):
                return kind
        elif isinstance(up, (cst.IndentedBlock, cst.Module)):
            kind = _left_before(source, roles, up, child)
            if kind:
                return kind
        elif isinstance(up, cst.FunctionDef):
            function = up
            if any(
                "zero" in source.code(one) or "main" in source.code(one) for one in up.decorators
            ):
                return "rank0"
            break
        child = up
    if function is None or depth == 0:
        return ""
    kinds = {
        guard(where, roles, call, depth - 1) for where, call in roles.flow.callers.get(function, ())
    }
    return kinds.pop() if len(kinds) == 1 else ""


def _left_before(source: Source, roles: Roles, block: cst.CSTNode, child: cst.CSTNode) -> Guard:
    """`if rank != 0: return` further up in the same block."""
    body = getattr(block, "body", ())
    for statement in body if isinstance(body, (list, tuple)) else ():
        if statement is child:
            return ""
        if isinstance(statement, cst.If) and statement.orelse is None and _leaves(statement.body):
            kind = _of_test(source, roles, statement.test)
            if kind:
                return _turned(kind)
    return ""


def _leaves(body: cst.BaseSuite) -> bool:
    last = body.body[-1] if body.body else None
    while isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Continue))


def _of_test(source: Source, roles: Roles, test: cst.BaseExpression) -> Guard:
    """What a condition lets through."""
    texts = [source.code(test)]
    for name in _names(test):
        texts += [
            origin.source.code(origin.node)
            for origin in roles.flow.origins(source, name)
            if isinstance(origin.node, (cst.Comparison, cst.UnaryOperation))
            or (isinstance(origin.node, cst.Call) and call_name(origin.node).startswith("is_"))
        ]
    for text in texts:
        if re.search(
            r"(?:==|<|is)\s*None|is_initialized|is_available|world_?size", text
        ) and not re.search(r"==\s*0|is_(?:main|root|master)", text):
            continue
        match = _RANK.search(text)
        if match is None and not _LOCAL.search(text):
            continue
        local = _LOCAL.search(text) is not None
        everything = re.sub(r"\w*local_?rank\w*", "", text, flags=re.IGNORECASE)
        if local and _RANK.search(everything):
            local = False
        plain = isinstance(test, cst.Name) and test.value.lower().endswith("rank")
        if _NOT_ZERO.search(text) or plain:
            return "others"
        return "local" if local else "rank0"
    return ""


def _names(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    found: list[cst.BaseExpression] = []
    stack: list[cst.BaseExpression] = [test]
    while stack:
        at = stack.pop()
        match at:
            case cst.Name() | cst.Attribute():
                found.append(at)
            case cst.BooleanOperation():
                stack += [at.left, at.right]
            case cst.UnaryOperation():
                stack.append(at.expression)
    return found


def _turned(kind: Guard) -> Guard:
    return {"rank0": "others", "local": "others", "others": "rank0", "": ""}[kind]  # type: ignore[return-value]

"""What calls of functions and methods are worth that make names and paths."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .operations import METHODS, path_of
from .worth import COMPUTED, Value

Combine: TypeAlias = Callable[[Sequence[ast.expr], Callable[[Sequence[Any]], Any]], Value]
_JOINS = {"os.path.join", "pathlib.Path", "pathlib.PurePath", "posixpath.join"}
_FIRST = {
    *("str", "os.path.expanduser", "os.path.abspath", "os.path.normpath", "os.path.realpath"),
    *("os.fspath", "os.path.expandvars", "urllib.request.Request", "list", "tuple", "sorted"),
}
_EXISTS = {"os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.lexists"}
_SAME = {"resolve", "expanduser", "absolute", "as_posix", "strip"}


def call_of(
    node: ast.Call,
    dotted: str,
    of: Callable[[ast.expr], Value],
    combined: Combine,
    exists: Callable[[object], bool],
) -> Value:
    """What a call is worth, by the full name of what is called, else by its method's.

    Args:
        of: what an expression is worth where the call stands.
        combined: what can be made of all that several expressions are worth.
        exists: whether something lies at a path.
    """
    if dotted in _JOINS:
        return combined(node.args, lambda parts: path_of(*parts))
    if dotted in _FIRST and node.args:
        return of(node.args[0])
    if dotted in _EXISTS:
        return combined(node.args[:1], lambda parts: exists(*parts))
    if not isinstance(node.func, ast.Attribute) or node.keywords:
        return COMPUTED
    inner, method = node.func.value, node.func.attr
    if method in ("exists", "is_file", "is_dir") and not node.args:
        return combined([inner], lambda parts: exists(*parts))
    if method in _SAME and not node.args:
        return of(inner)
    if method in METHODS:
        return combined([inner, *node.args], lambda parts: METHODS[method](*parts))
    return COMPUTED

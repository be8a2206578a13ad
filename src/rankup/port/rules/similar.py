"""Where the samples of a batch are compared with each other: `out @ out.t()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ...script.flow import given
from ...script.names import walk

_PRODUCTS = ("mm", "matmul")
_TRANSPOSED = ("t", "transpose")
_SAME = ("contiguous", "detach", "float", "half")


def similarities(body: Sequence[ast.AST], batch: set[str]) -> Iterator[ast.expr]:
    """Products of something made of a batch with something of it transposed: of each two samples.

    Args:
        body: the statements of a loop or of a function.
        batch: names of the batch, and of what is made of it.
    """
    for node in walk(*body):
        for one, (left, right) in _products(node):
            if _root(left) in batch and _transposed(right) in batch:
                yield one


def _products(
    node: ast.AST,
) -> Iterator[tuple[ast.expr, tuple[ast.expr, ast.expr]]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield node, (node.left, node.right)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in _PRODUCTS and node.args:
        factors = given(node)
        first = factors[0] if len(factors) > 1 else node.func.value
        yield node, (first, factors[-1])


def _transposed(node: ast.expr) -> str:
    """The name behind `x.t()`, `x.T`, `x.transpose(0, 1)`; empty where nothing is transposed."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _TRANSPOSED:
            return _root(node.func.value)
        if node.func.attr not in _SAME:
            return ""
        node = node.func.value
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return _root(node.value)
    return ""


def _root(node: ast.expr) -> str:
    """`x` of `x`, `x[0]`, `x.contiguous()`; not of `model.weight`, which is no batch."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _SAME
        ):
            node = node.func.value
        else:
            return node.id if isinstance(node, ast.Name) else ""

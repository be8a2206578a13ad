"""Where the samples of a batch are compared with each other: `out @ out.t()`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .tree import walk

_PRODUCTS = ("mm", "matmul")
_TRANSPOSED = ("t", "transpose")
_SAME = ("contiguous", "detach", "float", "half")


def similarities(body: cst.CSTNode, batch: set[str]) -> Iterator[cst.BaseExpression]:
    """Products of something made of a batch with something of it transposed: of each two samples.

    Args:
        batch: names of the batch, and of what is made of it.
    """
    for node in walk(body):
        for one, (left, right) in _products(node):
            if _root(left) in batch and _transposed(right) in batch:
                yield one


def _products(
    node: cst.CSTNode,
) -> Iterator[tuple[cst.BaseExpression, tuple[cst.BaseExpression, cst.BaseExpression]]]:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        yield node, (node.left, node.right)
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return
    if node.func.attr.value in _PRODUCTS and node.args:
        given = [arg.value for arg in node.args]
        yield node, (given[0], given[1]) if len(given) > 1 else (node.func.value, given[0])


def _transposed(node: cst.BaseExpression) -> str:
    """The name behind `x.t()`, `x.T`, `x.transpose(0, 1)`; empty where nothing is transposed."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in _TRANSPOSED:
            return _root(node.func.value)
        if node.func.attr.value not in _SAME:
            return ""
        node = node.func.value
    if isinstance(node, cst.Attribute) and node.attr.value == "T":
        return _root(node.value)
    return ""


def _root(node: cst.BaseExpression) -> str:
    """`x` of `x`, `x[0]`, `x.contiguous()`; not of `model.weight`, which is no batch."""
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value in _SAME
        ):
            node = node.func.value
        else:
            return node.value if isinstance(node, cst.Name) else ""

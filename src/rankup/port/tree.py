"""Walking a tree without its whitespace and brackets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cache

import libcst as cst

from ..script.torch_names import words

# Fields without anything that has a name or runs.
_SKIPPED = words(
    "lpar rpar comma semicolon equal dot leading_lines lines_after_decorators header footer "
    "colon asynchronous lbracket rbracket lbrace rbrace indent newline comment"
)


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The nodes directly below one, in the order of the text; whitespace and brackets left out."""
    names = _fields(type(node))
    found: list[cst.CSTNode] = []
    for name in names:
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(one for one in value if isinstance(one, cst.CSTNode))
    return found


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a type of node that may hold nodes of interest."""
    return tuple(
        one.name
        for one in fields(kind)
        if one.name not in _SKIPPED and not one.name.startswith(("whitespace", "trailing_"))
    )


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, in the order of the text."""
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack.extend(reversed(children(at)))

"""Small questions about calls, subscripts and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import libcst as cst

from ..tree import children
from .words import AROUND_LOADER, AROUND_MODEL, SAME

if TYPE_CHECKING:
    from ..source import Source


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a value may come from.

    Attributes:
        source, node: the expression that makes it, a call in most cases.
        through: the calls that it passed on its way (`DDP(model)`, `model.to(device)`), with the
            file, the last first.
    """

    source: Source
    node: cst.CSTNode
    through: tuple[tuple[Source, cst.Call], ...] = ()

    def wrapped(self) -> frozenset[str]:
        """What is around a model: `ddp`, `dp`, `fsdp`, `rankup`, `sync-bn`."""
        return frozenset(
            kind for source, call in self.through if (kind := around_model(source, call))
        )


def around_model(source: Source, call: cst.Call) -> str:
    """The kind of wrapper that a call puts around a model, or nothing."""
    name = call_name(call)
    if name in AROUND_MODEL:
        return AROUND_MODEL[name]
    dotted = source.index.called(call)
    if name == "wrap" and (dotted.startswith("rankup") or not dotted):
        return "rankup"
    return ""


def call_name(call: cst.Call) -> str:
    """The last word of what is called: `step` of `optimizer.step()`."""
    func = call.func
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else ""


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.BaseExpression | None:
    """An argument by keyword or position; None where it is not given in a way one can see."""
    for k, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
        if (
            arg.keyword is None
            and arg.star == ""
            and k == position
            and all(before.star == "" for before in call.args[:k])
        ):
            return arg.value
    return None


def returned(function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """What a function returns or yields at its own level."""
    found: list[cst.BaseExpression] = []
    stack: list[cst.CSTNode] = [function.body]
    while stack:
        at = stack.pop()
        if isinstance(at, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            continue
        if isinstance(at, cst.Return) and at.value is not None:
            found.append(at.value)
        stack.extend(reversed(children(at)))
    return found


def unless_bare(nodes: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
    """Of `model.module if ddp else model`, in either form, the first alone."""
    inner = [
        one.value for one in nodes if isinstance(one, cst.Attribute) and one.attr.value == "module"
    ]
    if not inner:
        return list(nodes)
    return [one for one in nodes if not any(one.deep_equals(each) for each in inner)]


def unwrapped_calls(
    through: tuple[tuple[Source, cst.Call], ...],
) -> tuple[tuple[Source, cst.Call], ...]:
    return tuple((where, call) for where, call in through if not around_model(where, call))


def subscript_key(node: cst.Subscript) -> str | int | None:
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return None
    value = node.slice[0].slice.value
    if isinstance(value, cst.SimpleString):
        return str(value.raw_value)
    if isinstance(value, cst.Integer):
        return int(value.value, 0)
    return None


def entries(node: cst.CSTNode, key: str | int | None) -> list[cst.BaseExpression]:
    """The values of a literal container that a key may mean; all where the key is not known."""
    match node:
        case cst.Dict():
            pairs = [one for one in node.elements if isinstance(one, cst.DictElement)]
            exact = [one.value for one in pairs if key is not None and _literal(one.key) == key]
            return exact or [one.value for one in pairs]
        case cst.DictComp():
            return [node.value]
        case cst.ListComp():
            return [node.elt]
        case cst.List() | cst.Tuple():
            values = [one.value for one in node.elements]
            return [values[key]] if isinstance(key, int) and key < len(values) else values
    return []


def _literal(node: cst.BaseExpression) -> str | int | None:
    if isinstance(node, cst.SimpleString):
        return str(node.raw_value)
    return int(node.value, 0) if isinstance(node, cst.Integer) else None


def is_none(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def is_builtin(source: Source, call: cst.Call, name: str) -> bool:
    return source.index.called(call) == f"builtins.{name}"


def explicit_self(source: Source, call: cst.Call) -> bool:
    """`Base.__init__(self, …)`: the instance is among the arguments."""
    first = call.args[0].value if call.args else None
    return isinstance(first, cst.Name) and first.value == "self"


def module_name(source: Source, script: Source) -> str:
    try:
        relative: PurePath = source.path.relative_to(script.path.parent)
    except ValueError:
        relative = PurePath(source.path.name)
    parts = list(relative.with_suffix("").parts)
    if parts[-1:] == ["__init__"]:
        parts.pop()
    return ".".join(parts)


def handed_on(source: Source, node: cst.Call) -> list[cst.BaseExpression] | None:
    """The arguments whose value a call hands on; None where it makes something new."""
    func, name = node.func, call_name(node)
    if isinstance(func, cst.Attribute) and name in SAME and not source.index.dotted(func):
        return [func.value]
    if name == "compile" and source.index.called(node) == "torch.compile" and node.args:
        return [node.args[0].value]
    if around_model(source, node):
        first = argument(node, "module", 0)
        return None if first is None else [first]
    if name in AROUND_LOADER and node.args:
        if name == "log_every" or not isinstance(func, cst.Attribute):
            pick = node.args if name in ("zip", "chain") else node.args[:1]
            return [arg.value for arg in pick if arg.star == ""]
        if source.index.dotted(func):
            return [node.args[0].value]
    return None

"""Where a value comes from: through names, attributes, parameters, returns and local modules.

Not sensitive to order: a name that is bound twice may be either. What cannot be followed (a
parameter that nobody passes, a foreign call) is its own origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from ..index import Binding, Scope
from .definitions import Definitions
from .pieces import (
    Origin,
    argument,
    entries,
    explicit_self,
    handed_on,
    is_builtin,
    is_none,
    returned,
    subscript_key,
    unless_bare,
    unwrapped_calls,
)

if TYPE_CHECKING:
    from ..source import Source

_DEPTH = 25  # steps of following; what is further apart nobody can follow either
_MOST = 40  # origins of one expression
_STEPS = 600  # for one expression, however many callers there are


class Flow(Definitions):
    """Follows values over the files of one script."""

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(sources)
        self._known: dict[cst.CSTNode, tuple[Origin, ...]] = {}
        self._budget = 0

    def origins(self, source: Source, node: cst.CSTNode) -> tuple[Origin, ...]:
        """Where the value of an expression may come from; itself where it cannot be followed."""
        if node not in self._known:
            self._budget = _STEPS
            self._known[node] = tuple(self._follow(source, node, frozenset(), _DEPTH))[:_MOST]
        return self._known[node]

    def class_of(self, source: Source, node: cst.CSTNode) -> tuple[Source, cst.ClassDef] | None:
        """The class of these files that an expression is an instance of."""
        for origin in self.origins(source, node):
            if isinstance(origin.node, cst.Call):
                found = self._definition(origin.source, origin.node.func)
                if found is not None and isinstance(found[1], cst.ClassDef):
                    return found[0], found[1]
        return None

    # What follows gives lists of origins; `path` are the bindings passed already.

    def _follow(
        self, source: Source, node: cst.CSTNode, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        if left == 0 or node in path or self._budget == 0:
            return []
        self._budget -= 1
        path |= {node}
        match node:
            case cst.Name():
                return self._name(source, node, path, left - 1)
            case cst.Attribute():
                return self._attribute(source, node, path, left - 1)
            case cst.Call():
                return self._call(source, node, path, left - 1)
            case cst.IfExp():
                values = unless_bare([node.body, node.orelse])
                return self._any(source, values, path, left - 1)
            case cst.BooleanOperation():
                return self._any(source, (node.left, node.right), path, left - 1)
            case cst.NamedExpr():
                return self._follow(source, node.value, path, left - 1)
            case cst.Subscript():
                return self._subscript(source, node, path, left - 1)
        return [Origin(source, node)]

    def _any(
        self, source: Source, nodes: Iterable[cst.CSTNode], path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        found: list[Origin] = []
        for node in nodes:
            found += self._follow(source, node, path, left)
        return found

    def _name(
        self, source: Source, node: cst.Name, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        scope, bindings = source.index.bindings(node.value, source.index.scope(node))
        if not bindings:
            for star in source.index.stars:
                other = self._module(source, star)
                if other is not None and node.value in other.index.members(other.module):
                    bound = other.index.members(other.module)[node.value]
                    return self._bound(other, other.module, bound, path, left)
            return [Origin(source, node)]
        return self._bound(source, scope, bindings, path, left) or [Origin(source, node)]

    def _bound(
        self,
        source: Source,
        scope: Scope,
        bindings: Iterable[Binding],
        path: frozenset[cst.CSTNode],
        left: int,
    ) -> list[Origin]:
        found: list[Origin] = []
        bindings = list(bindings)
        kept = unless_bare([one.node for one in bindings])
        for one in bindings:
            if one.target in path or one.node not in kept:
                continue
            found += self._binding(source, scope, one, path | {one.target}, left)
        return found

    def _binding(
        self, source: Source, scope: Scope, one: Binding, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        match one.kind:
            case "value":
                if one.path:
                    return self._item(source, one.node, one.path, path, left)
                if is_none(one.node):
                    return []
                return self._follow(source, one.node, path, left)
            case "parameter" if isinstance(scope, cst.FunctionDef):
                return self._parameter(source, scope, one, path, left)
            case "import":
                module, _, name = one.dotted.rpartition(".")
                other = self._module(source, module)
                if other is not None and other is not source:
                    bound = other.index.members(other.module).get(name)
                    if bound:
                        return self._bound(other, other.module, bound, path, left)
                return [Origin(source, one.target)]
            case "item":
                return self._items(source, one, path, left)
            case "other":
                return []
        return [Origin(source, one.node)]

    def _items(
        self, source: Source, one: Binding, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        """What a loop written out gives a name: `for phase, loader in [("train", a), …]`."""
        for where, rows in self._rows(source, one.node, path, left):
            values = [at for row in rows for at in _at(row, one.path)]
            if values:
                return self._any(where, values, path, left)
        return [Origin(source, one.target)]

    def _rows(
        self, source: Source, node: cst.CSTNode, path: frozenset[cst.CSTNode], left: int
    ) -> list[tuple[Source, list[cst.CSTNode]]]:
        """The rounds of a loop over a list, or over `.items()` and `.values()` of a dictionary."""
        found: list[tuple[Source, list[cst.CSTNode]]] = []
        for origin in self._follow(source, node, path, left):
            match origin.node:
                case cst.List(elements=elements) | cst.Tuple(elements=elements):
                    found.append((origin.source, [one.value for one in elements]))
                case cst.Call(func=cst.Attribute(value=value, attr=attr)):
                    if attr.value not in ("items", "values"):
                        continue
                    for inner in self._follow(origin.source, value, path, left):
                        if isinstance(inner.node, cst.Dict):
                            pairs = inner.node.elements
                            whole = attr.value == "items"
                            found.append(
                                (inner.source, [one if whole else one.value for one in pairs])
                            )
        return found

    def _item(
        self,
        source: Source,
        node: cst.CSTNode,
        at: tuple[int, ...],
        path: frozenset[cst.CSTNode],
        left: int,
    ) -> list[Origin]:
        """Of `a, b = node` what `a` is."""
        found: list[Origin] = []
        for origin in self._follow(source, node, path, left):
            inner = origin.node
            if isinstance(inner, (cst.Tuple, cst.List)) and at[0] < len(inner.elements):
                value = inner.elements[at[0]].value
                if len(at) == 1:
                    found += self._follow(origin.source, value, path, left)
                else:
                    found += self._item(origin.source, value, at[1:], path, left)
            elif isinstance(inner, cst.Call) and is_builtin(origin.source, inner, "map"):
                found.append(origin)
            else:
                found.append(Origin(origin.source, inner, origin.through))
        return found

    def _parameter(
        self,
        source: Source,
        owner: cst.FunctionDef,
        one: Binding,
        path: frozenset[cst.CSTNode],
        left: int,
    ) -> list[Origin]:
        param = one.node
        assert isinstance(param, cst.Param)
        name = param.name.value
        positional = [*owner.params.posonly_params, *owner.params.params]
        position = next((k for k, each in enumerate(positional) if each is param), None)
        method = source.index.parents.get(owner) is not None and isinstance(
            source.index.scope(owner), cst.ClassDef
        )
        if method and position == 0:
            return [Origin(source, param)]
        found: list[Origin] = []
        for where, call in self.callers.get(owner, ()):
            shift = 1 if method and not explicit_self(where, call) else 0
            value = argument(call, name, None if position is None else position - shift)
            if value is not None:
                found += self._follow(where, value, path, left)
        if not found and param.default is not None and not is_none(param.default):
            found = self._follow(source, param.default, path, left)
        return found or [Origin(source, param)]

    def _attribute(
        self, source: Source, node: cst.Attribute, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        name = node.attr.value
        if isinstance(node.value, cst.Name) and node.value.value in ("self", "cls"):
            owner = source.index.class_(node)
            if owner is not None:
                found = self._of_class(source, owner, name, path, left)
                return found or [Origin(source, node)]
        if name == "module":  # what is in the wrapper
            return [
                Origin(one.source, one.node, unwrapped_calls(one.through))
                for one in self._follow(source, node.value, path, left)
            ]
        if isinstance(node.value, cst.Name):
            dotted = source.index.dotted(node)
            module, _, attribute = dotted.rpartition(".")
            other = self._module(source, module) if module else None
            if other is not None and other is not source:
                bound = other.index.members(other.module).get(attribute, ())
                return self._bound(other, other.module, bound, path, left) or [Origin(source, node)]
            for origin in self._follow(source, node.value, path, left):
                if isinstance(origin.node, cst.Call):
                    found_class = self._definition(origin.source, origin.node.func)
                    if found_class and isinstance(found_class[1], cst.ClassDef):
                        where, owner = found_class[0], found_class[1]
                        values = self._of_class(where, owner, name, path, left)
                        if values:
                            return values
        return [Origin(source, node)]

    def _of_class(
        self,
        source: Source,
        owner: cst.ClassDef,
        name: str,
        path: frozenset[cst.CSTNode],
        left: int,
    ) -> list[Origin]:
        found: list[Origin] = []
        waiting, seen = [(source, owner)], {owner}
        while waiting:
            where, at = waiting.pop(0)
            for one in where.index.attributes(at).get(name, ()):
                if one.target not in path:
                    scope = where.index.scope(one.target)
                    found += self._binding(where, scope, one, path | {one.target}, left)
            for base in at.bases:
                below = self._definition(where, base.value)
                if below and isinstance(below[1], cst.ClassDef) and below[1] not in seen:
                    seen.add(below[1])
                    waiting.append((below[0], below[1]))
        return found

    def _call(
        self, source: Source, node: cst.Call, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        inside = handed_on(source, node)
        if inside is not None:
            return [
                Origin(one.source, one.node, (*one.through, (source, node)))
                for value in inside
                for one in self._follow(source, value, path, left)
            ]
        callee = self._definition(source, node.func)
        if callee is not None and isinstance(callee[1], cst.FunctionDef):
            found: list[Origin] = []
            for value in returned(callee[1]):
                found += self._follow(callee[0], value, path, left)
            if found:
                return found
        return [Origin(source, node)]

    def _subscript(
        self, source: Source, node: cst.Subscript, path: frozenset[cst.CSTNode], left: int
    ) -> list[Origin]:
        key = subscript_key(node)
        found: list[Origin] = []
        for origin in self._follow(source, node.value, path, left):
            for value in entries(origin.node, key):
                found += self._follow(origin.source, value, path, left)
        return found or [Origin(source, node)]


def _at(row: cst.CSTNode, path: tuple[int, ...]) -> list[cst.CSTNode]:
    """The part of a round that a name gets: `(1,)` of `("train", loader)`."""
    if not path:
        return [row]
    if isinstance(row, cst.DictElement):
        return [(row.key, row.value)[path[0]]] if path[0] < 2 and len(path) == 1 else []
    if isinstance(row, (cst.Tuple, cst.List)) and path[0] < len(row.elements):
        return _at(row.elements[path[0]].value, path[1:])
    return []

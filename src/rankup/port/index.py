"""One walk over a tree: parents, scopes, what each name is bound to, dotted names.

A light stand-in for LibCST's scope and qualified-name providers, which take several times as long
as the parsing itself; comprehensions count as part of the function that they stand in.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

import libcst as cst

from .naming import RUNTIME
from .tree import children, walk

Scope = cst.Module | cst.FunctionDef | cst.ClassDef | cst.Lambda
Kind = Literal["import", "value", "item", "entered", "parameter", "function", "class", "other"]
N = TypeVar("N", bound=cst.CSTNode)

_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Binding:
    """One way in which a name gets its value.

    Attributes:
        kind: `value`: of `node` (an expression), its item at `path` where it is unpacked. `item`:
            one item of iterating over `node`. `entered`: what `with node as` gives. `parameter`:
            `node` is the cst.Param. `function`, `class`: `node` is the definition. `import`:
            `dotted` is where it is from. `other`: anything else (except … as, del, match).
        target: the node that names it.
    """

    kind: Kind
    target: cst.CSTNode
    node: cst.CSTNode
    path: tuple[int, ...] = ()
    dotted: str = ""


@dataclass
class _Names:
    bound: dict[str, list[Binding]] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)  # global and nonlocal


class Index:
    """What is where in one file.

    Attributes:
        parents: of every node that has a name or runs (no whitespace, no brackets).
        imported: dotted names of what is imported, `from a import b` as `a` and `a.b`.
        stars: modules that `from module import *` names.
    """

    def __init__(self, module: cst.Module) -> None:
        self.module = module
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.imported: list[str] = []
        self.stars: list[str] = []
        self._scopes: dict[cst.CSTNode, Scope] = {}
        self._names: dict[Scope, _Names] = {module: _Names()}
        self._attributes: dict[cst.ClassDef, dict[str, list[Binding]]] = {}
        self._by_type: dict[type, list[cst.CSTNode]] = {}
        self._walk()

    def all(self, kind: type[N]) -> list[N]:
        """All nodes of a type, in the order of the text."""
        return cast("list[N]", self._by_type.get(kind, []))

    def within(self, node: cst.CSTNode, kind: type[N]) -> list[N]:
        """All nodes of a type inside `node` (or itself), nested functions included."""
        return [one for one in walk(node) if isinstance(one, kind)]

    def up(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, the nearest first."""
        at = self.parents.get(node)
        while at is not None:
            yield at
            at = self.parents.get(at)

    def enclosing(self, node: cst.CSTNode, *kinds: type) -> cst.CSTNode | None:
        """The nearest node around of one of these types."""
        return next((one for one in self.up(node) if isinstance(one, kinds)), None)

    def inside(self, node: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Whether `node` is `other` or lies in it."""
        return node is other or any(one is other for one in self.up(node))

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around a node."""
        return cast("cst.FunctionDef | None", self.enclosing(node, cst.FunctionDef))

    def class_(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The innermost class around a node."""
        return cast("cst.ClassDef | None", self.enclosing(node, cst.ClassDef))

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The line or compound statement that a node stands in."""
        kinds = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
        return node if isinstance(node, kinds) else self.enclosing(node, *kinds) or node

    def scope(self, node: cst.CSTNode) -> Scope:
        """The scope whose names a node sees first."""
        return self._scopes.get(node, self.module)

    def bindings(self, name: str, scope: Scope) -> tuple[Scope, list[Binding]]:
        """What a name is bound to as seen from a scope, and in which scope that is."""
        at: Scope = scope
        first = True
        while True:
            names = self._names.get(at)
            if (
                names
                and name in names.bound
                and name not in names.outside
                and (first or not isinstance(at, cst.ClassDef))
            ):
                return at, names.bound[name]
            if isinstance(at, cst.Module):
                return at, []
            at, first = self._scopes.get(at, self.module), False

    def attributes(self, owner: cst.ClassDef) -> dict[str, list[Binding]]:
        """What `self.NAME` is set to anywhere in a class."""
        return self._attributes.get(owner, {})

    def members(self, scope: Scope) -> dict[str, list[Binding]]:
        """The names bound in a scope: a module's globals, a class's methods."""
        names = self._names.get(scope)
        return names.bound if names else {}

    def dotted(self, node: cst.CSTNode) -> str:
        """Where a name or attribute comes from: `torch.optim.Adam`, `builtins.print`.

        Empty where it is none of an imported module and no builtin.
        """
        if isinstance(node, cst.Attribute):
            base = self.dotted(node.value)
            return f"{base}.{node.attr.value}" if base else ""
        if not isinstance(node, cst.Name):
            return ""
        _, found = self.bindings(node.value, self.scope(node))
        for one in found:
            if one.kind == "import":
                return one.dotted
        if found:
            return ""
        if node.value in _BUILTINS:
            return f"builtins.{node.value}"
        return f"{self.stars[-1]}.{node.value}" if self.stars else ""

    def called(self, call: cst.Call) -> str:
        """`dotted` of what a call calls."""
        return self.dotted(call.func)

    def _walk(self) -> None:
        stack: list[tuple[cst.CSTNode, cst.CSTNode | None, Scope]] = [
            (self.module, None, self.module)
        ]
        while stack:
            node, parent, scope = stack.pop()
            if parent is not None:
                self.parents[node] = parent
                self._scopes[node] = scope
            self._by_type.setdefault(type(node), []).append(node)
            inner = scope
            if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
                self._names[node] = _Names()
                inner = node
            self._bind(node, scope)
            stack.extend((child, node, inner) for child in reversed(children(node)))

    def _put(self, scope: Scope, name: str, binding: Binding) -> None:
        names = self._names[scope]
        if name in names.outside:
            names = self._names[self.module]
        names.bound.setdefault(name, []).append(binding)

    def _bind(self, node: cst.CSTNode, scope: Scope) -> None:
        match node:
            case cst.FunctionDef():
                self._put(scope, node.name.value, Binding("function", node.name, node))
                self._parameters(node, node.params)
            case cst.Lambda():
                self._parameters(node, node.params)
            case cst.ClassDef():
                self._put(scope, node.name.value, Binding("class", node.name, node))
            case cst.Assign():
                for target in node.targets:
                    self._assign(target.target, "value", node.value, scope)
            case cst.AnnAssign() if node.value is not None:
                self._assign(node.target, "value", node.value, scope)
            case cst.AugAssign():
                self._assign(node.target, "other", node.value, scope)
            case cst.NamedExpr():
                self._assign(node.target, "value", node.value, scope)
            case cst.For() | cst.CompFor():
                self._assign(node.target, "item", node.iter, scope)
            case cst.WithItem() if node.asname is not None:
                self._assign(node.asname.name, "entered", node.item, scope)
            case cst.ExceptHandler() if node.name is not None:
                self._assign(node.name.name, "other", node, scope)
            case cst.Import() | cst.ImportFrom():
                self._import(node, scope)
            case cst.Global() | cst.Nonlocal():
                self._names[scope].outside.update(item.name.value for item in node.names)

    def _parameters(self, owner: cst.FunctionDef | cst.Lambda, params: cst.Parameters) -> None:
        every = [*params.posonly_params, *params.params, *params.kwonly_params]
        every += [one for one in (params.star_arg, params.star_kwarg) if isinstance(one, cst.Param)]
        for param in every:
            self._put(owner, param.name.value, Binding("parameter", param.name, param))

    def _assign(
        self,
        target: cst.CSTNode,
        kind: Kind,
        value: cst.CSTNode,
        scope: Scope,
        path: tuple[int, ...] = (),
    ) -> None:
        match target:
            case cst.Name():
                self._put(scope, target.value, Binding(kind, target, value, path))
            case cst.Attribute(value=cst.Name(value="self" | "cls")):
                owner = self._owner(scope)
                if owner is not None:
                    self._attributes.setdefault(owner, {}).setdefault(target.attr.value, []).append(
                        Binding(kind, target, value, path)
                    )
            case cst.Tuple() | cst.List():
                for k, element in enumerate(target.elements):
                    self._assign(element.value, kind, value, scope, (*path, k))
            case cst.StarredElement():
                self._assign(target.value, "other", value, scope)

    def _owner(self, scope: Scope) -> cst.ClassDef | None:
        at: Scope = scope
        while not isinstance(at, cst.Module):
            if isinstance(at, cst.ClassDef):
                return at
            at = self._scopes.get(at, self.module)
        return None

    def _import(self, node: cst.Import | cst.ImportFrom, scope: Scope) -> None:
        if isinstance(node, cst.Import):
            for alias in node.names:
                dotted = _unvendored(_spelled(alias.name))
                self.imported.append(dotted)
                name = dotted.split(".")[0]
                if alias.asname and isinstance(alias.asname.name, cst.Name):
                    name = alias.asname.name.value
                    self._put(scope, name, Binding("import", alias, node, (), dotted))
                else:
                    self._put(scope, name, Binding("import", alias, node, (), name))
            return
        base = "." * len(node.relative) + (_spelled(node.module) if node.module else "")
        base = _unvendored(base)
        self.imported.append(base)
        if isinstance(node.names, cst.ImportStar):
            self.stars.append(base)
            return
        for alias in node.names:
            own = _spelled(alias.name)
            dotted = f"{base}{own}" if base.endswith(".") else f"{base}.{own}"
            self.imported.append(dotted)
            renamed = alias.asname.name if alias.asname else None
            name = renamed.value if isinstance(renamed, cst.Name) else own
            self._put(scope, name, Binding("import", alias, node, (), dotted))


def _spelled(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_spelled(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _unvendored(dotted: str) -> str:
    """`rankup` of the copy of its runtime that lies beside a script (`port --vendor`)."""
    first, dot, rest = dotted.partition(".")
    return f"rankup{dot}{rest}" if first == RUNTIME else dotted

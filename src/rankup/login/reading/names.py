"""Which thing of which module a name means: `ld` -> `datasets.load_dataset`."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping

from .scopes import Binding, File, Scope

_MOST_HOPS = 20


class Names:
    """Looks names up across the files of a project."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self.files = files

    def dotted(self, node: ast.AST, scope: Scope, hops: int = 0) -> str | None:
        """The full name of something of another module; None of what the script makes itself.

        What a call gives has the name of what is called with `()` behind it
        (`requests.Session().get`), so that methods of a library's objects have names.
        """
        if hops > _MOST_HOPS:
            return None
        match node:
            case ast.Attribute(value=value, attr=attr):
                inner = self.dotted(value, scope, hops + 1)
                return None if inner is None else self._through(f"{inner}.{attr}", hops)
            case ast.Call(func=func):
                inner = self.dotted(func, scope, hops + 1)
                return None if inner is None else f"{inner}()"
            case ast.Name(id=name):
                found = scope.find(name)
                if not found:
                    return self.starred(name, scope.file) or (
                        name if hasattr(builtins, name) else None
                    )
                # `except ImportError: datasets = None` is not what will be called.
                imported = [binding for binding in found if binding.kind == "import"]
                binding = (imported or found)[-1]
                if binding.kind == "import":
                    return self._through(binding.dotted, hops)
                given = binding.value if binding.kind == "value" and not binding.index else None
                if isinstance(given, ast.Name | ast.Attribute | ast.Call):
                    return self.dotted(given, binding.scope, hops + 1)
        return None

    def _through(self, dotted: str, hops: int) -> str:
        """The name of what a local module has imported from elsewhere."""
        place = self.local(dotted)
        if place is None or not place[1]:
            return dotted
        scope, (first, *rest) = place
        found = scope.bindings.get(first, [])
        if len(found) != 1 or found[0].kind != "import" or found[0].dotted == dotted:
            return dotted
        if hops > _MOST_HOPS:
            return dotted
        return self._through(".".join([found[0].dotted, *rest]), hops + 1)

    def local(self, dotted: str) -> tuple[Scope, list[str]] | None:
        """The top of the local module that a dotted name begins with, and the rest of the name."""
        parts = dotted.split(".")
        for end in range(len(parts), 0, -1):
            file = self.files.get(".".join(parts[:end]))
            if file is not None:
                return file.top, parts[end:]
        return None

    def starred(self, name: str, file: File) -> str | None:
        """The full name of what `from module import *` may have brought."""
        if hasattr(builtins, name):
            return None
        for module in reversed(file.stars):
            there = self.files.get(module)
            if there is None:
                return f"{module}.{name}"
            if name in there.top.bindings:
                return f"{module}.{name}"
        return None

    def definition(self, func: ast.AST, scope: Scope) -> Scope | None:
        """The function of this project that a call calls; of a class, what initializes it."""
        found = self._defined(func, scope, 0)
        return self.initializer(found) if found is not None and found.kind == "class" else found

    def initializer(self, owner: Scope) -> Scope | None:
        """The `__init__` of a class."""
        return _inner(owner, "__init__")

    def has(self, owner: Scope, name: str) -> bool:
        """Whether a class gives itself that attribute somewhere."""
        return name in owner.bindings or name in owner.attributes

    def class_in(self, scope: Scope, name: str) -> Scope | None:
        """The class of that name in `scope` itself."""
        found = _inner(scope, name)
        return found if found is not None and found.kind == "class" else None

    def bases(self, owner: Scope) -> Iterator[Scope]:
        """The classes of this project that a class is derived from."""
        assert isinstance(owner.node, ast.ClassDef)
        for base in owner.node.bases:
            found = self._defined(base, owner.parent or owner, 0)
            if found is not None and found.kind == "class" and found is not owner:
                yield found

    def instance(
        self, node: ast.AST, scope: Scope, hops: int = 0
    ) -> tuple[Scope, ast.Call | None] | None:
        """The class of this project that `node` is (an instance of), and the call that made it."""
        if isinstance(node, ast.Name):
            if node.id in ("self", "cls"):
                owner = scope.own_class()
                return None if owner is None else (owner, None)
            found = scope.find(node.id)
            if len(found) == 1 and isinstance(found[0].value, ast.Call) and hops < _MOST_HOPS:
                return self.instance(found[0].value, found[0].scope, hops + 1)
        call = node if isinstance(node, ast.Call) else None
        owner = self._defined(call.func if call else node, scope, hops + 1)
        return (owner, call) if owner is not None and owner.kind == "class" else None

    def tables(
        self, node: ast.expr, scope: Scope, hops: int = 0
    ) -> Iterator[tuple[ast.Dict, Scope]]:
        """The dict display that an expression is, or the only one that its name is bound to."""
        if isinstance(node, ast.Dict):
            yield node, scope
        elif isinstance(node, ast.Name):
            found = scope.find(node.id)
            if len(found) == 1 and isinstance(found[0].value, ast.Dict):
                yield found[0].value, found[0].scope
            elif len(found) == 1 and found[0].kind == "import" and hops < _MOST_HOPS:
                place = self.local(found[0].dotted)
                if place is not None and len(place[1]) == 1:
                    yield from self.tables(ast.Name(place[1][0], ast.Load()), place[0], hops + 1)

    def _defined(self, node: ast.AST, scope: Scope, hops: int) -> Scope | None:
        if hops > _MOST_HOPS:
            return None
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            if not found:
                dotted = self.starred(node.id, scope.file)
                return self._of_module(dotted, hops) if dotted else None
            return self._bound(found[-1], hops)
        if isinstance(node, ast.Attribute):
            dotted = self.dotted(node, scope)
            if dotted is not None and (there := self._of_module(dotted, hops)) is not None:
                return there
            owner = self.instance(node.value, scope, hops + 1)
            return None if owner is None else _inner(owner[0], node.attr)
        return None

    def _bound(self, binding: Binding, hops: int) -> Scope | None:
        if binding.kind in ("function", "class") and binding.value is not None:
            return binding.scope.inner.get(binding.value)
        if binding.kind == "import":
            return self._of_module(binding.dotted, hops)
        return None

    def _of_module(self, dotted: str, hops: int) -> Scope | None:
        place = self.local(dotted) if hops <= _MOST_HOPS else None
        if place is None or len(place[1]) != 1 or place[1][0] not in place[0].bindings:
            return None
        return self._bound(place[0].bindings[place[1][0]][-1], hops + 1)


def _inner(scope: Scope, name: str) -> Scope | None:
    for binding in scope.bindings.get(name, ()):
        if binding.kind in ("function", "class") and binding.value is not None:
            return scope.inner.get(binding.value)
    return None

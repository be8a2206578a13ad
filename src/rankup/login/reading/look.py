"""Reading one file: a walk over its syntax tree that takes down bindings, calls and imports.

Nothing is evaluated here. A name may have several bindings; each says under which conditions it
happens, so that those which cannot happen with the given arguments can be left out later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from .found import Import
from .scopes import Binding, Call, File, Function, Guard, Kind, Scope, Wanted

_MOST_BINDINGS = 30
_MOST_GUARDS = 100  # without the others code only seems to run more often
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_CATCHES = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def look(tree: ast.Module, path: Path, name: str, package: str) -> File:
    """What a file binds, calls and imports.

    Raises:
        RecursionError: it is nested too deeply.
    """
    file = File(path, name, package)
    file.top = Scope(file, "module", tree, None)
    _Look(file).visit(tree)
    return file


class _Look(ast.NodeVisitor):
    def __init__(self, file: File) -> None:
        self._file = file
        self._scope = file.top
        self._guards: tuple[Guard, ...] = ()
        self._optional = False
        self._late = False

    # --- scopes

    def _function(self, node: Function, body: Iterable[ast.AST]) -> None:
        arguments = node.args
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self.visit(default)
        outer, late, guards = self._scope, self._late, self._guards
        self._scope = outer.inner[node] = Scope(self._file, "function", node, outer)
        self._late = True
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for argument in every:
            self._bind(argument.arg, "argument", node)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                self._bind(rest.arg, "other", node)
        for child in body:
            self.visit(child)
        self._scope, self._late, self._guards = outer, late, guards

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._bind(node.name, "function", node)
        self._function(node, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for child in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(child)
        self._bind(node.name, "class", node)
        outer = self._scope
        self._scope = outer.inner[node] = Scope(self._file, "class", node, outer)
        self._block(node.body)
        self._scope = outer

    def _comprehension(self, node: _Comprehension) -> None:
        outer = self._scope
        self._scope = outer.inner[node] = Scope(self._file, "comprehension", node, outer)
        for part in node.generators:
            self.visit(part.iter)
            self._assign(part.target, part.iter, "item")
            for test in part.ifs:
                self.visit(test)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        for child in parts:
            self.visit(child)
        self._scope = outer

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    # --- conditions

    def _block(self, body: Iterable[ast.AST], *more: Guard) -> None:
        before = self._guards
        self._guards = (*before, *more)[:_MOST_GUARDS]
        for child in body:
            self.visit(child)
        self._guards = before

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        for body, holds in ((node.body, True), (node.orelse, False)):
            before = self._optional
            self._optional = before or _about_this_python(node.test)
            self._block(body, Guard(node.test, holds))
            self._optional = before
        # `if x: return` is an `else` around all that follows.
        if node.body and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Raise):
            self._guards = (*self._guards, Guard(node.test, False))[:_MOST_GUARDS]

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._block([node.body], Guard(node.test, True))
        self._block([node.orelse], Guard(node.test, False))

    def visit_Try(self, node: ast.Try) -> None:
        before = self._optional
        self._optional = before or any(_catches(handler.type) for handler in node.handlers)
        self._block(node.body)
        for handler in node.handlers:  # what is imported instead is needed only instead
            if handler.name:
                self._bind(handler.name, "other", handler)
            self._block(handler.body)
        self._optional = before
        self._block((*node.orelse, *node.finalbody))

    def visit_TryStar(self, node: ast.Try) -> None:
        self.visit_Try(node)

    # --- names

    def _bind(
        self,
        name: str,
        kind: Kind,
        value: ast.AST | None = None,
        index: tuple[int, ...] = (),
        dotted: str = "",
    ) -> None:
        line = getattr(value, "lineno", 0)
        bindings = self._scope.bindings.setdefault(name, [])
        if len(bindings) == _MOST_BINDINGS:  # of such a name nothing is known
            kind, value = "other", None
        if len(bindings) <= _MOST_BINDINGS:
            bindings.append(Binding(kind, line, self._scope, value, index, self._guards, dotted))

    def _assign(
        self,
        target: ast.expr,
        value: ast.expr,
        kind: Literal["value", "item"] = "value",
        index: tuple[int, ...] = (),
    ) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, kind, value, index)
        elif isinstance(target, ast.Tuple | ast.List):
            for number, part in enumerate(target.elts):
                self._assign(part, value, kind, (*index, number))
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            owner = self._scope.own_class()
            if target.value.id == "self" and owner is not None:
                binding = Binding(kind, value.lineno, self._scope, value, index, self._guards)
                owner.attributes.setdefault(target.attr, []).append(binding)
        else:
            self.visit(target)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._assign(node.target, node.value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._assign(node.target, node.iter, "item")
        self._block((*node.body, *node.orelse))

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self.visit_For(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):  # `x += 1`, `del x`
            self._bind(node.id, "other", node)

    # --- calls and imports

    def visit_Call(self, node: ast.Call) -> None:
        self._file.calls.append(Call(node, self._scope, self._guards))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._want(alias.name, node.lineno)
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind(alias.asname or whole, "import", node, dotted=whole)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self._file.package.split(".")
            parts = parts[: len(parts) - node.level + 1]
            base = ".".join([*filter(None, parts), *([base] if base else [])])
        self._want(base, node.lineno, tuple(alias.name for alias in node.names))
        for alias in node.names:
            if alias.name == "*":
                self._file.stars.append(base)
            else:
                dotted = f"{base}.{alias.name}" if base else alias.name
                self._bind(alias.asname or alias.name, "import", node, dotted=dotted)

    def _want(self, module: str, line: int, names: tuple[str, ...] = ()) -> None:
        found = Import(module, line, self._optional, self._late, self._file.path)
        self._file.wanted.append(Wanted(found, names))


def _catches(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(part, ast.Name) and part.id in _CATCHES for part in parts)


def _about_this_python(test: ast.expr) -> bool:
    """Whether a condition is about the interpreter, or never holds in one that runs."""
    names = {node.attr for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & {"TYPE_CHECKING", "version_info", "platform", "implementation"})

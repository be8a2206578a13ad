"""A parsed script: who is whose parent, what a name means, where a node stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    PositionProvider,
    WhitespaceInclusivePositionProvider,
)

from ...script.names import Function
from ...script.source import File, candidates, read
from ...script.torch_names import RETURNS_SELF
from .edits import Edits, Span

Node = TypeVar("Node", bound=cst.CSTNode)
Scope = cst.FunctionDef | cst.Module
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)
# Functions that run for each sample, in the processes that load.
_DRAWING = {"__getitem__", "__getitems__", "__iter__", "__next__"}
# Bytes, of which only what is used becomes memory: LibCST's parser is native code that overflows
# its stack on deeply nested text and takes the process along. Python's own, which counts its
# depth, has looked at the text before.
_STACK = 256 * 1024 * 1024
_BLOCKS = (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)


class Script:
    """One Python file, read only."""

    def __init__(self, text: str, module: cst.Module, folder: Path | None = None) -> None:
        self.module, self.text, self.folder = module, text, folder
        self._wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self._places = self._wrapper.resolve(PositionProvider)
        self._edits = Edits(text)
        self._beside: dict[str, Path | None] = {}
        self._files: dict[Path, File] = {}
        self._below: dict[cst.CSTNode, Sequence[cst.CSTNode]] = {}
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._by_type: dict[type[cst.CSTNode], list[cst.CSTNode]] = {}
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            self._by_type.setdefault(type(node), []).append(node)
            # LibCST makes a node's children anew each time that they are asked for.
            self._below[node] = below = node.children[::-1]
            for child in below:
                self.parents[child] = node
            stack += below

    def all(self, kind: type[Node]) -> list[Node]:
        """Every node of a kind, in the order of the text."""
        return self._by_type.get(kind, [])  # type: ignore[return-value]

    def inside(self, node: cst.CSTNode, kind: type[Node], *, deep: bool = True) -> Iterator[Node]:
        """Nodes of a kind in `node`, itself included; not those of functions in it, unless deep."""
        stack: list[cst.CSTNode] = [node]
        while stack:
            one = stack.pop()
            if isinstance(one, kind):
                yield one
            if not deep and one is not node and isinstance(one, _SCOPES):
                continue
            stack += self._below[one]

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Parents from the nearest to the module."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: cst.CSTNode) -> Scope:
        """The function, or else the module, in whose body a node stands."""
        for parent in self.above(node):
            if isinstance(parent, cst.FunctionDef):
                return parent
        return self.module

    def owner(self, function: cst.CSTNode) -> cst.ClassDef | None:
        """The class that a method belongs to."""
        for parent in self.above(function):
            if isinstance(parent, cst.ClassDef):
                return parent
            if isinstance(parent, cst.FunctionDef):
                return None
        return None

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The smallest whole statement that holds a node: a line, or a compound one."""
        if isinstance(node, cst.BaseStatement):
            return node
        for parent in self.above(node):
            if isinstance(parent, cst.BaseStatement | cst.SimpleStatementSuite):
                return parent
        return node

    def block(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """The statements beside a statement, itself included."""
        parent = self.parents.get(statement)
        if isinstance(parent, _BLOCKS):
            return list(parent.body)
        return [statement]

    def span(self, node: cst.CSTNode) -> Span:
        """Where a node stands, without the parentheses around it."""
        return self._edits.span(self._places[node])

    def whole(self, node: cst.CSTNode) -> Span:
        """Where a node stands, with the parentheses around it and what they hold."""
        if not getattr(node, "lpar", ()):
            return self.span(node)
        return self._edits.span(self._wrapper.resolve(WhitespaceInclusivePositionProvider)[node])

    def line(self, node: cst.CSTNode) -> int:
        """The line, from 1, in which a node starts."""
        return self._places[node].start.line

    def lines(self, node: cst.CSTNode) -> range:
        """Numbers of the lines that a node takes."""
        place = self._places[node]
        return range(place.start.line, place.end.line + 1)

    def code(self, node: cst.CSTNode) -> str:
        """A node's text."""
        span = self.span(node)
        return self.text[span.start : span.end]

    def name(self, node: cst.CSTNode) -> str:
        """What a dotted expression means, by the script's imports: `F.relu` ->
        `torch.nn.functional.relu`; empty where it is something else."""
        dotted = self.dotted(node)
        if not dotted:
            return ""
        first, dot, rest = dotted.partition(".")
        return self.imports.get(first, first) + dot + rest

    def dotted(self, node: cst.CSTNode) -> str:
        """`a.b.c` as it is written; empty where it is not of that form."""
        parts: list[str] = []
        while isinstance(node, cst.Attribute):
            parts.append(node.attr.value)
            node = node.value
        if not isinstance(node, cst.Name):
            return ""
        return ".".join([node.value, *reversed(parts)])

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> what it was imported as."""
        found: dict[str, str] = {}
        for node in self.all(cst.Import):
            for alias in node.names:
                full = self.dotted(alias.name)
                if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                    found[alias.asname.name.value] = full
                else:
                    found.setdefault(full.split(".")[0], full.split(".")[0])
        for origin in self.all(cst.ImportFrom):
            module = "." * len(origin.relative) + (
                self.dotted(origin.module) if origin.module else ""
            )
            if isinstance(origin.names, cst.ImportStar):
                continue
            for alias in origin.names:
                local = alias.asname.name if alias.asname is not None else alias.name
                if isinstance(local, cst.Name):
                    found[local.value] = f"{module}.{self.dotted(alias.name)}".lstrip()
        return found

    @cached_property
    def modules(self) -> set[str]:
        """First names of all modules that are imported anywhere."""
        found = {name.lstrip(".").split(".")[0] for name in self.imports.values()}
        for origin in self.all(cst.ImportFrom):
            if origin.module is not None and not origin.relative:
                found.add(self.dotted(origin.module).split(".")[0])
        return found

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """The script's own functions and methods by name; not those that share one."""
        found: dict[str, cst.FunctionDef] = {}
        twice: set[str] = set()
        for function in self.all(cst.FunctionDef):
            if function.name.value in found:
                twice.add(function.name.value)
            found[function.name.value] = function
        return {name: function for name, function in found.items() if name not in twice}

    def called(self, call: cst.Call) -> cst.FunctionDef | None:
        """The function of this script that a call runs."""
        if isinstance(call.func, cst.Name):
            function = self.functions.get(call.func.value)
            return function if function is not None and self.owner(function) is None else None
        if isinstance(call.func, cst.Attribute):
            if call.func.attr.value in RETURNS_SELF and self._is_model(call.func.value):
                return None
            function = self.functions.get(call.func.attr.value)
            return function if function is not None and self.owner(function) is not None else None
        return None

    def _is_model(self, receiver: cst.BaseExpression) -> bool:
        """True of `model`, which is called or asked for its parameters: no `Trainer` of the script.

        Its `model.train()` is the module's own method, whatever the script calls its methods.
        """
        return self.code(receiver) in self._model_names

    @cached_property
    def _model_names(self) -> frozenset[str]:
        found = set()
        for call in self.all(cst.Call):
            func = call.func
            if isinstance(func, cst.Attribute) and func.attr.value == "parameters":
                found.add(self.code(func.value))
            elif isinstance(func, cst.Name | cst.Attribute):
                found.add(self.code(func))
        return frozenset(found)

    def per_sample(self, node: cst.CSTNode) -> bool:
        """Whether it runs as samples are drawn: in `__getitem__` and the like, or called there."""
        seen: set[cst.CSTNode] = set()
        scopes: list[cst.CSTNode] = [self.scope(node)]
        while scopes:
            function = scopes.pop()
            if function in seen or not isinstance(function, cst.FunctionDef):
                continue
            seen.add(function)
            name = function.name.value
            if name in _DRAWING or "collate" in name:
                return True
            scopes += [self.scope(call) for call in self.calls_of.get(function, [])]
        return False

    def beside(self, call: cst.Call) -> Path | None:
        """The file of the script's own folder that has the function which a call runs."""
        dotted = self.dotted(call.func)
        if self.folder is None or dotted.split(".")[0] not in self.imports:
            return None
        name = self.name(call.func)
        if name not in self._beside:
            self._beside[name] = next(candidates(self.folder, self.folder, name), None)
        return self._beside[name]

    def file(self, path: Path) -> File:
        """Another file of the folder, read once; what goes wrong is in `File.error`."""
        if path not in self._files:
            self._files[path] = read(path)
        return self._files[path]

    def functions_in(self, path: Path, name: str) -> list[Function]:
        """The functions and methods of that name in another file; none where it is no Python."""
        file = self.file(path)
        if name not in file.text or file.error is not None:
            return []
        return [one for one in file.names.functions if one.name == name]

    @cached_property
    def calls_of(self) -> dict[cst.FunctionDef, list[cst.Call]]:
        """Where each of the script's own functions is called; a class calls its `__init__`."""
        found: dict[cst.FunctionDef, list[cst.Call]] = {}
        made = {
            class_.name.value: function
            for class_ in self.all(cst.ClassDef)
            for function in class_.body.body
            if isinstance(function, cst.FunctionDef) and function.name.value == "__init__"
        }
        for call in self.all(cst.Call):
            function = self.called(call) or made.get(self.dotted(call.func))
            if function is not None:
                found.setdefault(function, []).append(call)
        return found

    def argument(self, call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
        """An argument by its keyword, else by its place."""
        places = []
        for arg in call.args:
            if arg.keyword is not None:
                if arg.keyword.value == name:
                    return arg
            elif arg.star:
                return None
            else:
                places.append(arg)
        return places[position] if position is not None and position < len(places) else None

    def given(self, function: cst.FunctionDef, parameter: str, call: cst.Call) -> Any:
        """The expression that a call gives for a parameter, or None."""
        names = [p.name.value for p in (*function.params.posonly_params, *function.params.params)]
        bound = isinstance(call.func, cst.Attribute) or function.name.value == "__init__"
        if names and names[0] in ("self", "cls") and bound:
            names = names[1:]
        position = names.index(parameter) if parameter in names else None
        arg = self.argument(call, parameter, position)
        return arg.value if arg is not None else None

    def parameters(self, function: Scope) -> set[str]:
        """Names of a function's parameters."""
        if isinstance(function, cst.Module):
            return set()
        params = function.params
        every = (*params.posonly_params, *params.params, *params.kwonly_params)
        return {param.name.value for param in every}


def parse(text: str) -> cst.Module:
    """The tree of a text.

    Raises:
        RecursionError: it is nested too deeply.
        libcst.ParserSyntaxError: LibCST does not know its syntax.
    """
    result: list[cst.Module | Exception] = []

    def work() -> None:
        try:
            result.append(cst.parse_module(text))
        except Exception as error:
            result.append(error)

    before = threading.stack_size(_STACK)
    try:
        thread = threading.Thread(target=work)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]

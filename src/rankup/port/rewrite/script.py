"""A script to be ported: its tree, what its names mean, and which rows its statements take."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import TypeVar

from ...script import roles
from ...script.effects import callee
from ...script.flow import argument, explicit_self
from ...script.names import Function, closed, inside, kept, opened, walk, written
from ...script.roles import LoopNode
from ...script.source import File
from ...script.understand import understand

Node = TypeVar("Node", bound=ast.AST)
Scope = Function | ast.Module
Where = ast.AST | Sequence[ast.AST]  # a node, or the statements of a block
Span = tuple[int, int]
ForNode = ast.For | ast.AsyncFor
_NO_CODE = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
)  # fmt: skip
# Functions that run for each sample, in the processes that load.
ITEMS = frozenset({"__getitem__", "__getitems__"})
_DRAWING = ITEMS | {"__iter__", "__next__"}


class Script:
    """One Python file, read only.

    Args:
        understood: the script that it is a file of, where that is known.

    Attributes:
        understood: the script as the rules see it.
    """

    dotted = staticmethod(written)

    def __init__(self, file: File, understood: roles.Script | None = None) -> None:
        self.file, self.text, self.tree = file, file.text, file.tree
        self.folder = file.path.parent
        self.parents = file.names.parents
        self.code, self.above, self.all = file.code, file.names.up, file.names.all
        self.functions = file.names.functions
        self.understood = understood or understand(file)
        self.flow = self.understood.flow
        self._siblings: dict[File, Script] = {file: self}
        self._called: dict[ast.Call, Function | None] = {}
        self._uses: dict[ast.AST, dict[str, list[ast.Name]]] = {}

    def sibling(self, file: File) -> Script:
        """Another module of the script's, to be read in the same way."""
        if file not in self._siblings:
            self._siblings[file] = one = Script(file, self.understood)
            one._siblings = self._siblings
        return self._siblings[file]

    @cached_property
    def loops(self) -> list[LoopNode]:
        """All loops, in the order of the text."""
        return [one for one in walk(self.tree) if isinstance(one, LoopNode)]

    def inside(self, where: Where, *kinds: type[Node], deep: bool = True) -> Iterator[Node]:
        """Nodes of some kinds in a node or a block; not those of functions in it, unless deep."""
        if isinstance(where, ast.AST):
            return inside(where, kinds=kinds) if deep else iter(kept(where, opened, kinds))
        if deep:
            return inside(*where, kinds=kinds)
        return chain.from_iterable(kept(one, closed, kinds) for one in where)

    def scope(self, node: ast.AST) -> Scope:
        """The function, or else the module, in whose body a node stands."""
        return self.file.names.function(node) or self.tree

    def uses(self, where: ast.AST, name: str) -> list[ast.Name]:
        """The places of a name in a function, a loop or the module, in the order of the text."""
        if where not in self._uses:
            found = self._uses[where] = {}
            for one in self.inside(where, ast.Name):
                found.setdefault(one.id, []).append(one)
        return self._uses[where].get(name, [])

    def owner(self, function: ast.AST) -> ast.ClassDef | None:
        """The class that a method belongs to."""
        for parent in self.above(function):
            if isinstance(parent, ast.ClassDef):
                return parent
            if isinstance(parent, Function):
                return None
        return None

    def statement(self, node: ast.AST) -> ast.AST:
        """The statement that holds a node."""
        return self.file.names.statement(node)

    def row(self, statement: ast.AST) -> list[ast.AST]:
        """The simple statements on the row of one; a compound statement alone."""
        block = self.file.names.block(statement)
        if statement not in block or hasattr(statement, "body"):
            return [statement]
        first = last = at = block.index(statement)  # type: ignore[arg-type]
        while first and block[first - 1].end_lineno == block[first].lineno:
            first -= 1
        while last + 1 < len(block) and block[last + 1].lineno == block[last].end_lineno:
            last += 1
        return list(block[first : last + 1]) if at >= first else [statement]

    def block(self, statement: ast.AST) -> list[ast.AST]:
        """The statements beside a statement, itself included; itself where they share its row."""
        block = self.file.names.block(statement)
        return list(block) if block and self.first_on_line(self.span(block[0])[0]) else [statement]

    def first_on_line(self, offset: int) -> bool:
        """True where nothing but indentation stands before a place in its line."""
        start = max(self.text.rfind("\n", 0, offset), self.text.rfind("\r", 0, offset)) + 1
        return not self.text[start:offset].strip()

    def begins_line(self, statement: ast.AST) -> bool:
        """True where the row of a statement has its lines to itself: not behind `if x:`."""
        return self.first_on_line(self.span(self.row(statement)[0])[0])

    def span(self, node: ast.AST) -> Span:
        """Where a node stands, without the parentheses around it."""
        return self.file.span(node)

    def whole(self, node: ast.AST) -> Span:
        """Where a node stands, with the parentheses around it and what they hold."""
        start, end = self.span(node)
        while (start, end) in self._inside_parentheses:
            start, end = self._inside_parentheses[start, end]
        return start, end

    @cached_property
    def _inside_parentheses(self) -> dict[Span, Span]:
        """Each span in parentheses that only group, and the span with them."""
        tokens: list[tuple[str, int, int]] = []
        found: dict[Span, Span] = {}
        opened: list[int] = []
        with suppress(tokenize.TokenError, SyntaxError):
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type in _NO_CODE or not token.string:  # a dedent behind the end
                    continue
                start = self.file.starts[token.start[0] - 1] + token.start[1]
                end = start + len(token.string)
                if token.string in (")", "]", "}") and opened:
                    first = opened.pop()
                    before = tokens[first - 1][0] if first else ""
                    called = before[-1:] in ("'", '"', ")", "]", "}") or (
                        before.isidentifier() and not keyword.iskeyword(before)
                    )
                    if token.string == ")" and not called and len(tokens) > first + 1:
                        inner = (tokens[first + 1][1], tokens[-1][2])
                        found[inner] = (tokens[first][1], end)
                elif token.string in ("(", "[", "{"):
                    opened.append(len(tokens))
                tokens.append((token.string, start, end))
        return found

    def line(self, node: ast.AST) -> int:
        """The line, from 1, in which a node starts."""
        return self.file.line(node)[0]

    def name(self, node: ast.AST) -> str:
        """The full name of a dotted expression, by the script's imports: of `F.relu`
        `torch.nn.functional.relu`; empty where it is something else."""
        known = self.file.names.dotted(node).removeprefix("builtins.")
        return known or self.dotted(node)

    @cached_property
    def modules(self) -> set[str]:
        """First names of all modules that are imported anywhere."""
        return {name.lstrip(".").split(".")[0] for name in self.file.names.imported}

    def called(self, call: ast.Call) -> Function | None:
        """The function of this script that a call runs."""
        if call not in self._called:
            self._called[call] = self._find_called(call)
        return self._called[call]

    def _find_called(self, call: ast.Call) -> Function | None:
        found = self.flow.definition(self.file, call.func)
        if found is None and isinstance(call.func, ast.Attribute):
            found = self.flow.method(self.file, call.func.value, call.func.attr)
        if found is None or found[0] is not self.file or isinstance(found[1], ast.ClassDef):
            return None
        return found[1]

    def per_sample(self, node: ast.AST, within: frozenset[str] = _DRAWING) -> bool:
        """True of what runs as samples are drawn: in `__getitem__` and alike, or called there."""
        seen: set[ast.AST] = set()
        scopes: list[ast.AST] = [self.scope(node)]
        while scopes:
            function = scopes.pop()
            if function in seen or not isinstance(function, Function):
                continue
            seen.add(function)
            if function.name in within or "collate" in function.name:
                return True
            scopes += [self.scope(call) for call in self.calls_of.get(function, [])]
        return False

    @cached_property
    def calls_of(self) -> dict[Function, list[ast.Call]]:
        """Where functions of the script's files are called here; a class calls its `__init__`."""
        found: dict[Function, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            function = self.called(call)
            if function is None and (other := callee(self.flow, self.file, call)) is not None:
                function = other[1]
            if function is not None:
                found.setdefault(function, []).append(call)
        return found

    @cached_property
    def assigned_texts(self) -> set[str]:
        """The text of all that assignments of this file give values."""
        return {self.code(target) for one in self.all(ast.Assign) for target in one.targets}

    @cached_property
    def called_names(self) -> set[str]:
        """How this file writes what it calls."""
        return {self.dotted(call.func) for call in self.all(ast.Call)}

    def callers(self, function: Function) -> list[tuple[Script, ast.Call]]:
        """The calls of a function of this file in all files that a port changes."""
        files = [self, *(self.sibling(one) for one in self.understood.to_port if one != self.file)]
        return [(one, call) for one in files for call in one.calls_of.get(function, [])]

    def given(self, function: Function, parameter: str, call: ast.Call) -> ast.expr | None:
        """The expression that a call gives for a parameter, or None."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if names and names[0] in ("self", "cls") and not explicit_self(call):
            names = names[1:]
        return argument(call, parameter, names.index(parameter) if parameter in names else None)

    def assigned(self, name: str, scope: Scope) -> list[tuple[ast.AST, ast.expr]]:
        """Assignments to a name in a scope (of an attribute of self: anywhere in its class)."""
        names, found = self.file.names, list[tuple[ast.AST, ast.expr]]()
        owner, _, attribute = name.rpartition(".")
        class_ = self.owner(scope) if owner == "self" else None
        if owner and class_ is None:
            for node in self.all(ast.Assign):
                if self.scope(node) is scope and name in map(self.dotted, node.targets):
                    found.append((node, node.value))
            return found
        bound = names.attributes(class_) if class_ is not None else names.members(scope)
        for one in bound.get(attribute, ()):
            statement, value = names.statement(one.target), one.node
            if one.kind != "value" or not isinstance(statement, ast.Assign | ast.AnnAssign):
                continue
            for place in one.path:  # `a, b = 1, 2`; all of `a, b = pair`
                parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                if place >= len(parts) or any(isinstance(part, ast.Starred) for part in parts):
                    break
                value = parts[place]
            assert isinstance(value, ast.expr)
            found.append((statement, value))
        return found

    def parameters(self, function: Scope) -> set[str]:
        """Names of a function's parameters, without `*` and `**`."""
        if isinstance(function, ast.Module):
            return set()
        args = function.args
        return {one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)}

"""Constant propagation: the values that an expression may have, as far as the text tells.

An expression may have several values (in a loop over names, or in a function that is called with
several); all of them are given. What is not known says why. Nothing of the script is executed.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from .flow import Flow, call_name, explicit_self, receiver
from .names import Binding, Function, default, written
from .source import File
from .values import (
    COMPUTED,
    EXISTS,
    FIRST,
    INVOLVED,
    JOINS,
    METHODS,
    MOST_VALUES,
    OPERATORS,
    Known,
    Unknown,
    Value,
    at,
    combined,
    compared,
    formatted,
    join_path,
    joined,
)

_MOST_STEPS = 300_000  # of one script: seconds
_MOST_DEPTH = 60
_MOST_BINDINGS = 30  # of one name
_MOST_CONDITIONS = 100  # without the others code only seems to run more often


Condition: TypeAlias = tuple[ast.expr, bool]  # a test, and the outcome that code below it needs
_PARSERS = re.compile("pars|args|cli", re.IGNORECASE)  # of the name of what gives the options
_SPREAD = ast.Name("*", ast.Load())  # `*words`: which of them is passed, is not known


class Constants:
    """Evaluates expressions of a script and its local modules.

    Args:
        folder: where the script is started; paths are relative to it.

    Attributes:
        options: the values of the attributes of the parsed command line, by name.
    """

    def __init__(self, flow: Flow, folder: Path) -> None:
        self.flow = flow
        self.options: Mapping[str, Value] = {}  # known once the parser's calls are evaluated
        self._folder = folder
        self._steps = 0
        self._busy: set[Binding] = set()
        self._conditions: dict[File, dict[ast.AST, tuple[Condition, ...]]] = {}
        self._callers: dict[Function, list[tuple[File, ast.Call]]] = {}

    def of(self, file: File, node: ast.AST | None, depth: int = 0) -> Value:
        """The values of an expression."""
        self._steps += 1
        if node is None or depth > _MOST_DEPTH or self._steps > _MOST_STEPS:
            return INVOLVED
        below = depth + 1
        match node:
            case ast.Constant(value=value):
                return Known((value,))
            case ast.Name(id=name):
                return self._name(file, node, name, below)
            case ast.Attribute():
                return self._attribute(file, node, below)
            case ast.JoinedStr(values=parts):
                return self._combined(file, parts, below, joined)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self.of(file, inner, below)
            case ast.BinOp(op=ast.Mod(), right=ast.Tuple(elts=parts)):
                return self._combined(file, [node.left, *parts], below, formatted)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return self._combined(file, [left, right], below, OPERATORS[type(op)])
            case ast.BoolOp(op=ast.Or(), values=parts):
                return self._first_true(file, parts, below)
            case ast.IfExp():
                truth = self.truth(file, node.test, below)
                if truth is None:
                    return Unknown("it depends on a condition")
                return self.of(file, node.body if truth else node.orelse, below)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return self._combined(file, parts, below, lambda *values: values)
            case ast.Subscript():
                return self._item(file, node, below)
            case ast.Call():
                return self._call(file, node, below)
            case ast.NamedExpr(value=inner):
                return self.of(file, inner, below)
        return COMPUTED

    def truth(self, file: File, test: ast.expr, depth: int = 0) -> bool | None:
        """True where a condition holds, False where it does not; None where that is not known."""
        below = depth + 1
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.truth(file, operand, below)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=parts):
                known = [self.truth(file, part, below) for part in parts]
                decides = isinstance(op, ast.Or)
                if decides in known:
                    return decides
                return None if None in known else not decides
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compared(op, self.of(file, left, below), self.of(file, right, below))
        return self.of(file, test, below).truth

    def happens(self, file: File, node: ast.AST, depth: int = 0) -> bool | None:
        """True where code runs under the conditions above it; None where that is not known."""
        certain: bool | None = True
        for test, outcome in self._above(file, node):
            found = self.truth(file, test, depth + 1)
            if found is None:
                certain = None
            elif found != outcome:
                return False
        return certain

    def exists(self, text: object) -> bool:
        """True where something lies at a path, as the script would see it.

        Raises:
            TypeError: `text` is no text.
        """
        if not isinstance(text, str):
            raise TypeError
        try:
            return os.path.lexists(self._folder / os.path.expanduser(text))
        except ValueError:  # a null byte
            return False

    # Names: the value of the only binding, or of the last where all of them happen.

    def _name(self, file: File, node: ast.AST, name: str, depth: int) -> Value:
        _, bindings = file.names.bindings(name, file.names.scope(node))
        if bindings:
            return self._bound(file, name, bindings, depth)
        if name == "__name__":
            return Known((self.flow.name(file),))
        if name == "__file__":
            return Known((str(file.path),))
        dotted = self.flow.starred(file, name)
        return self._named(dotted, depth) if dotted else Unknown(f"{name} is not set here")

    def _bound(self, file: File, name: str, bindings: Sequence[Binding], depth: int) -> Value:
        if len(bindings) > _MOST_BINDINGS:
            return Unknown(f"{name} is set in {len(bindings)} places")
        possible, certain = list(bindings), True
        if len(bindings) > 1:
            happening = {one: self.happens(file, one.target, depth + 1) for one in bindings}
            possible = [one for one in bindings if happening[one] is not False]
            certain = None not in happening.values()
        if not possible:
            return Unknown(f"{name} is not set with these arguments")
        functions = {file.names.function(one.target) for one in possible}
        if len(functions) > 1 or (len(possible) > 1 and not certain):
            lines = sorted({file.line(one.target)[0] for one in possible})
            return Unknown(f"{name} is set in lines {', '.join(map(str, lines))}")
        binding = possible[-1]
        if binding in self._busy:  # `name = name + x`
            return Unknown(f"{name} is computed")
        self._busy.add(binding)
        try:
            found = self._binding(file, name, binding, depth)
        finally:
            self._busy.discard(binding)
        if found == COMPUTED:
            return Unknown(f"{name} is computed in line {file.line(binding.target)[0]}")
        return found

    def _binding(self, file: File, name: str, binding: Binding, depth: int) -> Value:
        match binding.kind:
            case "import":
                return self._named(self.flow.absolute(file, binding.dotted), depth)
            case "parameter":
                assert isinstance(binding.node, ast.arg)
                return self._parameter(file, binding.node, depth)
            case "value":
                return at(self.of(file, binding.node, depth + 1), binding.path)
            case "item":
                found = self.of(file, binding.node, depth + 1)
                if isinstance(found, Unknown):
                    return found
                items = [item for one in found.values if isinstance(one, tuple) for item in one]
                if not items or len(items) > MOST_VALUES:
                    line = file.line(binding.target)[0]
                    return Unknown(f"{name} is set in a loop, in line {line}")
                return at(Known(tuple(items)), binding.path)
        return COMPUTED

    def _named(self, dotted: str, depth: int) -> Value:
        """The value of a name of a local module, or of a class in one."""
        place = self.flow.find(dotted)
        if place is None:
            return Unknown(f"{dotted} is not of this script")
        file, rest = place
        members = file.names.members(file.tree)
        if len(rest) == 1 and rest[0] in members:
            return self._bound(file, rest[0], members[rest[0]], depth + 1)
        if len(rest) == 2:
            for one in members.get(rest[0], ()):
                if isinstance(one.node, ast.ClassDef):
                    return self._member(file, one.node, rest[1], depth + 1)
        return Unknown(f"{dotted} is not a constant")

    def _attribute(self, file: File, node: ast.Attribute, depth: int) -> Value:
        if node.attr in self._stored:
            return Unknown(f"{written(node) or node.attr} is set in line {self._stored[node.attr]}")
        owner = self.flow.owner(file, node.value)
        if owner is not None:
            where, class_, made = owner
            if made is not None and not self.flow.members(where, class_, "__init__")[1]:
                for keyword in made[1].keywords:  # of a dataclass
                    if keyword.arg == node.attr:
                        return self.of(made[0], keyword.value, depth + 1)
            if self.flow.members(where, class_, node.attr)[1]:
                return self._member(where, class_, node.attr, depth + 1)
        dotted = self.flow.full_name(file, node)
        if dotted and self.flow.find(dotted) is not None:
            return self._named(dotted, depth)
        if dotted and "(" not in dotted:
            return Unknown(f"{dotted} is not of this script")
        if node.attr == "parent":
            return self._combined(file, [node.value], depth, lambda path: os.path.dirname(path))
        # A library's object is no parsed command line, unless a parser has made it.
        if node.attr in self.options and (not dotted or _PARSERS.search(dotted)):
            return self.options[node.attr]
        return Unknown(f"{written(node) or node.attr} is not known")

    @cached_property
    def _stored(self) -> dict[str, int]:
        """The attributes that are set on objects from outside (`args.name = …`), with a line."""
        return {
            node.attr: node.lineno
            for file in self.flow.files
            for node in file.names.all(ast.Attribute)
            if isinstance(node.ctx, ast.Store)
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        }

    def _member(self, file: File, owner: ast.ClassDef, name: str, depth: int) -> Value:
        where, bindings = self.flow.members(file, owner, name)
        if not bindings:
            return Unknown(f"{name} is not known")
        functions = {one: where.names.function(one.target) for one in bindings}
        if "__init__" in (getattr(one, "name", "") for one in functions.values()):
            # What the class itself says holds until then.
            around = where.names.function(owner)
            bindings = [one for one in bindings if functions[one] is not around]
        return self._bound(where, name, bindings, depth + 1)

    # Parameters: the values that all calls of the function pass.

    def _parameter(self, file: File, parameter: ast.arg, depth: int) -> Value:
        function, name = file.names.parents[file.names.parents[parameter]], parameter.arg
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        starred = (function.args.vararg, function.args.kwarg)
        if parameter in starred:
            return COMPUTED
        title = "a lambda" if isinstance(function, ast.Lambda) else function.name
        usual = default(function.args, parameter)
        calls = [] if isinstance(function, ast.Lambda) else self._calls(file, function, depth)
        found: dict[Any, None] = {}
        for where, call in calls:
            passed = _passed(call, parameter, function)
            if passed is _SPREAD:
                return Unknown(f"{name} is an argument of {title}, whose calls are computed")
            if passed is None and usual is None:
                continue
            value = self.of(where, passed, depth + 1) if passed else self.of(file, usual, depth + 1)
            if isinstance(value, Unknown):
                return value
            found.update(dict.fromkeys(value.values))
            if len(found) > MOST_VALUES:
                return INVOLVED
        if found:
            return Known(tuple(found))
        if usual is not None and not calls:
            return self.of(file, usual, depth + 1)
        why = "whose calls do not give it" if calls else "which nothing calls"
        return Unknown(f"{name} is an argument of {title}, {why}")

    def _calls(self, file: File, function: Function, depth: int) -> list[tuple[File, ast.Call]]:
        """The calls of a function that may happen."""
        if function not in self._callers:
            found = list(self.flow.callers.get(function, ()))
            owner = file.names.parents[function]
            if isinstance(owner, ast.ClassDef):
                found = [one for one in found if not _of_super(*one, owner)]
                found += self._calls_by_class(function, {call for _, call in found})
            self._callers[function] = found
        return [
            (where, call)
            for where, call in self._callers[function]
            if self.happens(where, call, depth + 1) is not False
        ]

    def _calls_by_class(
        self, function: Function, known: set[ast.Call]
    ) -> Iterator[tuple[File, ast.Call]]:
        """The calls of a method whose name alone does not tell whose method it is."""
        for file, call, owned in self._method_calls.get(function.name, ()):
            owner = None if call in known else self.flow.owner(file, owned)
            if owner is not None:
                _, bound = self.flow.members(owner[0], owner[1], function.name)
                if any(one.node is function for one in bound):
                    yield file, call

    @cached_property
    def _method_calls(self) -> dict[str, list[tuple[File, ast.Call, ast.expr]]]:
        found: dict[str, list[tuple[File, ast.Call, ast.expr]]] = {}
        for file in self.flow.files:
            for call in file.names.all(ast.Call):
                if (owner := receiver(call)) is not None:
                    found.setdefault(call_name(call), []).append((file, call, owner))
        return found

    # Expressions of several parts: all that can be made of the values of the parts.

    def _combined(
        self, file: File, parts: Sequence[ast.expr], depth: int, make: Callable[..., Any]
    ) -> Value:
        values: list[Value] = []
        for part in parts:
            values.append(self.of(file, part, depth))
            if isinstance(values[-1], Unknown):
                break
        return combined(values, make)

    def _first_true(self, file: File, parts: Sequence[ast.expr], depth: int) -> Value:
        found: Value = INVOLVED
        for part in parts:
            found = self.of(file, part, depth)
            if isinstance(found, Unknown) or all(found.values):
                return found
            if any(found.values):
                return Unknown("it depends on a condition")
        return found

    def _item(self, file: File, node: ast.Subscript, depth: int) -> Value:
        origins = self.flow.origins(file, node.value)
        if len(origins) == 1 and isinstance(origins[0].node, ast.Dict):
            where, table = origins[0].file, origins[0].node
            wanted = self.of(file, node.slice, depth)
            if isinstance(wanted, Unknown):
                return wanted
            for name, value in zip(table.keys, table.values, strict=True):
                if name is not None and self.of(where, name, depth) == wanted:
                    return self.of(where, value, depth)
            return Unknown("it is in no table here")
        if self.flow.full_name(file, node.value) == "os.environ":
            return self._variable(file, node.slice, depth)
        return self._combined(file, [node.value, node.slice], depth, lambda row, key: row[key])

    def _variable(self, file: File, name: ast.expr, depth: int) -> Unknown:
        """The job's environment is not this one: of a variable only its name is known."""
        found = self.of(file, name, depth)
        return (
            Unknown(f"it depends on ${found.values[0]}") if isinstance(found, Known) else COMPUTED
        )

    def _call(self, file: File, node: ast.Call, depth: int) -> Value:
        """The values of calls that make names and paths: by their full names, else by methods'."""
        if any(isinstance(one, ast.Starred) for one in node.args):
            return COMPUTED
        dotted = self.flow.full_name(file, node.func)
        if dotted in ("os.getenv", "os.environ.get") and node.args:
            return self._variable(file, node.args[0], depth)
        parts, make = node.args[:1], FIRST.get(dotted)
        if dotted in EXISTS:
            make = self.exists
        elif dotted in JOINS:
            parts, make = node.args, join_path
        elif make is None and isinstance(node.func, ast.Attribute) and not node.keywords:
            parts, make = [node.func.value, *node.args], METHODS.get(node.func.attr)
            if node.func.attr in ("exists", "is_file", "is_dir"):
                make = self.exists
        return COMPUTED if make is None else self._combined(file, parts, depth, make)

    # Conditions: the tests of `if` around a place, and of those above it that leave.

    def _above(self, file: File, node: ast.AST) -> list[Condition]:
        if file not in self._conditions:
            self._conditions[file] = _conditions(file.tree)
        known, found, below = self._conditions[file], list[Condition](), node
        while below not in known:
            up = file.names.parents.get(below)
            if up is None:
                break
            if isinstance(up, ast.IfExp) and below is not up.test:
                found.append((up.test, below is up.body))
            below = up
        return [*known.get(below, ()), *found][:_MOST_CONDITIONS]


def _conditions(tree: ast.Module) -> dict[ast.AST, tuple[Condition, ...]]:
    """The conditions under which each statement runs."""
    found: dict[ast.AST, tuple[Condition, ...]] = {}
    waiting: list[tuple[list[ast.stmt], tuple[Condition, ...]]] = [(tree.body, ())]
    while waiting:
        block, above = waiting.pop()
        for one in block:
            found[one] = above
            waiting += [(inner, (*above, *more)) for inner, more in _blocks(one)]
            # `if x: return` is an `else` around all that follows.
            if isinstance(one, ast.If) and not one.orelse and _leaves(one.body):
                above = (*above, (one.test, False))[:_MOST_CONDITIONS]
    return found


def _blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], tuple[Condition, ...]]]:
    if isinstance(node, ast.If):
        yield node.body, ((node.test, True),)
        yield node.orelse, ((node.test, False),)
        return
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, []), ()
    for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield inner.body, ()


def _leaves(block: list[ast.stmt]) -> bool:
    return isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _passed(call: ast.Call, parameter: ast.arg, function: Function | ast.Lambda) -> ast.expr | None:
    """The argument that a call passes for a parameter; `_SPREAD` where `*words` or `**words` do."""
    for keyword in call.keywords:
        if keyword.arg == parameter.arg:
            return keyword.value
        if keyword.arg is None:
            return _SPREAD
    positional = [*function.args.posonlyargs, *function.args.args]
    if parameter not in positional:
        return None
    bound = positional[0].arg in ("self", "cls") and not explicit_self(call)
    place = positional.index(parameter) - bound
    if any(isinstance(one, ast.Starred) for one in call.args[: place + 1]):
        return _SPREAD
    return call.args[place] if 0 <= place < len(call.args) else None


def _of_super(file: File, call: ast.Call, owner: ast.ClassDef) -> bool:
    """True of `super().method(…)` in the class itself: it calls that of a class above."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return file.names.enclosing(call, ast.ClassDef) is owner
    return False

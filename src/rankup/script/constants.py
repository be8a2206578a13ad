"""Constant propagation: the values that an expression may have, as far as the text tells.

An expression may have several values (in a loop over names, or in a function that is called with
several); all of them are given. What is not known says why. Nothing of the script is executed:
names are followed by `Flow`, here under the conditions above a place and with the command line.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from .flow import Flow, Origin, call_name, receiver
from .flow import Path as Passed
from .names import Binding, Function, written
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
_MOST_HOPS = 20  # from one name to the next
_MOST_BINDINGS = 30  # of one name
_MOST_CONDITIONS = 100  # without the others code only seems to run more often


Condition: TypeAlias = tuple[ast.expr, bool]  # a test, and the outcome that code below it needs
_PARSERS = re.compile("pars|args|cli", re.IGNORECASE)  # of the name of what gives the options
_ACTIONS = {"store", "store_true", "store_false", "store_const", "append", "count"}
_TYPES = {"str": str, "int": int, "float": float}


class _Unsure(Exception):  # noqa: N818 - caught here
    """It is not known which of several values a name has; holds why."""


class Constants(Flow):
    """Evaluates expressions of a script and its local modules.

    Args:
        folder: where the script is started; paths are relative to it.
        args: its command line.
    """

    exact = True

    def __init__(self, files: Sequence[File], folder: Path, args: tuple[str, ...] = ()) -> None:
        super().__init__(files)
        self._folder = folder
        self._steps = 0
        self._busy: set[ast.AST] = set()  # names that are followed
        self._tests: set[ast.AST] = set()  # conditions that are evaluated
        self._conditions: dict[File, dict[ast.AST, tuple[Condition, ...]]] = {}
        self._calls: dict[Function, list[tuple[File, ast.Call]]] = {}
        # The values of the attributes of the parsed command line, by name.
        self._options: Mapping[str, Value] = {}
        self._options = _options(self, args)
        self._known.clear()
        self._known_names.clear()

    def of(self, file: File, node: ast.AST | None, depth: int = 0) -> Value:
        """The values of an expression."""
        self._steps += 1
        if node is None or depth > _MOST_DEPTH or self._steps > _MOST_STEPS:
            return INVOLVED
        below = depth + 1
        match node:
            case ast.Constant(value=value):
                return Known((value,))
            case ast.Name() | ast.Attribute():
                return self._followed(file, node, below)
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
                return self._called(file, node, below)
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

    def happens(self, file: File, node: ast.AST) -> bool | None:
        """True where code runs under the conditions above it; None where that is not known."""
        certain: bool | None = True
        for test, outcome in self._above(file, node):
            if test in self._tests:
                certain = None
                continue
            self._tests.add(test)
            found = self.truth(file, test)
            self._tests.discard(test)
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

    def full_name(self, file: File, node: ast.AST, hops: int = 0) -> str:
        """The full name of something that no file of the script defines itself, else empty.

        It is followed through variables and through what local modules import. What a call returns
        has the name of what is called with `()` behind it: `requests.Session().get`.
        """
        if hops > _MOST_HOPS:
            return ""
        if isinstance(node, ast.Name | ast.Attribute):
            made = (one for one in self.origins(file, node) if one.node is not node)
            found = (self.full_name(one.file, one.node, hops + 1) for one in made)
            if followed := next(filter(None, found), ""):
                return followed
        match node:
            case ast.alias():
                return self.absolute(file, file.names.dotted(node))
            case ast.Call(func=func):
                inner = self.full_name(file, func, hops + 1)
                return f"{inner}()" if inner else ""
            case ast.Attribute(value=value, attr=attr):
                inner = self.full_name(file, value, hops + 1)
                return f"{inner}.{attr}" if inner else ""
            case ast.Name(id=name) if not file.names.bindings(name, file.names.scope(node))[1]:
                foreign = [one for one in file.names.stars if self.module(file, one) is None]
                known = file.names.dotted(node)
                starred = foreign and not known.startswith("builtins.")
                return f"{self.absolute(file, foreign[-1])}.{name}" if starred else known
        return ""

    # Names: the only binding gives the value, or the last where all of them happen.

    def origins(self, file: File, node: ast.AST) -> tuple[Origin, ...]:
        """As `Flow.origins`; what is not known comes from nowhere else."""
        try:
            return super().origins(file, node)
        except _Unsure:
            return (Origin(file, node),)

    def _follow(self, file: File, node: ast.AST, path: Passed, left: int) -> list[Origin]:
        found = [Origin(file, node)]
        if isinstance(node, ast.Name | ast.Attribute | ast.Call):
            found = super()._follow(file, node, path, left)
        # Which of several values a call returns depends on what it does.
        return [Origin(file, node)] if isinstance(node, ast.Call) and len(found) > 1 else found

    def possible(self, file: File, bindings: Sequence[Binding]) -> Sequence[Binding]:
        """The binding that gives a name its value."""
        if len(bindings) < 2:
            return bindings
        for one in bindings:  # what is set where an import fails is not what will be used
            if one.kind == "import":
                return [one]
        name = written(bindings[0].target) or getattr(bindings[0].target, "arg", "it")
        if len(bindings) > _MOST_BINDINGS:
            raise _Unsure(f"{name} is set in {len(bindings)} places")
        happening = {one: self.happens(file, one.target) for one in bindings}
        found = [one for one in bindings if happening[one] is not False]
        functions = {file.names.function(one.target) for one in found}
        certain = None not in happening.values()
        if len(functions) > 1 or (len(found) > 1 and not certain):
            lines = sorted({file.line(one.target)[0] for one in found})
            raise _Unsure(f"{name} is set in lines {', '.join(map(str, lines))}")
        return found[-1:]

    def calls_of(self, file: File, function: Function) -> Sequence[tuple[File, ast.Call]]:
        """The calls of a function that may happen."""
        if function not in self._calls:
            found = self._calls[function] = list(self.callers.get(function, ()))
            owner = file.names.parents[function]
            if isinstance(owner, ast.ClassDef):
                found[:] = [one for one in found if not _of_super(*one, owner)]
                known = {call for _, call in found}
                for where, call, value in self._method_calls.get(function.name, ()):
                    if call not in known and self.method(where, value, function.name) == (
                        file,
                        function,
                    ):
                        found.append((where, call))
        return [one for one in self._calls[function] if self.happens(*one) is not False]

    @cached_property
    def _method_calls(self) -> dict[str, list[tuple[File, ast.Call, ast.expr]]]:
        found: dict[str, list[tuple[File, ast.Call, ast.expr]]] = {}
        for file in self.files:
            for call in file.names.all(ast.Call):
                if (owner := receiver(call)) is not None:
                    found.setdefault(call_name(call), []).append((file, call, owner))
        return found

    def _followed(self, file: File, node: ast.Name | ast.Attribute, depth: int) -> Value:
        name = written(node) or getattr(node, "attr", "")
        if isinstance(node, ast.Attribute) and node.attr in self._stored:
            return Unknown(f"{name} is set in line {self._stored[node.attr]}")
        if node in self._busy:  # `name = name + x`
            return Unknown(f"{name} is computed")
        found: dict[Any, None] = {}
        self._busy.add(node)
        try:
            for origin in super().origins(file, node):
                value = self._made(file, node, origin, depth)
                if value is COMPUTED and isinstance(node, ast.Name):
                    line = f"line {origin.file.line(origin.node)[0]}"
                    place = line if origin.file is file else origin.file.short_place(origin.node)
                    return Unknown(f"{name} is computed in {place}")
                if isinstance(value, Unknown):
                    return value
                found.update(dict.fromkeys(value.values))
        except _Unsure as why:
            return Unknown(str(why))
        finally:
            self._busy.discard(node)
        return Known(tuple(found)) if 0 < len(found) <= MOST_VALUES else INVOLVED

    def _made(
        self, file: File, node: ast.Name | ast.Attribute, origin: Origin, depth: int
    ) -> Value:
        """The values of one of the things that a name comes from."""
        where, made = origin.file, origin.node
        match made:
            case ast.Name(id="__name__"):
                return Known((self.name(where),))
            case ast.Name(id="__file__"):
                return Known((str(where.path),))
            case ast.Name(id=name):
                return self._iterated_over(where, made, depth)
            case ast.arg(arg=name):
                function = where.names.parents[where.names.parents[made]]
                title = getattr(function, "name", "a lambda")
                called = isinstance(function, Function) and self.calls_of(where, function)
                why = "whose calls do not give it" if called else "which nothing calls"
                return Unknown(f"{name} is an argument of {title}, {why}")
            case ast.Attribute() if made is not node:
                return self._followed(where, made, depth)
            case ast.Attribute():
                return self._of_no_file(where, made, depth)
            case ast.alias():
                return Unknown(f"{self.full_name(file, node)} is not of this script")
        return self.of(where, made, depth)

    def _iterated_over(self, file: File, name: ast.Name, depth: int) -> Value:
        """The values of a name that a loop over something else than a list binds, if one does."""
        _, bindings = file.names.bindings(name.id, file.names.scope(name))
        loop = next((one for one in bindings if one.kind == "item" and one.target is name), None)
        if loop is None:
            return Unknown(f"{name.id} is not set here")
        found = self.of(file, loop.node, depth)
        if isinstance(found, Unknown):
            return found
        items = [item for one in found.values if isinstance(one, tuple) for item in one]
        if not items or len(items) > MOST_VALUES:
            return Unknown(f"{name.id} is set in a loop, in line {file.line(name)[0]}")
        return at(Known(tuple(items)), loop.path)

    def _of_no_file(self, file: File, node: ast.Attribute, depth: int) -> Value:
        """The values of an attribute that no file of the script sets: an option, or of a path."""
        dotted = self.full_name(file, node)
        if dotted and "(" not in dotted:
            return Unknown(f"{dotted} is not of this script")
        if node.attr == "parent":
            return self._combined(file, [node.value], depth, lambda path: os.path.dirname(path))
        # A library's object is no parsed command line, unless a parser has made it.
        mine = self.class_of(file, node.value) is not None
        if node.attr in self._options and not mine and (not dotted or _PARSERS.search(dotted)):
            return self._options[node.attr]
        return Unknown(f"{written(node) or node.attr} is not known")

    @cached_property
    def _stored(self) -> dict[str, int]:
        """The attributes that are set on objects from outside (`args.name = …`), with a line."""
        return {
            node.attr: node.lineno
            for file in self.files
            for node in file.names.all(ast.Attribute)
            if isinstance(node.ctx, ast.Store)
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        }

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
        origins = self.origins(file, node.value)
        if len(origins) == 1 and isinstance(origins[0].node, ast.Dict):
            where, table = origins[0].file, origins[0].node
            wanted = self.of(file, node.slice, depth)
            if isinstance(wanted, Unknown):
                return wanted
            for name, value in zip(table.keys, table.values, strict=True):
                if name is not None and self.of(where, name, depth) == wanted:
                    return self.of(where, value, depth)
            return Unknown("it is in no table here")
        if self.full_name(file, node.value) == "os.environ":
            return self._variable(file, node.slice, depth)
        return self._combined(file, [node.value, node.slice], depth, lambda row, key: row[key])

    def _variable(self, file: File, name: ast.expr, depth: int) -> Unknown:
        """The job's environment is not this one: of a variable only its name is known."""
        found = self.of(file, name, depth)
        return (
            Unknown(f"it depends on ${found.values[0]}") if isinstance(found, Known) else COMPUTED
        )

    def _called(self, file: File, node: ast.Call, depth: int) -> Value:
        """The values of calls that make names and paths: by their full names, else by methods'."""
        if any(isinstance(one, ast.Starred) for one in node.args):
            return COMPUTED
        dotted = self.full_name(file, node.func)
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
        if make is not None:
            return self._combined(file, parts, depth, make)
        made = self.origins(file, node)[0]  # of a function that returns one thing
        return COMPUTED if made.node is node else self.of(made.file, made.node, depth)

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


def _of_super(file: File, call: ast.Call, owner: ast.ClassDef) -> bool:
    """True of `super().method(…)` in the class itself: it calls that of a class above."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return file.names.enclosing(call, ast.ClassDef) is owner
    return False


# The command line: argparse itself parses, by a parser that is built anew from the script's calls.


class _Refused(Exception):  # noqa: N818 - caught here
    """The arguments do not fit."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def _options(constants: Constants, args: tuple[str, ...]) -> dict[str, Value]:
    """The values of the attributes of the parsed arguments, by name.

    For parsers other than argparse, `--name value` gives an attribute of that name its value.
    """
    calls = [
        (file, call)
        for file in constants.files
        for call in file.names.all(ast.Call)
        if isinstance(call.func, ast.Attribute) and call_name(call) == "add_argument"
    ]
    found: dict[str, Value] = {name: Known((value,)) for name, value in _given(args)}
    for positional in (True, False):
        parser = _Parser(add_help=False, conflict_handler="resolve")
        for file, call in calls:
            _add(parser, constants, file, call, positional=positional)
        try:
            parsed = vars(parser.parse_known_args(list(args))[0])
        except (_Refused, TypeError, ValueError, AssertionError):
            continue
        return {**found, **{name: _value(name, one) for name, one in parsed.items()}}
    return found


def _given(args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """`--name value` and `--name=value`, with `-` within names read as `_`."""
    for word, following in zip(args, [*args[1:], "--"], strict=False):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if equals or not following.startswith("-"):
                yield name.replace("-", "_"), value if equals else following


def _add(
    parser: _Parser, constants: Constants, file: File, call: ast.Call, *, positional: bool
) -> None:
    names = [constants.of(file, one).text for one in call.args]
    if not names or not all(names):
        return
    is_option = names[0].startswith("-")
    if not (is_option or positional):
        return
    keywords = dict(_keywords(constants, file, call, is_option=is_option))
    if not is_option and "nargs" not in keywords:
        keywords["nargs"] = "?"  # that it is missing is no reason to know nothing of the others
    try:
        parser.add_argument(*names, **keywords)
    except (TypeError, ValueError, argparse.ArgumentError):
        return


def _keywords(
    constants: Constants, file: File, call: ast.Call, *, is_option: bool
) -> Iterator[tuple[str, Any]]:
    given = {one.arg: one.value for one in call.keywords if one.arg is not None}
    values = {name: constants.of(file, node) for name, node in given.items()}
    default = values.get("default", Known((None,)))  # as argparse's own
    if "default" not in given and ("required" in given or not is_option):
        default = Unknown("it is given on the command line")
    action: Any = values["action"].text if "action" in given else "store"
    if action not in _ACTIONS:
        named = constants.full_name(file, given["action"])
        boolean = named == "argparse.BooleanOptionalAction"
        action = argparse.BooleanOptionalAction if boolean else "store"
    yield "action", action
    if action not in ("store_true", "store_false") or "default" in given:
        yield "default", default.values[0] if len(default.values) == 1 else default
    for name in ("dest", "nargs", "const"):
        fits = name != "nargs" or action in ("store", "append")
        if fits and name in given and len(values[name].values) == 1:
            yield name, values[name].values[0]
    kind = given.get("type")
    if action in ("store", "append") and isinstance(kind, ast.Name) and kind.id in _TYPES:
        yield "type", _TYPES[kind.id]


def _value(name: str, found: Any) -> Value:
    """The value of an attribute; a default that is not known has gone through argparse as it is."""
    if isinstance(found, Unknown):
        return Unknown(f"{name}: {found.why}")
    if isinstance(found, Known):
        return found
    return Known((tuple(found) if isinstance(found, list) else found,))

"""What an expression is worth, as far as that stands in the script and its arguments.

An expression may be worth several things (in a loop over names, or in a function that is called
with several); all of them are given. What is not known says why. Nothing of the script is executed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import expressions
from .names import Names
from .operations import compared
from .parameters import SPREAD, default_of, given
from .scopes import Binding, Call, File, Guard, Scope
from .worth import COMPUTED, INVOLVED, MOST_VALUES, Known, Options, Unknown, Value, at

MOST_STEPS = 300_000  # of one reading: seconds
_MOST_DEPTH = 60


class Values:
    """Evaluates expressions of a project; those of several parts in `expressions`.

    Args:
        options: what the attributes of the parsed command line are worth.
        said: `--name value` of the command line, for parsers that are not argparse.
        folder: where the script is started; paths are relative to it.
    """

    def __init__(
        self, files: Mapping[str, File], said: Mapping[str, str], folder: Path = Path()
    ) -> None:
        self.names = Names(files)
        self.options: Options = {}  # filled in once the parser's calls have been evaluated
        self._said = said
        self._folder = folder
        self._steps = 0
        self._busy: set[tuple[int, str]] = set()
        self._calls: dict[int, list[Call]] | None = None

    # --- what is asked from outside

    def of(self, node: ast.AST | None, scope: Scope, depth: int = 0) -> Value:
        """What `node` is worth in `scope`."""
        self._steps += 1
        if node is None or depth > _MOST_DEPTH or self._steps > MOST_STEPS:
            return INVOLVED
        match node:
            case ast.Constant(value=value):
                return Known((value,))
            case ast.Name(id=name):
                return self._name(name, scope, depth + 1)
            case ast.Attribute():
                return self._attribute(node, scope, depth + 1)
            case ast.JoinedStr(values=parts):
                return expressions.joined(self, parts, scope, depth + 1)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.of(value, scope, depth + 1)
            case ast.BinOp(left=left, op=op, right=right):
                return expressions.binary(self, left, op, right, scope, depth + 1)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return expressions.first_true(self, parts, scope, depth + 1)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.truth(test, scope, depth + 1)
                if truth is None:
                    return Unknown("it depends on a condition")
                return self.of(body if truth else orelse, scope, depth + 1)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return expressions.combined(self, parts, scope, depth + 1, tuple)
            case ast.Subscript(value=value, slice=key):
                return expressions.item(self, value, key, scope, depth + 1)
            case ast.Call():
                return expressions.call(self, node, scope, depth + 1)
            case ast.NamedExpr(value=value):
                return self.of(value, scope, depth + 1)
        return COMPUTED

    def truth(self, test: ast.expr, scope: Scope, depth: int = 0) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.truth(operand, scope, depth + 1)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=parts):
                known = [self.truth(part, scope, depth + 1) for part in parts]
                decides = isinstance(op, ast.Or)
                if decides in known:
                    return decides
                return None if None in known else not decides
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compared(op, *(self.of(x, scope, depth + 1) for x in (left, right)))
        found = self.of(test, scope, depth + 1)
        if isinstance(found, Known):
            truths = {bool(value) for value in found.values}
            return truths.pop() if len(truths) == 1 else None
        return None

    def happens(self, guards: Sequence[Guard], scope: Scope, depth: int = 0) -> bool | None:
        """Whether code below `guards` runs; None where that is not known."""
        found = [self.truth(guard.test, scope, depth + 1) for guard in guards]
        wrong = [one is not None and one != g.holds for one, g in zip(found, guards, strict=True)]
        if any(wrong):
            return False
        return None if None in found else True

    # --- names

    def _name(self, name: str, scope: Scope, depth: int) -> Value:
        bindings = scope.find(name)
        if not bindings:
            if name == "__name__":
                return Known((scope.file.name,))
            if name == "__file__":
                return Known((str(scope.file.path),))
            found = self.names.starred(name, scope.file)
            return self._dotted(found, depth) if found else Unknown(f"{name} is not set here")
        return self._bound(name, bindings, depth)

    def _bound(self, name: str, bindings: Sequence[Binding], depth: int) -> Value:
        """What a name is worth: that of its only binding, or of the last, where all happen."""
        possible = []
        certain = True
        for binding in bindings:
            happens: bool | None = True
            if len(bindings) > 1:
                happens = self.happens(binding.guards, binding.scope, depth + 1)
            if happens is not False:
                possible.append(binding)
                certain = certain and happens is True
        if not possible:
            return Unknown(f"{name} is not set with these arguments")
        if len(possible) > 1 and not certain:
            lines = sorted({binding.line for binding in possible})
            return Unknown(f"{name} is set in lines {', '.join(map(str, lines))}")
        binding = possible[-1]
        key = (id(binding), name)
        if key in self._busy:  # `name = name + x`
            return Unknown(f"{name} is computed")
        self._busy.add(key)
        try:
            found = self._value_of(name, binding, depth)
        finally:
            self._busy.discard(key)
        if isinstance(found, Unknown) and found.why == "it is computed":
            return Unknown(f"{name} is computed in line {binding.line}")
        return found

    def _value_of(self, name: str, binding: Binding, depth: int) -> Value:
        match binding.kind:
            case "import":
                return self._dotted(binding.dotted, depth)
            case "argument":
                return self._argument(name, binding.scope, depth)
            case "value":
                return at(self.of(binding.value, binding.scope, depth + 1), binding.index)
            case "item":
                found = self.of(binding.value, binding.scope, depth + 1)
                if isinstance(found, Unknown):
                    return found
                items = [i for v in found.values if isinstance(v, tuple | dict) for i in v]
                if not items or len(items) > MOST_VALUES:
                    return Unknown(f"{name} is set in a loop, in line {binding.line}")
                return at(Known(tuple(items)), binding.index)
        return COMPUTED

    def _dotted(self, dotted: str, depth: int) -> Value:
        """What a dotted name is worth: something of a local module, or a word of a library."""
        place = self.names.local(dotted)
        if place is None:
            return Unknown(f"{dotted} is not of this script")
        scope, rest = place
        if len(rest) == 1 and rest[0] in scope.bindings:
            return self._bound(rest[0], scope.bindings[rest[0]], depth + 1)
        if len(rest) == 2 and (inner := self.names.class_in(scope, rest[0])) is not None:
            return self._member(inner, rest[1], depth + 1)
        return Unknown(f"{dotted} is not a constant")

    def _attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Value:
        owner = self.names.instance(node.value, scope)
        if owner is not None:
            built, construction = owner
            if construction is not None:
                for keyword in construction.keywords:
                    if keyword.arg == node.attr and not self.names.initializer(built):
                        return self.of(keyword.value, scope, depth + 1)
            found = self._member(built, node.attr, depth + 1)
            if isinstance(found, Known) or self.names.has(built, node.attr):
                return found
        dotted = self.names.dotted(node, scope)
        if dotted is not None and self.names.local(dotted) is not None:
            return self._dotted(dotted, depth)
        if dotted is not None and "(" not in dotted:
            return Unknown(f"{dotted} is not of this script")
        if node.attr == "parent":
            return expressions.combined(
                self, [node.value], scope, depth, lambda path: os.path.dirname(path[0])
            )
        if node.attr in self.options:
            return self.options[node.attr]
        if node.attr in self._said:
            return Known((self._said[node.attr],))
        return Unknown(f"{_words(node)} is not known")

    def _member(self, owner: Scope, name: str, depth: int) -> Value:
        bindings = [*owner.bindings.get(name, ()), *owner.attributes.get(name, ())]
        if not bindings and depth < _MOST_DEPTH:
            for base in self.names.bases(owner):
                found = self._member(base, name, depth + 1)
                if isinstance(found, Known):
                    return found
        if not bindings:
            return Unknown(f"{name} is not known")
        return self._bound(name, bindings, depth + 1)

    # --- arguments of functions, from their calls

    def _argument(self, name: str, scope: Scope, depth: int) -> Value:
        function = scope.node
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        title = getattr(function, "name", "a lambda")
        default = default_of(scope, name)
        calls = self._calls_of(scope)
        found: list[Any] = []
        for call in calls:
            here = given(call.node, name, scope)
            if here is SPREAD:
                return Unknown(f"{name} is an argument of {title}, whose calls are computed")
            if here is None and default is None:
                continue
            where = call.scope if here is not None else (scope.parent or scope)
            value = self.of(here or default, where, depth + 1)
            if isinstance(value, Unknown):
                return value
            found += [one for one in value.values if one not in found]
            if len(found) > MOST_VALUES:
                return INVOLVED
        if found:
            return Known(tuple(found))
        if default is not None and not calls:
            return self.of(default, scope.parent or scope, depth + 1)
        why = "whose calls do not give it" if calls else "which nothing calls"
        return Unknown(f"{name} is an argument of {title}, {why}")

    def _calls_of(self, scope: Scope) -> list[Call]:
        if self._calls is None:
            self._calls = {}
            for file in self.names.files.values():
                for call in file.calls:
                    self._steps += 1
                    target = self.names.definition(call.node.func, call.scope)
                    if target is not None:
                        self._calls.setdefault(id(target), []).append(call)
        found = self._calls.get(id(scope), [])
        return [c for c in found if self.happens(c.guards, c.scope, 1) is not False]

    # --- files

    def exists(self, text: object) -> bool:
        """Whether something lies at a path, as the script would see it.

        Raises:
            TypeError: `text` is no text.
        """
        if not isinstance(text, str):
            raise TypeError
        try:
            return os.path.lexists(self._folder / os.path.expanduser(text))
        except ValueError:  # a null byte
            return False


def _words(node: ast.expr) -> str:
    """A dotted name as it stands there."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "...")
    return ".".join(reversed(parts))

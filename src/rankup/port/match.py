"""Patterns of calls with holes: `torch.load(f=_path, map_location=ABSENT)` finds all such calls.

A pattern is written as a call. What is called is a full name as imports have it; a name without a
dot is a builtin. `_.cuda()` is a method of anything but a module, `_model.cuda()` keeps that as
`model`, and `__.DistributedSampler()` goes by the last word, whatever is in front of it. An
argument `name=value` is given by that keyword, or stands at the place that it has in the pattern:

- `_path`: anything, kept as `path`; `_` is kept nowhere
- `[_path]`: the same, or it is not given
- `ABSENT`: it is not given, as far as one can see
- a literal: that value

A call may have more arguments than its pattern.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..script.flow import argument, call_name, literal
from ..script.source import File
from ..script.torch_names import last

_ANY, _LAST_WORD, _ABSENT = "_", "__", "ABSENT"


@dataclass(frozen=True, eq=False)
class Match:
    """A call that a pattern found.

    Attributes:
        call: the call itself.
        holes: what stands in the holes of the pattern, by their names; None where an argument that
            may be left out is not given.
    """

    call: ast.Call
    holes: dict[str, ast.expr | None]

    def __getitem__(self, name: str) -> ast.expr:
        """What stands in a hole that is always filled."""
        found = self.holes[name]
        assert found is not None
        return found

    def get(self, name: str) -> ast.expr | None:
        """What stands in a hole; None where it is not given, or this pattern has none of it."""
        return self.holes.get(name)


class Pattern:
    """One or several patterns of calls, of which any may match.

    Raises:
        ValueError: a text is no call.
    """

    def __init__(self, *texts: str) -> None:
        self._calls: dict[str, list[ast.Call]] = {}
        for text in texts:
            call = ast.parse(text, mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError(f"{text} is no call with named arguments")
            self._calls.setdefault(call_name(call), []).append(call)

    def find(self, file: File) -> Iterator[Match]:
        """The calls of a file that match, in the order of the text."""
        for call, _ in calls(file, *self._calls):
            match = self.match(file, call)
            if match is not None:
                yield match

    def match(self, file: File, call: ast.Call) -> Match | None:
        """What a call has in the holes; None where it does not match."""
        for word in _last_words(file, call):
            for pattern in self._calls.get(word, ()):
                holes = _filled(file, call, pattern)
                if holes is not None:
                    return Match(call, holes)
        return None


def _filled(file: File, call: ast.Call, pattern: ast.Call) -> dict[str, ast.expr | None] | None:
    holes: dict[str, ast.expr | None] = {}
    if not _called(file, call, pattern, holes):
        return None
    for position, wanted in enumerate(pattern.keywords):
        value, optional = wanted.value, isinstance(wanted.value, ast.List)
        inner = value.elts[0] if isinstance(value, ast.List) else value
        given = argument(call, wanted.arg or "", position)
        name = inner.id if isinstance(inner, ast.Name) else ""
        if name == _ABSENT:
            if given is not None or starred(call):
                return None
        elif given is None and not optional:
            return None
        elif name:
            holes[name.removeprefix(_ANY)] = given
        elif given is not None and literal(given) != literal(inner):
            return None
    return holes


def _called(
    file: File, call: ast.Call, pattern: ast.Call, holes: dict[str, ast.expr | None]
) -> bool:
    """True where the right thing is called; keeps what a method is called on."""
    dotted = file.names.called(call)
    func = pattern.func
    if isinstance(func, ast.Name):
        return dotted == f"builtins.{func.id}"
    base = func.value if isinstance(func, ast.Attribute) else None
    if isinstance(base, ast.Name) and base.id == _LAST_WORD:
        return True
    if isinstance(base, ast.Name) and base.id.startswith(_ANY):
        if dotted or not isinstance(call.func, ast.Attribute):
            return False
        holes[base.id.removeprefix(_ANY)] = call.func.value
        return True
    return dotted == ast.unparse(func)


def calls(file: File, *names: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls by the last word of what is called, with the dotted name."""
    known = _by_word(file)
    for _, call in sorted({found for name in names for found in known.get(name, ())}):
        yield call, file.names.called(call)


@lru_cache(maxsize=64)
def _by_word(file: File) -> dict[str, list[tuple[int, ast.Call]]]:
    """The calls of a file by the last word of what they call, each with its place among all."""
    found: dict[str, list[tuple[int, ast.Call]]] = {}
    for at, call in enumerate(file.names.all(ast.Call)):
        for word in _last_words(file, call):
            found.setdefault(word, []).append((at, call))
    return found


def _last_words(file: File, call: ast.Call) -> list[str]:
    """`save` of `torch.save()`; of a function that is imported by another name both."""
    words = dict.fromkeys([call_name(call), last(file.names.called(call))])
    return [one for one in words if one]


def starred(call: ast.Call) -> bool:
    """True where arguments are passed on by `*` or `**`."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )

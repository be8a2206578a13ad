"""The command line of a script: its `add_argument` calls, and what they make of its arguments.

argparse itself does the parsing: a parser is built anew from what stands in the calls.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from .scopes import Call, File
from .values import Values
from .worth import Known, Unknown, Value

_ACTIONS = {"store", "store_true", "store_false", "store_const", "append", "count"}
_TYPES = {"str": str, "int": int, "float": float}


class _Refused(Exception):  # noqa: N818 - never seen by anybody
    """The arguments do not fit."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def parsed(files: Mapping[str, File], values: Values, args: tuple[str, ...]) -> dict[str, Value]:
    """What the attributes of the parsed arguments are worth, by name."""
    calls = [
        call
        for file in files.values()
        for call in file.calls
        if isinstance(call.node.func, ast.Attribute) and call.node.func.attr == "add_argument"
    ]
    for positional in (True, False):
        parser = _Parser(add_help=False, conflict_handler="resolve")
        for call in calls:
            _add(parser, call, values, positional)
        try:
            found = vars(parser.parse_known_args(list(args))[0])
        except (_Refused, TypeError, ValueError, AssertionError):
            continue
        return {name: _value(name, one) for name, one in found.items()}
    return {}


def said(args: tuple[str, ...]) -> dict[str, str]:
    """`--name value` and `--name=value` of a command line, `-` within names read as `_`."""
    found = {}
    for word, following in zip(args, [*args[1:], "--"][: len(args)], strict=True):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if equals or not following.startswith("-"):
                found[name.replace("-", "_")] = value if equals else following
    return found


def _add(parser: _Parser, call: Call, values: Values, positional: bool) -> None:
    names = [value for one in call.node.args for value in _constants(values.of(one, call.scope))]
    if not names or not all(isinstance(name, str) and name for name in names):
        return
    is_option = names[0].startswith("-")
    if not (is_option or positional):
        return
    keywords = dict(_keywords(call, values))
    if not is_option and "nargs" not in keywords:
        keywords["nargs"] = "?"  # that it is missing is no reason to know nothing of the others
    try:
        parser.add_argument(*names, **keywords)
    except (TypeError, ValueError, argparse.ArgumentError):
        return


def _keywords(call: Call, values: Values) -> Iterator[tuple[str, Any]]:
    given = {keyword.arg: keyword.value for keyword in call.node.keywords}
    # Left out where nothing can be said; also argparse's own default is None.
    default = values.of(given["default"], call.scope) if "default" in given else Known((None,))
    required = "required" in given or not _is_option(call)
    if required and "default" not in given:
        default = Unknown("it is given on the command line")
    action = next(iter(_constants(values.of(given.get("action"), call.scope))), "store")
    if isinstance(given.get("action"), ast.Attribute):
        boolean = given["action"].attr == "BooleanOptionalAction"  # type: ignore[attr-defined]
        action = argparse.BooleanOptionalAction if boolean else "store"
    elif action not in _ACTIONS:
        action = "store"
    yield "action", action
    if not (action in ("store_true", "store_false") and "default" not in given):
        yield "default", _one(default)
    for name in ("dest", "nargs", "const"):
        if name in given and (name != "nargs" or action in ("store", "append")):
            value = values.of(given[name], call.scope)
            if isinstance(value, Known) and len(value.values) == 1:
                yield name, value.values[0]
    kind = given.get("type")
    if action in ("store", "append") and isinstance(kind, ast.Name) and kind.id in _TYPES:
        yield "type", _TYPES[kind.id]


def _is_option(call: Call) -> bool:
    first = call.node.args[0] if call.node.args else None
    return isinstance(first, ast.Constant) and str(first.value).startswith("-")


def _constants(value: Value) -> tuple[Any, ...]:
    return value.values if isinstance(value, Known) and len(value.values) == 1 else ()


def _one(value: Value) -> Any:
    """A default; what is not known travels through argparse as it is."""
    if isinstance(value, Known) and len(value.values) == 1:
        return value.values[0]
    return value


def _value(name: str, found: Any) -> Value:
    if isinstance(found, Unknown):
        return Unknown(f"{name}: {found.why}")
    if isinstance(found, Known):
        return found
    return Known((tuple(found) if isinstance(found, list) else found,))

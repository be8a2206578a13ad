"""The command line of a script: what its `add_argument` calls make of the arguments given.

argparse itself does the parsing: a parser is built anew from what stands in the calls.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from typing import Any, NoReturn

from .constants import Constants
from .flow import call_name
from .source import File
from .values import Known, Unknown, Value

_ACTIONS = {"store", "store_true", "store_false", "store_const", "append", "count"}
_TYPES = {"str": str, "int": int, "float": float}


class _Refused(Exception):  # noqa: N818 - caught here
    """The arguments do not fit."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def options(constants: Constants, args: tuple[str, ...]) -> dict[str, Value]:
    """The values of the attributes of the parsed arguments, by name.

    For parsers other than argparse, `--name value` gives an attribute of that name its value.
    """
    calls = [
        (file, call)
        for file in constants.flow.files
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
        named = constants.flow.full_name(file, given["action"])
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

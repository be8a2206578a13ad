"""The arguments that a script's own argparse refuses: its parser is built anew if it is plain."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from .names import Comprehension, Names, calls_in, root_name, walk, written

_ACTIONS = ("store", "store_true", "store_false", "store_const", "append", "append_const", "count")
_TYPES = {"builtins.int": int, "builtins.float": float, "builtins.str": str}
_CLASS = "argparse.ArgumentParser"
_ENDS = frozenset({"exit", "_exit", "quit", "execv", "execve", "execvp", "execvpe"})
# What a declaration says that changes nothing about what is refused.
_WORDS = ("prog", "usage", "description", "epilog", "formatter_class", "help", "metavar", "dest")


class _Refused(Exception):  # noqa: N818 - caught here
    """The arguments do not fit, in argparse's words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def refused(text: bytes, args: Sequence[str]) -> str:
    """Return argparse's words for arguments with which a script would end at once.

    Empty where it takes them, and where that cannot be read from its text.
    """
    try:
        parser = _parser(ast.parse(text))
    except (SyntaxError, ValueError, TypeError, RecursionError, argparse.ArgumentError):
        return ""  # said elsewhere; or there is more to it than plain values
    try:
        parser.parse_args(args)
    except _Refused as error:
        return str(error)
    return ""


def _parser(tree: ast.Module) -> _Parser:
    """Return the script's one parser, built anew from calls in one block.

    Raises:
        ValueError: there is none, or it is not read in full.
    """
    names = Names(tree)
    [made] = [one for one in names.all(ast.Call) if written(one.func).endswith("ArgumentParser")]
    stored = [one for one in names.all(ast.Attribute) if isinstance(one.ctx, ast.Store)]
    changed = any(names.dotted(one).startswith(_CLASS) for one in stored)
    if changed or _surely(names, made.func) != _CLASS:
        raise ValueError("a class of its own, or another library's")
    words = {one.attr for one in names.all(ast.Attribute)} | {one.id for one in names.all(ast.Name)}
    if "argv" in words:
        raise ValueError("the arguments may be changed")
    match names.parents[made]:
        case ast.Assign(targets=[ast.Name(id=name)]) as begin:
            block = names.block(begin)
        case _:
            raise ValueError("it has no name")
    parser, parsed = _Parser(**_declared(names, made)), 0
    for use in (one for one in names.all(ast.Name) if one.id == name):
        method = names.parents[use]
        if method is begin:
            continue
        call = names.parents[method]
        if not isinstance(call, ast.Call) or (at := _statement(names, call)) not in block:
            raise ValueError("something else is done with it")
        match method:
            case ast.Attribute(attr="add_argument"):
                parser.add_argument(*map(ast.literal_eval, call.args), **_declared(names, call))
            case ast.Attribute(attr="parse_args") if not (call.args or call.keywords):
                _refuse_unsure(names, at)
                parsed += 1
            case _:
                raise ValueError("something else is done with it")
    if parsed != 1:
        raise ValueError("it does not parse, or does so again")
    return parser


def _surely(names: Names, node: ast.expr) -> str:
    """Return the dotted name of what is imported or built in, empty where it may be another."""
    _, bindings = names.bindings(root_name(node), names.scope(node))
    may_come = isinstance(node, ast.Name) and names.stars  # by `from module import *`
    return "" if len(bindings) > 1 or may_come else names.dotted(node)


def _statement(names: Names, call: ast.Call) -> ast.stmt:
    """Return the statement that makes a call each time that it is run.

    Raises:
        ValueError: it may do without.
    """
    for node in names.up(call):
        if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
            return node
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda | Comprehension | ast.stmt):
            break
    raise ValueError("it depends")


def _refuse_unsure(names: Names, statement: ast.stmt) -> None:
    """Raise ValueError where a script may do without a statement."""
    block = names.block(statement)
    if any(map(_may_leave, block[: block.index(statement)])):
        raise ValueError("it may have ended before")
    match names.parents[statement]:
        case ast.Module():
            pass
        case ast.If(test, body) as around if (
            body is block and ast.unparse(test) == "__name__ == '__main__'"
        ):
            _refuse_unsure(names, around)
        case ast.FunctionDef(name, decorator_list=[]) as around:
            [call] = [one for one in names.all(ast.Call) if written(one.func) == name]
            _, bindings = names.bindings(name, names.scope(call))
            if [one.node for one in bindings] != [around]:
                raise ValueError("another may be called")
            _refuse_unsure(names, _statement(names, call))
        case _:
            raise ValueError("it depends")


def _may_leave(statement: ast.stmt) -> bool:
    """Return whether what stands behind a statement may not be come to."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    ends = (written(call.func).rpartition(".")[2] for call in calls_in(statement))
    leaves = any(isinstance(node, ast.Return | ast.Raise) for node in walk(statement))
    return leaves or not _ENDS.isdisjoint(ends)


def _declared(names: Names, call: ast.Call) -> dict[str, Any]:
    """Return the keywords of a parser or an option, as far as they decide what is refused."""
    return dict(_keywords(names, {one.arg or "**": one.value for one in call.keywords}))


def _keywords(names: Names, given: dict[str, ast.expr]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if name == "type":
            yield name, _TYPES.get(_surely(names, value), str)
        elif name == "choices":
            # Values that a type of the script's own has made are not these.
            if "type" not in given or _surely(names, given["type"]) in _TYPES:
                yield name, ast.literal_eval(value)
        elif name == "action" and _surely(names, value) == "argparse.BooleanOptionalAction":
            yield name, argparse.BooleanOptionalAction
        elif name == "action" and ast.literal_eval(value) not in _ACTIONS:
            raise ValueError("an action of its own")
        elif name in ("action", "nargs", "required", "const", "add_help", "allow_abbrev"):
            yield name, ast.literal_eval(value)
        elif name not in (*_WORDS, "default"):
            raise ValueError(f"{name} is not known")

"""Arguments that a script's own argparse refuses, known before a rank starts."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import UserError
from ..site.rundir import Job

_ACTIONS = ("store", "store_true", "store_false", "store_const", "append", "append_const", "count")
_TYPES = {"int": int, "float": float, "str": str}
# What a declaration says that changes nothing about what is refused.
_WORDS = ("prog", "usage", "description", "epilog", "formatter_class", "help", "metavar", "dest")


class _Refused(Exception):  # noqa: N818 - caught here
    """The arguments do not fit, in argparse's words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def refuse(job: Job, wanted: bool) -> None:
    """Refuse arguments with which each rank of a script would end at once, where that is known.

    Raises:
        UserError: the script's own parser refuses them.
    """
    if job.kind != "script" or not wanted or {"-h", "--help"} & set(job.args):
        return
    try:
        parser = _parser(ast.parse(Path(job.target).read_bytes()))
    except (SyntaxError, ValueError, TypeError, RecursionError, argparse.ArgumentError):
        return  # said elsewhere; or there is more to it than plain values
    try:
        parser.parse_args(job.args)
    except _Refused as error:
        raise UserError(
            f"{Path(job.target).name} would end at once: {error} "
            "(--no-check starts it all the same)"
        ) from None


def _parser(tree: ast.Module) -> _Parser:
    """Return the script's one parser, built anew from calls in one block.

    Raises:
        ValueError: there is none, or it is not read in full.
    """
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    calls = [node for node in above if isinstance(node, ast.Call)]
    [made] = [call for call in calls if ast.unparse(call.func).endswith("ArgumentParser")]
    match above[made]:
        case ast.Assign(targets=[ast.Name(id=name)]) as begin:
            _refuse_unsure(tree, above, begin)
        case _:
            raise ValueError("it has no name")
    parser, parsed = _Parser(**_declared(made)), 0
    for use in (node for node in above if isinstance(node, ast.Name) and node.id == name):
        call = above.get(above[use])
        if above[use] is begin:
            continue
        if not isinstance(call, ast.Call) or not _beside(call, begin, above):
            raise ValueError("something else is done with it")
        match above[use]:
            case ast.Attribute(attr="add_argument"):
                parser.add_argument(*map(ast.literal_eval, call.args), **_declared(call))
            case ast.Attribute(attr="parse_args") if not (call.args or call.keywords):
                parsed += 1
            case _:
                raise ValueError("something else is done with it")
    if parsed != 1:
        raise ValueError("it does not parse, or does so again")
    return parser


def _refuse_unsure(tree: ast.Module, above: dict[ast.AST, ast.AST], begin: ast.stmt) -> None:
    """Raise ValueError where the block of a statement may not be run, or `sys.argv` be changed."""
    place = above[begin]
    if isinstance(place, ast.If) and ast.unparse(place.test) == "__name__ == '__main__'":
        place = above[place]
    if isinstance(place, ast.FunctionDef):
        called = {ast.unparse(node.func) for node in above if isinstance(node, ast.Call)}
        place = above[place] if place.name in called else begin
    if place is not tree or any(
        isinstance(node, ast.Attribute) and node.attr == "argv" for node in above
    ):
        raise ValueError("it may not be so")


def _beside(call: ast.Call, begin: ast.stmt, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a call stands in a statement of the block that `begin` is in."""
    node: ast.AST = call
    while not isinstance(node, ast.stmt):
        node = above[node]
    return above[node] is above[begin] and not isinstance(node, ast.If | ast.For | ast.While)


def _declared(call: ast.Call) -> dict[str, Any]:
    """Return the keywords of a parser or an option, as far as they decide what is refused."""
    return dict(_keywords({one.arg or "**": one.value for one in call.keywords}))


def _keywords(given: dict[str, ast.expr]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if name == "type":
            yield name, _TYPES.get(ast.unparse(value), str)
        elif name == "choices":
            # Values that a type of the script's own has made are not these.
            if "type" not in given or ast.unparse(given["type"]) in _TYPES:
                yield name, ast.literal_eval(value)
        elif name == "action" and ast.unparse(value).endswith("BooleanOptionalAction"):
            yield name, argparse.BooleanOptionalAction
        elif name == "action" and ast.literal_eval(value) not in _ACTIONS:
            raise ValueError("an action of its own")
        elif name in ("action", "nargs", "required", "const", "add_help", "allow_abbrev"):
            yield name, ast.literal_eval(value)
        elif name not in (*_WORDS, "default"):
            raise ValueError(f"{name} is not known")

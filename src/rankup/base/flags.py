"""Command-line flags from a frozen dataclass, without importing anything heavy.

A field `global_batch: int = flag(32, "sequences per optimizer step")` becomes `--global-batch N`;
booleans become `--compile`; `Literal[...]` fields take one of their values. A field
that is not made by `flag` is none.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from . import gone
from .errors import UserError, nearest

Options = TypeVar("Options")
_CHOICE = re.compile(r"argument (--\S+): invalid choice: '([^']*)'")  # argparse's words


def flag(default: Any, help: str, *, least: float | None = None) -> Any:
    """A dataclass field that is a flag: its default, its line of help, its least legal value."""
    return dataclasses.field(default=default, metadata={"help": help, "least": least})


def parse(
    kind: type[Options],
    args: Sequence[str],
    command: str,
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    kept: Mapping[str, Any] | None = None,
) -> Options:
    """Options of type `kind` from command-line words.

    Args:
        preset: defaults that hang on other options: takes the values by field, gives those that
            stand in for what was not said.
        kept: values of fields that are no flags.

    Raises:
        UserError: an unknown flag (the nearest known one is named), a missing or impossible value.
    """
    parser = _parser(kind, command)
    kept = kept or {}
    values = vars(parser.parse_args(list(args)))
    if preset is not None and (instead := preset({**values, **kept})):
        parser.set_defaults(**instead)
        values = vars(parser.parse_args(list(args)))
    return kind(**values, **kept)


def names(kind: type[Any]) -> frozenset[str]:
    """All flags as they are written; of a boolean both `--compile` and `--no-compile`."""
    return frozenset(_parser(kind, "").names())


def help_text(kind: type[Any], command: str) -> str:
    """The list of all flags with their meaning and default."""
    return _parser(kind, command).format_help()


class _Parser(argparse.ArgumentParser):
    def names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        flags = self.names()
        if message.startswith("unrecognized arguments:"):
            word = message.partition(": ")[2].split()[0]
            if not word.startswith("--") or word == "--":
                raise UserError(f"{self.prog} takes options only, found {word!r}")
            gone.refuse(word.partition("=")[0])
            hint = nearest(word.partition("=")[0], flags)
            raise UserError(f"unknown option {word!r} of {self.prog}; {hint}")
        if chosen := _CHOICE.match(message):
            gone.refuse(*chosen.groups())
        raise UserError(f"{self.prog}: {message}; `rankup run {self.prog} --help` lists all")


def _parser(kind: type[Any], command: str) -> _Parser:
    parser = _Parser(
        prog=command,
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=100),
    )
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if "help" not in field.metadata:
            continue
        name = "--" + field.name.replace("_", "-")
        text = field.metadata["help"]
        inner = _inner(hints[field.name])
        if inner is bool:
            parser.add_argument(
                name, action=argparse.BooleanOptionalAction, default=field.default, help=text
            )
            continue
        if field.default not in (None, ""):
            text += f" (default {field.default})"
        choices = typing.get_args(inner) if typing.get_origin(inner) is typing.Literal else None
        convert = str if choices else _word(name)
        if inner is not str and not choices:
            convert = _number(inner, field.metadata["least"])
        parser.add_argument(
            name,
            type=convert,
            choices=choices,
            default=field.default,
            help=text,
            metavar=None if choices else inner.__name__.upper(),
        )
    return parser


def _inner(hint: Any) -> Any:
    """`int | None` -> `int`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _word(name: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        gone.refuse(name, text.partition(":")[0])
        return text

    return convert


def _number(kind: type[Any], least: float | None) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not {'a whole number' if kind is int else 'a number'}"
            ) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
        if least is not None and value < least:
            raise argparse.ArgumentTypeError(f"{text} is too small, the least is {least:g}")
        return value

    return convert

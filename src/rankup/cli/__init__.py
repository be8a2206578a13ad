"""The command `rankup`: one short function per verb that parses, calls one function, prints."""

from __future__ import annotations

import os
import sys
from copy import copy
from io import TextIOWrapper

import typer
from typer.main import get_command_name

from ..base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from . import data, login, plan, port, run, views  # noqa: F401 - the verbs register themselves
from .app import app


def main() -> None:
    """Entry point; bad input ends with its message and exit code 2, a failure with 1."""
    _open_closed_streams()
    # Names of files may hold letters that the terminal's encoding lacks: written out, as on stderr.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _with_one_verb(sys.argv[1:2])()
    except UserError as error:
        _say_error(error)
        sys.exit(EXIT_BAD_INPUT)
    # A full disk, a file without permission: the machine's no, not ours.
    except (RunFailed, OSError) as error:
        if isinstance(error, FileNotFoundError) and not _is_folder_there():
            _say_error(UserError("the folder you are in is no longer there; cd to one that is"))
            sys.exit(EXIT_BAD_INPUT)
        _say_error(error)
        sys.exit(EXIT_FAILED)


def _open_closed_streams() -> None:
    """Give a standard stream that was closed (`>&-`) the null device, which Python has as None.

    A file that is opened later would get its number, and what programs print would go there.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _with_one_verb(words: list[str]) -> typer.Typer:
    """Return the application with the verb that is asked for; typer makes the options of all of
    them first, which takes 30 ms."""
    known = {
        one.name or get_command_name(one.callback.__name__): one
        for one in app.registered_commands
        if one.callback is not None
    }
    one = copy(app)
    one.registered_commands = [known[word] for word in words if word in known] or [*known.values()]
    return one


def _is_folder_there() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _say_error(error: Exception) -> None:
    from ..base.text import clean_lines  # names of files, words of sbatch: anybody's bytes

    print("rankup: " + clean_lines(str(error)), file=sys.stderr)

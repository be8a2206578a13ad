"""The Typer application that the verbs register with."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..base import gone

# In the order in which a user comes to need them.
PANELS = {
    "Try it": ("demo", "recipes"),
    "On the login node, before the job": ("doctor", "env", "fetch"),
    "A folder of data": ("pack", "inspect", "bench-data", "stage", "tokenize"),
    "From one GPU to many": ("check", "port", "verify", "plan"),
    "Run": ("run", "status", "logs", "cancel", "scale"),
    "What it did, and what came of it": ("report", "monitor", "export", "generate"),
}
_VALUES = {"integer": "N", "int": "N", "float": "X", "text": "TEXT", "str": "TEXT"}


class _Verbs(TyperGroup):
    """The verbs in panels, where typer has one list."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in PANELS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
            command.rich_help_panel = panel  # type: ignore[attr-defined]
            for one in (command, *getattr(command, "commands", {}).values()):
                _name_values(one)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        gone.refuse(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            option, verb = getattr(error, "option_name", None), getattr(error, "ctx", None)
            if option is not None and verb is not None:
                words = [option]
                while verb.parent is not None:  # `env create` are two
                    words.insert(0, verb.info_name)
                    verb = verb.parent
                gone.refuse(*words)
            raise


def _name_values(command: Any) -> None:
    """Say N and TEXT where typer says `<int range>` and `<str>`, and TARGET for `target <str>`."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.type = copy(parameter.type)  # one object is the type of many
            parameter.type.get_metavar = lambda **_: ""
        if parameter.metavar is not None:
            continue
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
        else:
            parameter.metavar = _VALUES.get(parameter.type.name.partition(" ")[0])


app = typer.Typer(
    cls=_Verbs,
    help="From one GPU to the whole supercomputer: the same PyTorch run on any number of ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"rankup {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass

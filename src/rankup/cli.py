"""The command `rankup`: one short function per verb that parses, calls one function, prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import __version__
from .base.errors import EXIT_BAD_INPUT, EXIT_FAILED, UserError

app = typer.Typer(
    help="From one GPU to the whole supercomputer: the same PyTorch run on any number of ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point; bad input ends with its message and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"rankup: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except OSError as error:  # a full disk, a file without permission: the machine's no, not ours
        print(f"rankup: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


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


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    target: Annotated[
        str | None, typer.Argument(help="A recipe's name or a script's path.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="What follows TARGET belongs to it.")
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks on this node; by default one per GPU, on CPU one."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run directory itself.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with a run: its id, `last`, or its directory.")
    ] = None,
) -> None:
    """Run a recipe or a script on the GPUs or cores of this machine."""
    from .launch.run import Request
    from .launch.run import run as start

    words = tuple(args or ())
    if target is not None and set(words) & {"--help", "-h"}:
        from . import recipes

        if target in recipes.RECIPES:
            print(recipes.find(target).help())
            return
    raise typer.Exit(start(Request(target, words, nproc, out, resume)))


@app.command()
def recipes() -> None:
    """List the training runs that come with rankup."""
    from .recipes import RECIPES

    for recipe in RECIPES.values():
        print(f"{recipe.name:20} {recipe.summary}")
    print("\noptions of one: rankup run NAME --help")


@app.command()
def demo() -> None:
    """Train a small language model on one rank and on two, and compare (CPU, two minutes)."""
    from .launch.demo import demo as show

    raise typer.Exit(show())

"""Verbs that look at runs or end them, and what comes with rankup."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="GPUs, steps and log of a run as it goes on (`last`).")
    ] = False,
) -> None:
    """Show how the newest runs are, or everything about one."""
    if live:
        from ..launch.show_live import show_live

        raise typer.Exit(show_live(run or "last"))
    from ..launch.show_status import show

    raise typer.Exit(show(run, as_json=as_json))


@app.command()
def logs(
    run: Annotated[
        str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")
    ] = "last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to show.")] = 40,
    raw: Annotated[bool, typer.Option("--raw", help="Show all lines, also harmless ones.")] = False,
    cause: Annotated[
        bool, typer.Option("--cause", help="Only why the run failed: rank, node, exception.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="Number of an array's task.")] = None,
) -> None:
    """Show the end of a run's log, and why it failed."""
    from ..launch.logs import show

    code = show(run, following=follow, lines=lines, raw=raw, only_cause=cause, task=task)
    raise typer.Exit(code)


@app.command()
def cancel(
    run: Annotated[str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")],
) -> None:
    """End a run: its Slurm jobs with all that would follow, or its processes on this machine."""
    from ..launch.cancel import show

    raise typer.Exit(show(run))


@app.command()
def recipes() -> None:
    """List the training runs that come with rankup."""
    from ..recipes import RECIPES

    for recipe in RECIPES.values():
        print(f"{recipe.name:20} {recipe.summary}")
    print("\noptions of one: rankup run NAME --help")


@app.command()
def demo() -> None:
    """Check, port and verify a script for one GPU, run it on one rank and on two (CPU, 3 min)."""
    from ..launch.demo import demo as show

    raise typer.Exit(show())

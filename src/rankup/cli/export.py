"""`rankup export`."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="safetensors, or torch: a plain state dict.")
    ],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="By default in the run's directory.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of the checkpoint; by default the newest whole one.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The checkpoint of the lowest validation loss.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a run's model into one file, whatever it was trained on."""
    from ..launch.export import export as write

    raise typer.Exit(write(run, to, out, step, best, force))

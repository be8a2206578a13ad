"""`rankup generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command()
def generate(
    run: Annotated[str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")],
    prompt: Annotated[
        str | None, typer.Argument(help="Words that a language model goes on from.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A text to go on from or to summarise, or photos."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of the checkpoint; by default the newest whole one.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The checkpoint of the lowest validation loss.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens that are made.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="0 takes the likeliest token; 1 draws as the model says."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw among so many of the likeliest tokens.")
    ] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, help="Sequences that a beam search follows.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of what is drawn.")] = None,
) -> None:
    """Try a run's model: text that goes on from a prompt, a summary, the names of photos."""
    from ..base.files import user_path
    from ..launch.generate import generate as make
    from ..recipes.asked import Asked

    path = None if file is None else user_path(file, "--file").absolute()
    asked = Asked(prompt, path, max_tokens, temperature, top_k, beams, seed)
    raise typer.Exit(make(run, asked, step, best))

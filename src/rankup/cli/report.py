"""The verb that says what a run was worth."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command()
def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="A run's id, Slurm job id, directory, or `last`; several compare.",
        ),
    ] = None,
    formats: Annotated[
        str, typer.Option("--formats", metavar="LIST", help="Of html, pdf and text.")
    ] = "html,pdf,text",
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORM",
            help="Write the samples too: csv, parquet, tensorboard, wandb, openmetrics.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write there, not into the run directory (of several runs: not here).",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print verdict, cost and findings as JSON.")
    ] = False,
    ended: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Say what a run's GPUs did, what that cost, and what to change."""
    from ..launch.report import Wish, show

    wanted = tuple(word.strip() for word in formats.split(",") if word.strip())
    wish = Wish(wanted, tuple(export or ()), out, as_json, ended)
    raise typer.Exit(show(runs or ["last"], wish))

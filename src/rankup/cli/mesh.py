"""`rankup mesh`."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command(context_settings={"allow_interspersed_args": False})
def mesh(
    target: Annotated[
        str, typer.Argument(help="A recipe, module:build_model, or file.py:build_model.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(help="A recipe's own options, as for `rankup run`.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks per node; by default one per GPU, on CPU one."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="As of `rankup run RECIPE`; by default ddp.")
    ] = None,
    dp: Annotated[int | None, typer.Option(help="Copies of the model.")] = None,
    shard: Annotated[int | None, typer.Option(help="Ranks that share one copy.")] = None,
    tp: Annotated[int | None, typer.Option(help="Ranks that share each matrix product.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.")] = None,
    pp_schedule: Annotated[
        str | None, typer.Option(help="naive, gpipe, 1f1b, interleaved, or one of torch's.")
    ] = None,
) -> None:
    """Show which rank holds which part of a model, without starting ranks."""
    from ..launch.mesh.command import show

    asked = (strategy, dp, shard, tp, pp, pp_schedule)
    raise typer.Exit(show(target, tuple(args or ()), nodes, nproc, asked))

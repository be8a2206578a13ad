"""The verb that samples a node beside a run."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command()
def monitor(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="The run's directory.")],
    every: Annotated[
        float | None, typer.Option(help="Seconds between samples, at first; by default 2.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks that the run has on this node.")] = None,
    life: Annotated[
        str | None, typer.Option(help="Tells this start of the run from others.")
    ] = None,
    parent: Annotated[
        int | None, typer.Option(help="Ends with this process; by default the one that started it.")
    ] = None,
    whole_node: Annotated[
        bool, typer.Option("--whole-node", help="The job is billed for all GPUs of the node.")
    ] = False,
) -> None:
    """Record what this node's GPUs, cores and ranks do, until the run ends; jobs start it."""
    from ..monitor.collect import main as collect

    collect.ignore_warnings()
    from ..base.files import user_path

    code = collect.start(
        user_path(run_dir, "RUN_DIR"),
        every=every,
        ranks=ranks,
        life=life,
        parent=parent,
        whole_node=whole_node,
    )
    raise typer.Exit(code)

"""`rankup port`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import UserError
from .app import app


@app.command()
def port(
    file: Annotated[Path, typer.Argument(help="A training script (.py), or a batch file of one.")],
    batch: Annotated[
        str, typer.Option(help="What the script's batch size means: global, or per-gpu.")
    ] = "global",
    strategy: Annotated[str, typer.Option(hidden=True)] = "ddp",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace the file instead of writing FILE_dist.py.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print the changes and write nothing.")
    ] = False,
    vendor: Annotated[
        bool, typer.Option("--vendor", help="Copy the runtime beside it: runs without rankup.")
    ] = False,
    sync_bn: Annotated[
        bool, typer.Option("--sync-bn", help="Batch norm over the batches of all ranks.")
    ] = False,
    shard_eval: Annotated[
        bool,
        typer.Option("--shard-eval", help="List what stands in the way of sharding evaluations."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a FILE_dist.py that was edited.")
    ] = False,
) -> None:
    """Rewrite a single-GPU script so that it runs on any number of GPUs."""
    from ..port.rewrite.command import port_file

    if strategy != "ddp":
        raise UserError(
            f"port --strategy {strategy}: port copies the model to each GPU (ddp) and does not "
            "shard it; docs/your-script-split.md shows how to shard it with rankup.parallelize"
        )
    port_file(
        file,
        batch=batch,
        in_place=in_place,
        diff=diff,
        vendor=vendor,
        sync_bn=sync_bn,
        force=force,
        shard_eval=shard_eval,
    )

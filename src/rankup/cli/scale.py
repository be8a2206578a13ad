"""`rankup scale`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .app import app
from .run import declare, spec


def scale(
    target: Annotated[
        str | None, typer.Argument(help="A recipe's name or a script's path.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="What follows TARGET belongs to it.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Numbers of GPUs: 1,2,4,8.")
    ] = None,
    weak: Annotated[
        bool,
        typer.Option("--weak", help="A batch for each GPU, instead of the same batch on all."),
    ] = False,
    batch_option: Annotated[
        str | None,
        typer.Option(metavar="OPTION", help="With --weak: the script's option for its batch."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="SERIES", help="Go on with a series: its id, its folder, or `last`."),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="GPUs that one node takes; by default all it has.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Here, also where Slurm is.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run and do nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the jobs, and print the table.")
    ] = False,
    monitor: Annotated[bool, typer.Option(help="Sample what every GPU does.")] = True,
    **options: Any,
) -> None:
    """Run TARGET on more and more GPUs, and say what that gave: time, speed-up, loss."""
    from ..launch.scale.command import Wish
    from ..launch.scale.command import scale as start

    wish = Wish(
        *(target, tuple(args or ()), gpus, weak, batch_option, nproc, resume),
        *(local, dry_run, wait, monitor, spec(options)),
    )
    raise typer.Exit(start(wish))


_OF_A_JOB = ("time", "partition", "account", "qos", "reservation")
_OF_ITS_PROGRAMS = ("container", "environment", "env", "sbatch")
declare(scale, (*_OF_A_JOB, *_OF_ITS_PROGRAMS))
app.command(context_settings={"allow_interspersed_args": False})(scale)

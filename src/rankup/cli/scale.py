"""`rankup scale`."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app
from .run import SLURM


@app.command(context_settings={"allow_interspersed_args": False})
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
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit of each job.", **SLURM)
    ] = None,
    partition: Annotated[str | None, typer.Option(**SLURM)] = None,
    account: Annotated[str | None, typer.Option(**SLURM)] = None,
    qos: Annotated[str | None, typer.Option(**SLURM)] = None,
    reservation: Annotated[str | None, typer.Option(**SLURM)] = None,
    container: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Run in this Apptainer image.", **SLURM)
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="FILE", help="Source this in the job.", **SLURM)
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A variable of the ranks.", **SLURM),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="A further #SBATCH option.", **SLURM),
    ] = None,
) -> None:
    """Run TARGET on more and more GPUs, and say what that gave: time, speed-up, loss."""
    from ..launch.scale.command import Wish
    from ..launch.scale.command import scale as start
    from ..slurm.options import JobOptions

    options = JobOptions(
        time=time,
        partition=partition,
        account=account,
        qos=qos,
        reservation=reservation,
        container=container,
        environment=environment,
        env=tuple(env or ()),
        sbatch=tuple(sbatch or ()),
    )
    wish = Wish(
        *(target, tuple(args or ()), gpus, weak, batch_option, nproc, resume),
        *(local, dry_run, wait, monitor, options),
    )
    raise typer.Exit(start(wish))

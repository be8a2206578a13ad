"""`rankup run`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..base.errors import UserError
from .app import app

SLURM: dict[str, Any] = {"rich_help_panel": "Slurm job"}
DATA: dict[str, Any] = {"rich_help_panel": "Data in the memory of each node"}


class _Run(TyperCommand):
    """Says of an option of a recipe that stands before its name where it belongs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = tuple(args)  # what is parsed is taken out of the list
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if option is None:
                raise
            from ..recipes import RECIPES

            # It is found before TARGET is, which may be any of the words. Where none of them is a
            # recipe, as with a script, the first recipe that knows the option is told.
            named = [RECIPES[word] for word in words if word in RECIPES][:1]
            known = [one for one in named or RECIPES.values() if option in one.option_names()]
            if not known:
                raise
            raise UserError(
                f"{option} is an option of a recipe: it stands behind the recipe's name, "
                f"rankup run [OPTIONS] {known[0].name} {option} ..."
            ) from None


@app.command(cls=_Run, context_settings={"allow_interspersed_args": False})
def run(
    target: Annotated[
        str | None, typer.Argument(help="A recipe's name or a script's path.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="What follows TARGET belongs to it.")
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks per node; by default one per GPU, on CPU one."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run directory itself.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Go on with a run: its id, a Slurm job's, `last`, or its directory."),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Here, also where Slurm is.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job script and do nothing.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for the job, showing its log.")
    ] = False,
    monitor: Annotated[
        bool, typer.Option(help="Sample what every GPU does, and report it at the end.")
    ] = True,
    check: Annotated[
        bool, typer.Option(help="Look first at what in a script stands in the way of many ranks.")
    ] = True,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes; one by default.", **SLURM)
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit: 2h, 1d12h, 02:00:00.", **SLURM)
    ] = None,
    partition: Annotated[str | None, typer.Option(**SLURM)] = None,
    account: Annotated[str | None, typer.Option(**SLURM)] = None,
    qos: Annotated[str | None, typer.Option(**SLURM)] = None,
    reservation: Annotated[str | None, typer.Option(**SLURM)] = None,
    array: Annotated[str | None, typer.Option(help="One run per task: 0-9%2.", **SLURM)] = None,
    dependency: Annotated[str | None, typer.Option(help="afterok:JOB and so on.", **SLURM)] = None,
    mail: Annotated[
        str | None, typer.Option(help="Address to write to at the end.", **SLURM)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The job's name.", **SLURM)] = None,
    container: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Run in this Apptainer image.", **SLURM)
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Source this in the job; by default this Python's.", **SLURM
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="A variable, kept in a file only you read.", **SLURM
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="A further #SBATCH option: --exclude=n1.", **SLURM),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            min=0, max=1000, help="Restarts after a node's failure; none by default.", **SLURM
        ),
    ] = None,
    lives: Annotated[
        int | None,
        typer.Option(
            min=1, max=100000, help="Lives in which it goes on by itself; 100 by default.", **SLURM
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Save and go on in a next life after this, before the limit.",
            **SLURM,
        ),
    ] = None,
    allow_idle_gpus: Annotated[
        bool, typer.Option("--allow-idle-gpus", help="Pay for GPUs that no rank uses.", **SLURM)
    ] = False,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="Submit although something is not fetched yet.", **SLURM
        ),
    ] = False,
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Copy this to each node first; may be repeated.", **DATA),
    ] = None,
    stage_fraction: Annotated[str | None, typer.Option(hidden=True)] = None,
    stage_to: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="On each node; by default its memory.", **DATA),
    ] = None,
    stage_reserve: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory kept for the run's processes: 40GB.", **DATA),
    ] = None,
    stage_broadcast: Annotated[
        bool,
        typer.Option(
            "--stage-broadcast", help="Read it once for all nodes (Slurm's sbcast).", **DATA
        ),
    ] = False,
    mount: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.sqsh", help="Mount this; RANKUP_MOUNTS says where. Repeatable.", **DATA
        ),
    ] = None,
) -> None:
    """Run a recipe or a script: as a Slurm job, in an allocation, or on this machine."""
    words = tuple(args or ())
    if target is not None and set(words) & {"--help", "-h"}:
        from .. import recipes

        if target in recipes.RECIPES:
            print(recipes.find(target).help())
            return
    from ..launch.request import Request
    from ..launch.run import run as start
    from ..launch.stage import Staging
    from ..slurm.options import JobOptions

    options = JobOptions(
        nodes,
        time,
        partition,
        account,
        qos,
        reservation,
        array,
        dependency,
        mail,
        name,
        container,
        environment,
        tuple(sbatch or ()),
        tuple(env or ()),
        retries,
        lives,
        deadline,
        allow_idle_gpus,
    )
    if stage_fraction is not None:
        raise UserError(
            "--stage-fraction is gone: a file is staged as a whole, or read from where it lies; "
            "leave it away, or name the nodes' own disks with --stage-to"
        )
    staging = Staging(
        tuple(stage or ()),
        stage_to,
        stage_broadcast,
        tuple(mount or ()),
        stage_reserve,
    )
    request = Request(
        *(target, words, nproc, out, resume, local, dry_run, follow, options, allow_missing),
        *(staging, monitor),
        check=check,
    )
    raise typer.Exit(start(request))

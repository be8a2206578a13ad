"""Verbs that start runs, or show how one would be split; and those that come with rankup."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..base.errors import UserError
from .app import app

SLURM: dict[str, Any] = {"rich_help_panel": "Slurm job"}
DATA: dict[str, Any] = {"rich_help_panel": "Data in the memory of each node"}
Target = Annotated[str | None, typer.Argument(help="A recipe's name or a script's path.")]
Args = Annotated[list[str] | None, typer.Argument(help="What follows TARGET belongs to it.")]
Local = Annotated[bool, typer.Option("--local", help="Here, also where Slurm is.")]
Word = Annotated[str | None, typer.Option(**SLURM)]
Container = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Run in this Apptainer image.", **SLURM)
]


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
    target: Target = None,
    args: Args = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks per node; by default one per GPU, on CPU one."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run directory itself.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Go on with a run: its id, a Slurm job's, `last`, or its directory."),
    ] = None,
    local: Local = False,
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
    partition: Word = None,
    account: Word = None,
    qos: Word = None,
    reservation: Word = None,
    array: Annotated[str | None, typer.Option(help="One run per task: 0-9%2.", **SLURM)] = None,
    dependency: Annotated[str | None, typer.Option(help="afterok:JOB and so on.", **SLURM)] = None,
    mail: Annotated[
        str | None, typer.Option(help="Address to write to at the end.", **SLURM)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The job's name.", **SLURM)] = None,
    container: Container = None,
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
        target=target,
        args=words,
        nproc=nproc,
        out=out,
        resume=resume,
        local=local,
        dry_run=dry_run,
        follow=follow,
        options=options,
        allow_missing=allow_missing,
        staging=staging,
        monitor=monitor,
        check=check,
    )
    raise typer.Exit(start(request))


@app.command(context_settings={"allow_interspersed_args": False})
def scale(
    target: Target = None,
    args: Args = None,
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
    local: Local = False,
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
    partition: Word = None,
    account: Word = None,
    qos: Word = None,
    reservation: Word = None,
    container: Container = None,
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
        target=target,
        args=tuple(args or ()),
        gpus=gpus,
        weak=weak,
        batch_option=batch_option,
        nproc=nproc,
        resume=resume,
        local=local,
        dry_run=dry_run,
        wait=wait,
        monitor=monitor,
        options=options,
    )
    raise typer.Exit(start(wish))


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
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Also draw it there.")] = None,
) -> None:
    """Show which rank holds which part of a model, without starting ranks."""
    from ..launch.mesh.command import show

    asked = (strategy, dp, shard, tp, pp, pp_schedule)
    raise typer.Exit(show(target, tuple(args or ()), nodes, nproc, asked, png))


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

"""The command `rankup`: one short function per verb that parses, calls one function, prints."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from . import __version__
from .base.errors import EXIT_BAD_INPUT, EXIT_FAILED, UserError

app = typer.Typer(
    help="From one GPU to the whole supercomputer: the same PyTorch run on any number of ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SLURM: dict[str, Any] = {"rich_help_panel": "Slurm job"}


def main() -> None:
    """Entry point; bad input ends with its message and exit code 2."""
    try:
        app()
    except UserError as error:
        _say_error(error)
        sys.exit(EXIT_BAD_INPUT)
    except OSError as error:  # a full disk, a file without permission: the machine's no, not ours
        _say_error(error)
        sys.exit(EXIT_FAILED)


def _say_error(error: Exception) -> None:
    from .launch.logfile import clean  # names of files, words of sbatch: anybody's bytes

    print("rankup: " + "\n".join(map(clean, str(error).split("\n"))), file=sys.stderr)


def _version(asked: bool) -> None:
    if asked:
        print(f"rankup {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(context_settings={"allow_interspersed_args": False})
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
) -> None:
    """Run a recipe or a script: as a Slurm job, in an allocation, or on this machine."""
    words = tuple(args or ())
    if target is not None and set(words) & {"--help", "-h"}:
        from . import recipes

        if target in recipes.RECIPES:
            print(recipes.find(target).help())
            return
    from .launch.request import Request
    from .launch.run import run as start
    from .slurm.options import JobOptions

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
    request = Request(target, words, nproc, out, resume, local, dry_run, follow, options)
    raise typer.Exit(start(request))


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how the newest runs are, or everything about one."""
    from .launch.show_status import show

    raise typer.Exit(show(run, as_json=as_json))


@app.command()
def logs(
    run: Annotated[
        str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")
    ] = "last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to show.")] = 40,
    raw: Annotated[bool, typer.Option("--raw", help="Show all lines, also harmless ones.")] = False,
    cause: Annotated[
        bool, typer.Option("--cause", help="Only why the run failed: rank, node, exception.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="Number of an array's task.")] = None,
) -> None:
    """Show the end of a run's log, and why it failed."""
    from .launch.logs import show

    code = show(run, following=follow, lines=lines, raw=raw, only_cause=cause, task=task)
    raise typer.Exit(code)


@app.command()
def cancel(
    run: Annotated[str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")],
) -> None:
    """End a run: its Slurm jobs with all that would follow, or its processes on this machine."""
    from .launch.cancel import show

    raise typer.Exit(show(run))


@app.command()
def recipes() -> None:
    """List the training runs that come with rankup."""
    from .recipes import RECIPES

    for recipe in RECIPES.values():
        print(f"{recipe.name:20} {recipe.summary}")
    print("\noptions of one: rankup run NAME --help")


@app.command()
def demo() -> None:
    """Train a small language model on one rank and on two, and compare (CPU, two minutes)."""
    from .launch.demo import demo as show

    raise typer.Exit(show())

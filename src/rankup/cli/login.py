"""Verbs of the login node, where there is a network: doctor, env, fetch."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


@app.command(context_settings={"allow_interspersed_args": False})
def doctor(
    script: Annotated[
        str | None, typer.Argument(help="Also look at what this script imports and needs.")
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's arguments.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine is, and what would keep a job from running."""
    from ..login.doctor.command import show

    raise typer.Exit(show(script, tuple(args or ()), as_json=as_json))


env = typer.Typer(
    help="Make an environment from modules.sh and requirements.txt; alone: the line to source.",
    invoke_without_command=True,
)
app.add_typer(env, name="env")
Folder = Annotated[str | None, typer.Argument(help="The environment's folder; ./env by default.")]


@env.callback()
def _env(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from ..login.env import line_to_source

        print(line_to_source(None))


@env.command()
def create(
    folder: Folder = None,
    kind: Annotated[
        str | None,
        typer.Option(help="`modules` (the site's modules and a venv) or `wheels` (wheels only)."),
    ] = None,
) -> None:
    """Make the environment, or bring it up to date: only what changed is done."""
    from ..login.env import create as make

    raise typer.Exit(make(folder, kind=kind))


@env.command()
def lock(folder: Folder = None) -> None:
    """Write requirements.lock: every package's version and hashes, as they would be installed."""
    from ..login.env import lock as write

    raise typer.Exit(write(folder))


@env.command()
def check(
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether the environment is what its files ask for."""
    from ..login.env import check as judge

    raise typer.Exit(judge(folder, as_json=as_json))


@app.command(context_settings={"allow_interspersed_args": False})
def fetch(
    script: Annotated[
        str | None, typer.Argument(help="Run this until its first forward, for its downloads.")
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="The script's arguments.")] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="wikitext-2, xsum, imagewoof-320, or NAME\\[:config]\\[@revision]."),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="NAME\\[@revision].")] = None,
    url: Annotated[list[str] | None, typer.Option(help="A file from the web.")] = None,
    sha256: Annotated[
        list[str] | None, typer.Option(help="Of the files of --url, in their order.")
    ] = None,
    to: Annotated[
        list[str] | None, typer.Option(help="Where the files of --url go, in their order.")
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Read the script instead of running it.")
    ] = False,
    only_proof: Annotated[
        bool, typer.Option("--only-proof", help="Only start it without a network.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run what another user's rankup.toml lists; remembered."),
    ] = False,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="Stop a script that takes longer: 90s, 30m, 2h.")
    ] = "1h",
    memory: Annotated[
        float | None, typer.Option(help="Stop a script that takes more, in GB; 16 by default.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads, and workers, of a script.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring data sets and models here, and prove that the script starts without a network.

    Without SCRIPT and options: all that `rankup.toml` lists.
    """
    from ..login.fetch.command import Request
    from ..login.fetch.command import fetch as start

    request = Request(
        script=script,
        args=tuple(args or ()),
        datasets=tuple(dataset or ()),
        models=tuple(model or ()),
        urls=tuple(url or ()),
        sha256=tuple(sha256 or ()),
        to=tuple(to or ()),
        no_run=no_run,
        only_proof=only_proof,
        trust=trust,
        time=time,
        memory=memory,
        threads=threads,
        as_json=as_json,
    )
    raise typer.Exit(start(request))

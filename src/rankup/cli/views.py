"""Verbs of a run that there is: how it is, what it did, and what came of it."""

from __future__ import annotations

from typing import Annotated

import typer

from ..base.errors import UserError
from .app import app

Run = Annotated[str, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")]
# Of the two verbs that take a checkpoint of a run.
Step = Annotated[
    int | None, typer.Option(min=0, help="Of the checkpoint; by default the newest whole one.")
]
Best = Annotated[bool, typer.Option("--best", help="The checkpoint of the lowest validation loss.")]
Ema = Annotated[
    bool, typer.Option("--ema", help="The moving average of the weights, of a run with --ema.")
]


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(help="A run's id, Slurm job id, directory, or `last`.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="GPUs and steps of a run as it goes on (`last`).")
    ] = False,
) -> None:
    """Show how the newest runs are, or everything about one."""
    if live and as_json:
        raise UserError("--live draws and --json prints once; give one of them")
    if live:
        from ..launch.show_status import show_live

        raise typer.Exit(show_live(run or "last"))
    from ..launch.show_status import show

    raise typer.Exit(show(run, as_json=as_json))


@app.command()
def logs(
    run: Run = "last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to show.")] = 40,
    raw: Annotated[bool, typer.Option("--raw", help="Show all lines, also harmless ones.")] = False,
    cause: Annotated[
        bool, typer.Option("--cause", help="Only why the run failed: rank, node, exception.")
    ] = False,
) -> None:
    """Show the end of a run's log, and why it failed."""
    from ..launch.logs import show

    code = show(run, following=follow, lines=lines, raw=raw, only_cause=cause)
    raise typer.Exit(code)


@app.command()
def cancel(
    run: Run,
) -> None:
    """End a run: its Slurm jobs with all that would follow, or its processes on this machine."""
    from ..launch.cancel import show

    raise typer.Exit(show(run))


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
        str | None,
        typer.Option(metavar="LIST", help="Of html, pdf and text; by default all three."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write there, not into the run directory (of several runs: not here).",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print verdict, cost and findings as JSON, and no more.")
    ] = False,
    ended: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Say what a run's GPUs did, what that cost, and what to change."""
    from ..launch.report import FILES, Wish, show

    if as_json and (out is not None or formats is not None):
        raise UserError(
            "--json prints to standard output and writes no file; leave --out and --formats away, "
            "or --json"
        )
    words = ",".join(FILES) if formats is None else formats
    wanted = tuple(word.strip() for word in words.split(",") if word.strip())
    wish = Wish(wanted, out, as_json, ended)
    raise typer.Exit(show(runs or ["last"], wish))


@app.command()
def monitor(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="The run's directory.")],
    every: Annotated[
        float | None, typer.Option(help="Seconds between samples, at first; by default 2.")
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks that the run has on this node.")] = None,
    attempt: Annotated[
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
        attempt=attempt,
        parent=parent,
        whole_node=whole_node,
    )
    raise typer.Exit(code)


@app.command()
def export(
    run: Run,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="safetensors; torch: a plain state dict; hf: a folder for transformers.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="By default in the run's directory.")
    ] = None,
    step: Step = None,
    best: Best = False,
    ema: Ema = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a run's model into one file, whatever it was trained on."""
    from ..launch.weights import SUFFIXES
    from ..launch.weights import export as write

    if to is None:
        raise UserError(f"give --to FORMAT, one of {', '.join(SUFFIXES)}")
    raise typer.Exit(write(run, to, out, step, best, force, ema))


@app.command()
def generate(
    run: Run,
    prompt: Annotated[
        str | None, typer.Argument(help="Words that a language model goes on from.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A text to go on from."),
    ] = None,
    step: Step = None,
    best: Best = False,
    ema: Ema = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens that are made.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="0 takes the likeliest token; 1 draws as the model says."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw among so many of the likeliest tokens.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of what is drawn.")] = None,
) -> None:
    """Try a run's model: text that goes on from a prompt."""
    from ..base.files import user_path
    from ..launch.weights import generate as make
    from ..recipes import Asked

    path = None if file is None else user_path(file, "--file").absolute()
    asked = Asked(prompt, path, max_tokens, temperature, top_k, seed)
    raise typer.Exit(make(run, asked, step, best, ema))

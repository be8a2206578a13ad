"""Verbs that bring a single-GPU script to many ranks: check, port and verify."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import EXIT_FAILED, UserError
from ..base.text import clean
from .app import app


class Style(str, Enum):
    """The forms in which findings are printed."""

    text = "text"
    json = "json"
    github = "github"


@app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="Python scripts, batch files, or folders of them.")
    ],
    style: Annotated[
        Style, typer.Option("--format", help="Lines, JSON, or GitHub's annotations.")
    ] = Style.text,
    select: Annotated[
        str, typer.Option(help="Codes to report, or their beginnings: RK12,RK141.")
    ] = "",
    ignore: Annotated[str, typer.Option(help="Codes not to report.")] = "",
) -> None:
    """Say what in a script stands in the way of many ranks; exit code 1 when something does."""
    from ..port.check import check as look
    from ..port.check import formatted, hints

    shown, looked = list[str](), list[str]()
    found = look(files, _codes(select), _codes(ignore), shown, looked)
    if style is Style.text:
        for line in shown:
            print(clean(line))
    print(formatted(found, style.value, looked), end="")
    if style is Style.text:
        for line in hints(found, _fits):
            print(clean(line))
    raise typer.Exit(EXIT_FAILED if found else 0)


def _fits(path: Path) -> bool:
    from ..launch.like import fits

    return fits(path)


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
    sync_bn: Annotated[
        bool, typer.Option("--sync-bn", help="Batch norm over the batches of all ranks.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a FILE_dist.py that was edited.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not run the port beside its original.")
    ] = False,
) -> None:
    """Rewrite a single-GPU script so that it runs on any number of GPUs, and verify the port.

    For up to two minutes both run here, on the CPU with little data; the exit code is 1 where they
    differ. See `rankup verify`.
    """
    from ..port.check import is_batch_file
    from ..port.rewrite.command import port_file
    from ..port.verify import judge

    if strategy != "ddp":
        raise UserError(
            f"port --strategy {strategy}: port copies the model to each GPU (ddp) and does not "
            "shard it; docs/your-script-split.md shows how to shard it with rankup.parallelize"
        )
    if file.is_file() and is_batch_file(file):
        from ..launch.like import write

        write(file, diff=diff, in_place=in_place, force=force)
        return
    verdict = port_file(
        file,
        batch=batch,
        in_place=in_place,
        diff=diff,
        sync_bn=sync_bn,
        force=force,
        judge=None if no_verify else lambda ported: str(judge(ported, batch)),
    )
    if verdict.startswith("differs"):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def verify(
    original: Annotated[str, typer.Argument(help="The script for one GPU.")],
    ported: Annotated[
        str | None, typer.Argument(help="Its port; without one `port` makes it.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="After `--`: what both scripts are given.")
    ] = None,
    stand_ins: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Modules for packages that are missing. Repeatable."),
    ] = None,
    time: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Limit of each run.")
    ] = 120.0,
) -> None:
    """Prove on CPU ranks that a port still computes what the original does."""
    from ..port.verify import Request
    from ..port.verify import verify as start

    given = tuple(args or ())
    if ported is not None and not ported.endswith((".py", ".ipynb")):
        given, ported = (ported, *given), None  # the first word after `--`
    request = Request(original, ported, given, tuple(stand_ins or ()), time)
    raise typer.Exit(start(request))


def _codes(text: str) -> tuple[str, ...]:
    return tuple(word.strip().upper() for word in text.split(",") if word.strip())

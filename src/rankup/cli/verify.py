"""`rankup verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app


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
        float, typer.Option(min=1, metavar="SECONDS", help="Limit of each of the ten runs.")
    ] = 120.0,
) -> None:
    """Prove on CPU ranks that a port still computes what the original does."""
    from ..port.verify import Request
    from ..port.verify import verify as start

    request = Request(original, ported, tuple(args or ()), tuple(stand_ins or ()), time)
    raise typer.Exit(start(request))

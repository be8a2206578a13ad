"""Verbs that bring a single-GPU script to many ranks: check."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .app import app


class Style(str, Enum):
    """How findings are printed."""

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
    from ..base.errors import EXIT_FAILED
    from ..port.check import check as look
    from ..port.formats import formatted

    found = look(files, _codes(select), _codes(ignore))
    print(formatted(found, style.value), end="")
    raise typer.Exit(EXIT_FAILED if found else 0)


def _codes(text: str) -> tuple[str, ...]:
    return tuple(word.strip().upper() for word in text.split(",") if word.strip())

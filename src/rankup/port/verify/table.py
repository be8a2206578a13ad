"""The seven checks as a table, with what differs below it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from ...base.text import clean
from .verdict import CHECKS, Result

_COLOURS = {"proved": "32", "differs": "1;31", "not seen": "33", "-": "2"}


def show(results: Sequence[Result], notes: Sequence[str], out: TextIO | None = None) -> None:
    """Print it."""
    out = out or sys.stdout
    worlds = sorted({one.world for one in results})
    cells = {(one.check, one.world): one for one in results}
    titles = [f"{number}. {title}" for number, title in enumerate(CHECKS.values(), 1)]
    heads = [f"{world} rank{'s' if world > 1 else ''}" for world in worlds]
    widths = [
        max(len(head), *(len(_text(cells.get((check, world)))) for check in CHECKS))
        for head, world in zip(heads, worlds, strict=True)
    ]
    first = max(map(len, titles))
    line = "  ".join(f"{head:{width}}" for head, width in zip(heads, widths, strict=True))
    print(f"{'':{first}}  {line}".rstrip(), file=out)
    for title, check in zip(titles, CHECKS, strict=True):
        shown = [
            _cell(cells.get((check, world)), width, out.isatty())
            for world, width in zip(worlds, widths, strict=True)
        ]
        print(f"{title:{first}}  {'  '.join(shown)}".rstrip(), file=out)
    _differences(results, out)
    if notes:
        print("\nto make the runs comparable, in all of them:", file=out)
        for note in notes:
            print(f"  {clean(note)}", file=out)


def _differences(results: Sequence[Result], out: TextIO) -> None:
    told: set[str] = set()
    for one in results:
        if one.state != "differs" or one.check in told:
            continue
        told.add(one.check)  # the first one: on more ranks it is mostly the same again
        number = list(CHECKS).index(one.check) + 1
        lines = [clean(line) for line in one.difference.split("\n")]
        ranks = f"{one.world} rank{'s' if one.world > 1 else ''}"
        print(f"\n{number}. differs on {ranks}: {lines[0]}", file=out)
        for line in lines[1:]:
            print(f"   {line}", file=out)


def _text(result: Result | None) -> str:
    if result is None or result.state == "-":
        return "-"
    return f"{result.state}: {result.detail}" if result.detail else result.state


def _cell(result: Result | None, width: int, colours: bool) -> str:
    text = f"{clean(_text(result)):{width}}"
    if not colours or result is None:
        return text
    return f"\033[{_COLOURS[result.state]}m{text}\033[0m"

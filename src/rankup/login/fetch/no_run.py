"""`rankup fetch --no-run`: what a script fetches, and how to fetch it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from ...base.text import clean
from ...script.downloads import Download, read


def show(script: Path, args: tuple[str, ...], *, as_json: bool) -> None:
    """Print what the script fetches, how to fetch it, and what its text does not tell.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    found = read(script, args)
    by_name = _by_name(found.downloads)
    if as_json:
        values = {
            "script": str(script.resolve()),
            "args": list(args),
            "downloads": [{**asdict(one), "file": str(one.file)} for one in found.downloads],
            "command": by_name,
            "notes": list(found.notes),
        }
        print(json.dumps(values, indent=2))
        return
    for note in found.notes:
        print(f"note: {clean(note)}", file=sys.stderr)
    whole = shlex.join(["rankup", "fetch", str(script), *args])
    if not found.downloads:
        print(f"reading {script} finds no call that fetches something; to be sure: {whole}")
        return
    for line in _rows(found.downloads):
        print(clean(line))
    if by_name:
        print(f"\nby name: {clean(by_name)}")
    if not all(one.by_name for one in found.downloads):
        print(f"\nall of it, by the script's own calls: {clean(whole)}")


def _by_name(found: Iterable[Download]) -> str:
    """The command that fetches what can be fetched by name; empty where nothing can."""
    options = (
        (f"--{one.what}", one.wanted, *(("--to", one.to) if one.to else ()))
        for one in found
        if one.by_name
    )
    words = [word for option in dict.fromkeys(options) for word in option]
    return shlex.join(["rankup", "fetch", *words]) if words else ""


def _rows(found: Iterable[Download]) -> Iterator[str]:
    """A row each: its kind, its name or why that is not known, and where it is fetched."""
    rows = [(one.what, one.wanted or one.why, _where(one)) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for what, name, where in rows:
        yield f"{what:{widths[0]}}  {name:{widths[1]}}  {where}"


def _where(one: Download) -> str:
    """`load_dataset, train.py:12`, relative to where this runs; and what is to be said of it."""
    file = os.path.relpath(one.file)
    place = f"{one.how}, {one.file if file.startswith('..') else file}:{one.line}"
    notes = [one.why] if one.name and one.why else []
    if one.known and not one.by_name:
        notes.append("only this call puts it where it looks for it")
    return f"{place} ({'; '.join(notes)})" if notes else place

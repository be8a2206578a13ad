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

_OPTIONS = {"dataset": "--dataset", "model": "--model", "url": "--url"}


def show(script: Path, args: tuple[str, ...], *, as_json: bool) -> None:
    """Print what the script fetches, how to fetch it, and what its text does not tell.

    Raises:
        UserError: it cannot be read, or is not Python.
    """
    found = read(script, args)
    if as_json:
        values = {
            "script": str(script.resolve()),
            "args": list(args),
            "downloads": [{**asdict(one), "file": str(one.file)} for one in found.downloads],
            "command": _command(found.downloads),
            "table": _table(found.downloads),
            "notes": list(found.notes),
        }
        print(json.dumps(values, indent=2))
        return
    for note in found.notes:
        print(f"note: {clean(note)}", file=sys.stderr)
    for line in _lines(script, args, found.downloads):
        print(clean(line))


def _command(found: Iterable[Download]) -> str:
    """The command that fetches what can be fetched by name; empty where nothing can."""
    options = (
        (_OPTIONS[one.what], one.wanted, *(("--to", one.to) if one.to else ()))
        for one in found
        if one.by_name
    )
    words = [word for option in dict.fromkeys(options) for word in option]
    return shlex.join(["rankup", "fetch", *words]) if words else ""


def _table(found: Iterable[Download]) -> str:
    """The same as a table of `rankup.toml`."""
    by_name = [one for one in found if one.by_name]
    lines = []
    for key, what in (("datasets", "dataset"), ("models", "model")):
        names = dict.fromkeys(one.wanted for one in by_name if one.what == what)
        if names:
            lines.append(f"{key} = [{', '.join(map(_toml, names))}]")
    for url, to in dict.fromkeys((one.name or "", one.to) for one in by_name if one.what == "url"):
        lines += ["", "[[fetch.urls]]", f"url = {_toml(url)}"]
        lines += [f"to = {_toml(to)}"] if to else []
    return "\n".join(["[fetch]", *lines]) if lines else ""


def _lines(script: Path, args: tuple[str, ...], found: tuple[Download, ...]) -> Iterator[str]:
    whole = shlex.join(["rankup", "fetch", str(script), *args])
    if not found:
        yield f"reading {script} finds no call that fetches something; to be sure: {whole}"
        return
    by_name = [one for one in found if one.by_name]
    rest = [one for one in found if not one.by_name]
    if by_name:
        yield "can be fetched by name:"
        yield from _rows(by_name)
        yield from ("", f"  {_command(by_name)}", "")
        yield from ("or, in rankup.toml, for everybody who works on this:", "")
        yield from (f"  {line}".rstrip() for line in _table(by_name).split("\n"))
        yield from [""] if rest else []
    for title, known in (
        ("only the script's own call puts these where it looks for them:", True),
        ("cannot be known by reading:", False),
    ):
        if group := [one for one in rest if one.known is known]:
            yield from (title, *_rows(group), "")
    if rest:
        yield f"  {whole}"


def _rows(found: Iterable[Download]) -> Iterator[str]:
    """A row each: its kind, its name or why that is not known, and where it is fetched."""
    rows = [(one.what, one.wanted or one.why, _where(one)) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for what, name, where in rows:
        yield f"  {what:{widths[0]}}  {name:{widths[1]}}  {where}"


def _where(one: Download) -> str:
    """`load_dataset, train.py:12`, relative to where this runs; and what is not known of it."""
    file = os.path.relpath(one.file)
    place = f"{one.how}, {one.file if file.startswith('..') else file}:{one.line}"
    return f"{place} ({one.why})" if one.name and one.why else place


def _toml(text: str) -> str:
    """A basic string of TOML: JSON's escapes are among its own."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

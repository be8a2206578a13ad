"""The things that `[fetch]` of a `rankup.toml` lists and that are not there yet."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base.amounts import some
from ..site.config import Config
from . import record
from .record import Record, key_of_url


@dataclass(frozen=True)
class Unmet:
    """Something that a job needs and would not find.

    Attributes:
        what: as the user calls it (`model gpt2`).
        why: in one line.
        todo: the command that brings it, or what to mend.
        key: of its record; empty where it cannot have one.
    """

    what: str
    why: str
    todo: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.todo}"


def unmet(config: Config) -> list[Unmet]:
    """Return what is listed and not there.

    Quick, and without a network: the records are read, and the files that they name looked for.
    """
    if not config.fetch:
        return []
    project = config.project(Path.cwd())
    known = {one.key: one for one in record.read(project)}
    return [*_named(config, known), *_urls(config, known), *_scripts(config, project, known)]


def _named(config: Config, known: Mapping[str, Record]) -> Iterator[Unmet]:
    for kind, names in (("dataset", config.fetch.datasets), ("model", config.fetch.models)):
        for name in names:
            key = f"{kind}:{name}"
            if why := _lacks(known.get(key)):
                todo = shlex.join(["rankup", "fetch", f"--{kind}", name])
                yield Unmet(f"{kind} {name}", why, todo, key)


def _urls(config: Config, known: Mapping[str, Record]) -> Iterator[Unmet]:
    for url in config.fetch.urls:
        key = key_of_url(url)
        found = known.get(key)
        why = _lacks(found)
        if not why and found is not None and url.sha256:
            has = {item.sha256 for item in found.items}
            if has != {url.sha256}:
                why = "its checksum is not the one in rankup.toml"
        if why:
            # The URL itself may hold a password; all that is listed is fetched together.
            yield Unmet(key.partition(":")[2], why, "rankup fetch", key)


def _scripts(config: Config, project: Path, known: Mapping[str, Record]) -> Iterator[Unmet]:
    for number, line in enumerate(config.fetch.scripts):
        entry = f"fetch.scripts[{number}] in {config.file}"
        try:
            script, *args = shlex.split(line)
        except ValueError:
            yield Unmet(entry, "this is no command line", "mend it there")
            continue
        if not os.path.isfile(project / script):
            yield Unmet(entry, f"no such file: {script}", "mend it there")
            continue
        key = record.script_key(project / script, tuple(args))
        found = known.get(key)
        why = _lacks(found)
        if not why and found is not None and not found.proved:
            why = found.doubts()[0]
        if why:
            shown = record.command_line([script, *args])
            # Where it holds a secret: all that is listed is fetched together.
            whole = shown == shlex.join([script, *args])
            todo = f"rankup fetch {shown}" if whole else "rankup fetch"
            yield Unmet(f"script {shown}", why, todo, key)


def _lacks(found: Record | None) -> str:
    """Why a job would not have it, empty if it would."""
    return "not fetched" if found is None else some(found.faults(), most=1)

"""The things that `[fetch]` of a `rankup.toml` lists and that are not there yet."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
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
    found = []
    for kind, names in (("dataset", config.fetch.datasets), ("model", config.fetch.models)):
        for name in names:
            todo = shlex.join(["rankup", "fetch", f"--{kind}", name])
            found.append(Unmet(f"{kind} {name}", "", todo, f"{kind}:{name}"))
    for url in config.fetch.urls:
        # The URL itself may hold a password; all that is listed is fetched together.
        key = key_of_url(url)
        found.append(Unmet(key.partition(":")[2], "", "rankup fetch", key))
    found += [_script(config, number, line) for number, line in enumerate(config.fetch.scripts)]
    sums = {key_of_url(url): url.sha256 for url in config.fetch.urls if url.sha256}
    whys = [one.why or _lacks(known.get(one.key), sums.get(one.key, "")) for one in found]
    return [replace(one, why=why) for one, why in zip(found, whys, strict=True) if why]


def _script(config: Config, number: int, line: str) -> Unmet:
    entry = f"fetch.scripts[{number}] in {config.file}"
    project = config.project(Path.cwd())
    try:
        script, *args = shlex.split(line)
    except ValueError:
        return Unmet(entry, "this is no command line", "mend it there")
    if not os.path.isfile(project / script):
        return Unmet(entry, f"no such file: {script}", "mend it there")
    shown = record.command_line([script, *args])
    # Where it holds a secret: all that is listed is fetched together.
    whole = shown == shlex.join([script, *args])
    todo = f"rankup fetch {shown}" if whole else "rankup fetch"
    return Unmet(f"script {shown}", "", todo, record.script_key(project / script, tuple(args)))


def _lacks(found: Record | None, sha256: str) -> str:
    """Why a job would not have it, empty if it would."""
    if found is None:
        return "not fetched"
    if why := some(found.faults(), most=1):
        return why
    if sha256 and {item.sha256 for item in found.items} != {sha256}:
        return "its checksum is not the one in rankup.toml"
    return "" if found.proved else next(iter(found.doubts()), "")

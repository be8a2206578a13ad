"""What a project needs, by `[fetch]` of its `rankup.toml`, and does not have yet."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..site.config import Config
from . import record
from .fetch.things import key_of_url
from .record import Record


def unmet(config: Config) -> list[str]:
    """What is listed and not there, one line each, with the command that fetches it.

    Quick, and without a network: the records are read, and the files that they name looked for.
    """
    if not config.fetch:
        return []
    project = config.project(Path.cwd())
    known = {one.key: one for one in record.read(project)}
    return [*_named(config, known), *_urls(config, known), *_scripts(config, project, known)]


def _named(config: Config, known: Mapping[str, Record]) -> Iterator[str]:
    for kind, names in (("dataset", config.fetch.datasets), ("model", config.fetch.models)):
        for name in names:
            if why := _lacks(known.get(f"{kind}:{name}")):
                yield f"{kind} {name}: {why}; rankup fetch {shlex.join([f'--{kind}', name])}"


def _urls(config: Config, known: Mapping[str, Record]) -> Iterator[str]:
    for url in config.fetch.urls:
        found = known.get(key_of_url(url))
        why = _lacks(found)
        if not why and found is not None and url.sha256:
            has = {item.sha256 for item in found.items}
            if has != {url.sha256}:
                why = "its checksum is not the one in rankup.toml"
        if why:
            # The URL itself may hold a password; all that is listed is fetched together.
            yield f"{key_of_url(url).partition(':')[2]}: {why}; rankup fetch"


def _scripts(config: Config, project: Path, known: Mapping[str, Record]) -> Iterator[str]:
    for line in config.fetch.scripts:
        try:
            script, *args = shlex.split(line)
        except ValueError:
            yield f"script {line!r}: not a command line; mend fetch.scripts in {config.file}"
            continue
        found = known.get(record.script_key(project / script, tuple(args)))
        why = _lacks(found)
        if not why and found is not None and found.proof == "none":
            why = "not proved to start without a network" + (
                f" ({found.note})" if found.note else ""
            )
        if why:
            yield f"script {line}: {why}; rankup fetch {line}"


def _lacks(found: Record | None) -> str:
    """Why a job would not have it, empty if it would."""
    if found is None:
        return "not fetched"
    if gone := found.missing():
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        return f"{gone[0]}{more}"
    if found.proof == "failed":
        return f"does not work without a network: {found.note}" if found.note else "proof failed"
    return ""

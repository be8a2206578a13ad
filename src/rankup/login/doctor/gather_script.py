"""The checks of a script, with the facts they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ...base.errors import UserError
from ...base.findings import Finding
from ...script.source import read as read_script
from .. import killed, record
from . import codes, script, space
from .facts import Facts
from .gather import Check

RankCheck: TypeAlias = Callable[[Path], Sequence[Finding]]


def checks(path: Path, args: tuple[str, ...], ranks: RankCheck | None) -> tuple[Check, ...]:
    """Whether the script can be read; and if it can, its imports and its data.

    Args:
        ranks: what `rankup check` finds in a script, for one line about it.
    """
    name = path.name or str(path)
    return (
        Check(codes.SCRIPT, name, partial(_imports, path)),
        Check(codes.MOUNTED, name, partial(_mounted, path)),
        Check(codes.DATA, name, partial(_data, path, args)),
        *([Check(codes.PORTED, name, partial(_ported, path, ranks))] if ranks else []),
    )


def _imports(path: Path, facts: Facts) -> list[Finding]:
    from ...script.modules import imports

    if why := script.unreadable(path):
        return [Finding(codes.SCRIPT, "error", path.name or str(path), why)]
    try:
        found = imports(path)
    except UserError as error:
        return [Finding(codes.SCRIPT, "error", path.name, str(error))]
    folder = path.resolve().parent
    return [
        Finding(codes.SCRIPT, "ok", path.name, str(path.resolve())),
        *script.check_imports(path, found, partial(script.is_here, folder=folder)),
    ]


def _mounted(path: Path, facts: Facts) -> list[Finding]:
    folder = path.resolve().parent
    if folder.is_relative_to(facts.here.resolve()):
        return []  # said already
    script_folder = space.Folder("the script's folder", folder)
    return space.check_mounted(facts.machine.answer().profile, [script_folder])


def _data(path: Path, args: tuple[str, ...], facts: Facts) -> list[Finding]:
    from ...script.downloads import read

    # Where it cannot be read, the check of its imports says why.
    if script.unreadable(path):
        return []
    try:
        downloads = read(path, args).downloads
    except UserError:
        return []
    profile = facts.machine.answer().profile
    fetched = record.of_script(facts.project, path, args)
    command = script.Command(path, args)
    beside = [
        one for folder in record.folders(facts.project, path)[1:] for one in killed.killed(folder)
    ]
    return [
        *script.check_data(command, profile, facts.internet(), fetched, downloads),
        *script.check_killed(beside),
    ]


def _ported(path: Path, ranks: RankCheck, facts: Facts) -> list[Finding]:
    """Nothing is said of a script that trains nothing; the check of imports names its syntax."""
    if script.unreadable(path) or path.suffix != ".py":
        return []
    file = read_script(path)
    if not file.concerns_training or file.error is not None:
        return []
    return script.check_ported(path, ranks(path))

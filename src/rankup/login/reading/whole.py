"""A script as a whole: what it imports and fetches."""

from __future__ import annotations

from pathlib import Path

from ...base.errors import UserError
from .found import Import, Reading
from .local import Project, gather
from .options import parsed, said
from .rules import downloads
from .source import NotRead
from .values import Values


def read(path: Path, args: tuple[str, ...] = (), folder: Path | None = None) -> Reading:
    """What a script that is started with `args` in `folder` (here) would import and fetch.

    Raises:
        UserError: it cannot be read, or is not Python; the message names the line.
    """
    project = _project(path)
    values = Values(project.files, said(args), folder or Path.cwd())
    try:
        values.options = parsed(project.files, values, args)
        found = downloads(project.files, values)
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be read") from None
    return Reading(
        project.imports,
        tuple(found),
        tuple(file.path for file in project.files.values()),
        project.notes,
    )


def imports(path: Path) -> list[Import]:
    """What the script, and the local modules that it imports, import.

    Raises:
        UserError: as `read`.
    """
    return list(_project(path).imports)


def _project(path: Path) -> Project:
    try:
        return gather(path)
    except NotRead as error:
        raise UserError(str(error)) from None
